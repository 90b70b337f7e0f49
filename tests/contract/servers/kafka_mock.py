"""A Kafka broker for the tests: librdkafka's own mock cluster, at a port of our choice.

    python -m tests.contract.servers.kafka_mock PORT CONTROL

The mock takes any port. So this process listens at PORT, makes the mock advertise that port, and passes on what comes.
At CONTROL, a line of JSON tells the mock what to answer next, or which token clients must have from now on: then all
connections end. Only clients that sign in (OAUTHBEARER) are asked for it. The topic `missing` does not exist and can't
be made; nobody may write to `forbidden`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka

RD_KAFKA_PRODUCER = 0
UNKNOWN_TOPIC_OR_PART, TOPIC_AUTHORIZATION_FAILED = 3, 29


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


API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
SASL_AUTHENTICATION_FAILED = 58
SASL_VERSIONS = b"".join(struct.pack(">hhh", api, 0, 1) for api in (SASL_HANDSHAKE, SASL_AUTHENTICATE))
OAUTH = struct.pack(">hih", 0, 1, 11) + b"OAUTHBEARER"


async def frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data


class Door:
    """Signs clients in, which the mock can't. https://kafka.apache.org/protocol"""

    def __init__(self) -> None:
        self.token = b""
        self.connections: set[asyncio.StreamWriter] = set()

    def change(self, token: str) -> None:
        self.token = token.encode()
        for connection in self.connections:
            connection.close()

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mock: Any) -> None:
        """Answer a client until it has signed in, or asks for something else."""
        answers, requests = mock
        while True:
            request = await frame(reader)
            api, version, correlation = struct.unpack(">hh4s", request[:8])
            if api == SASL_HANDSHAKE:
                writer.write(framed(correlation + OAUTH))
            elif api == SASL_AUTHENTICATE:
                knows = self.token in request.split(b"Bearer ")[1].split(b"\x01")
                error = 0 if knows else SASL_AUTHENTICATION_FAILED
                writer.write(framed(correlation + struct.pack(">hhi", error, -1, 0) + bytes(8 * version)))
            else:
                requests.write(framed(request))
                if api != API_VERSIONS:
                    return
                answer = await frame(answers)
                if version < 3:
                    count = int.from_bytes(answer[6:10]) + 2
                    writer.write(framed(answer[:6] + count.to_bytes(4) + SASL_VERSIONS + answer[10:]))
                else:  # the count is one more, and each entry has an empty list of tags
                    entries = b"".join(SASL_VERSIONS[at : at + 6] + b"\0" for at in (0, 6))
                    writer.write(framed(answer[:6] + bytes([answer[6] + 2]) + entries + answer[7:]))


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # one side has closed
        while data := await reader.read(1 << 20):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(port: int, control_port: int) -> None:
    mock, door = Mock(port), Door()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        door.connections.add(writer)
        answers, requests = await asyncio.open_connection("127.0.0.1", mock.port)
        with suppress(OSError, asyncio.IncompleteReadError):
            await door.enter(reader, writer, (answers, requests))
            await asyncio.gather(passed_on(reader, requests), passed_on(answers, writer))
        door.connections.discard(writer)
        for each in (writer, requests):
            each.close()

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order = json.loads(await reader.readline())
        if "token" in order:
            door.change(order["token"])
        else:
            mock.answer(**order)
        writer.close()

    await asyncio.start_server(control, "127.0.0.1", control_port)
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        print("ready", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
