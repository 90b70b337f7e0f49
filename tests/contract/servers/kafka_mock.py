"""A Kafka broker for the tests: librdkafka's own mock cluster, at a port of our choice.

    python kafka_mock.py PORT

The mock takes any port and knows no SASL. So this process listens at PORT, makes the mock advertise that port, and
passes the frames on, except for SASL (mechanism PLAIN, only `teller` with the password `right`; nobody has to), which
it answers itself, and for a frame of API -1, by which a test tells the mock what to answer next. The topic `missing`
does not exist and can't be made; nobody may write to `forbidden`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import struct
import sys
from pathlib import Path

import confluent_kafka

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CONTROL, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = -1, 17, 18, 36
RD_KAFKA_PRODUCER = 0
UNKNOWN_TOPIC_OR_PART, TOPIC_AUTHORIZATION_FAILED, SASL_AUTHENTICATION_FAILED = 3, 29, 58


class Mock:
    """The mock cluster, of one broker, through librdkafka's C interface (rdkafka_mock.h)."""

    def __init__(self, advertised_port: int) -> None:
        bundled = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        library = ctypes.CDLL(str(next(bundled.glob("librdkafka*"), "librdkafka.so.1")))
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(library, name).restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        reason = ctypes.create_string_buffer(512)
        conf = ctypes.c_void_p(library.rd_kafka_conf_new())
        client = ctypes.c_void_p(library.rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, len(reason)))
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
        self._library = library
        bootstrap = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self.port = int(bootstrap.rpartition(":")[2])
        library.rd_kafka_mock_broker_set_host_port(self._cluster, 1, b"127.0.0.1", advertised_port)
        for topic, error in ((b"missing", UNKNOWN_TOPIC_OR_PART), (b"forbidden", TOPIC_AUTHORIZATION_FAILED)):
            library.rd_kafka_mock_topic_set_error(self._cluster, topic, error)

    def answer(self, api: int, errors: list[int]) -> None:
        """Answer the next requests of this API with these errors."""
        array = (ctypes.c_int * len(errors))(*errors)
        count = ctypes.c_size_t(len(errors))
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, ctypes.c_int16(api), count, array)


class Front:
    """What listens at the port."""

    def __init__(self, mock: Mock) -> None:
        self.mock = mock

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", self.mock.port)
        asked_versions: set[bytes] = set()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests((reader, writer), behind, asked_versions))
                both.create_task(self._answers(behind, (reader, writer), asked_versions))
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one side has closed
        finally:
            writer.close()
            behind[1].close()

    async def _requests(self, client: Streams, behind: Streams, asked_versions: set[bytes]) -> None:
        while True:
            frame = await read_frame(client[0])
            (api,), correlation = struct.unpack(">h", frame[:2]), frame[4:8]
            if api == CONTROL:
                self.mock.answer(**json.loads(frame[8:]))
                write_frame(client[1], correlation)
            elif api == SASL_HANDSHAKE:
                write_frame(client[1], correlation + struct.pack(">hih", 0, 1, 5) + b"PLAIN")
            elif api == SASL_AUTHENTICATE:
                right = frame.endswith(b"\0teller\0right")
                error = 0 if right else SASL_AUTHENTICATION_FAILED
                write_frame(client[1], correlation + struct.pack(">hhi", error, -1, 0))
            else:
                if api == API_VERSIONS:
                    asked_versions.add(correlation)
                write_frame(behind[1], frame)
                await behind[1].drain()

    async def _answers(self, behind: Streams, client: Streams, asked_versions: set[bytes]) -> None:
        while True:
            frame = await read_frame(behind[0])
            write_frame(client[1], with_sasl(frame) if frame[:4] in asked_versions else frame)
            await client[1].drain()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)


def with_sasl(answer: bytes) -> bytes:
    """An ApiVersions answer that lists SASL too. The mock knows versions 0 to 2 only: clients that ask for a later one
    are told so (with an error), and ask again for 0."""
    error, count = struct.unpack(">hi", answer[4:10])
    if error:
        return answer
    added = struct.pack(">hhhhhh", SASL_HANDSHAKE, 0, 1, SASL_AUTHENTICATE, 0, 0)
    return answer[:6] + struct.pack(">i", count + 2) + added + answer[10:]


async def main(port: int) -> None:
    server = await asyncio.start_server(Front(Mock(port)).serve, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
