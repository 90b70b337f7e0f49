"""A Kafka broker for the tests: librdkafka's own mock cluster, at a port of our choice.

    python -m tests.contract.servers.kafka_mock PORT CONTROL

The mock takes any port. So this process listens at PORT, makes the mock advertise that port, and passes on what comes.
At CONTROL, a line of JSON tells the mock what to answer next. The topic `missing` does not exist and can't be made;
nobody may write to `forbidden`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
from contextlib import suppress
from pathlib import Path

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


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # one side has closed
        while data := await reader.read(1 << 20):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(port: int, control_port: int) -> None:
    mock = Mock(port)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", mock.port)
        await asyncio.gather(passed_on(reader, requests), passed_on(answers, writer))

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mock.answer(**json.loads(await reader.readline()))
        writer.close()

    await asyncio.start_server(control, "127.0.0.1", control_port)
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        print("ready", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
