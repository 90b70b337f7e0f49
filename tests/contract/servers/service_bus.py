"""A server that speaks AMQP 1.0 as Azure Service Bus does, as far as senders go:

    python -m tests.contract.servers.service_bus PORT PLAIN CONTROL CERTIFICATE KEY

At PORT with TLS, at PLAIN without, as the emulator does.

Every queue or topic is there, but for names that begin with `missing` and `disabled`, and `forbidden`, for which the
policy has no right; for `status-NNN` every token is answered with NNN. One that begins with `sessions` takes only
messages with a session, one with `partitioned` no batch with several partition keys. As in Azure, a token for the
queue must be put to `$cbs` first, a batch is taken or refused as a whole, and what is larger than a message may be ends
the link.

A message whose subject is `reject CONDITION`, `detach CONDITION` or `close CONDITION` is refused with this error, or
ends the link or the connection with it; `once CONDITION` refuses it for the first time, `silent` has no answer. Without
a CONDITION it is `amqp:…-forced`.

At the port CONTROL, a line of JSON is answered with one: `{"told": place}` with the deliveries of a place, each a list
of base64 messages, and `{"drop": place}` after all links to it were ended, as Azure does with idle ones.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import struct
import sys
from collections import defaultdict
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.contract.servers import amqp
from tests.contract.servers.amqp import NULL, Described, Reader, composite, fields, frame
from tests.contract.servers.shared_access import accepted

LARGEST = 262_144
"""Bytes of a message, or of a batch, as in the standard tier."""
BATCH_FORMAT = 0x80013700
CREDIT = 1000

deliveries: dict[str, list[list[bytes]]] = defaultdict(list)
known: set[tuple[str, str]] = set()
"""Place and id of each message that was looked at."""
links: dict[str, set[tuple[Connection, int]]] = defaultdict(set)


class Refused(Exception):
    """A delivery that is refused, with its error."""

    def __init__(self, condition: str, description: str, ends: str = "reject") -> None:
        super().__init__(description)
        self.condition, self.description, self.ends = condition, description, ends


class Connection:
    """One client: one session at a time is enough for what we serve."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.channel = 0
        self.allowed: set[str] = set()
        self.targets: dict[int, str] = {}
        self.expected = 0
        """The number of the next frame of a transfer, by which the client counts how many it may send."""
        self.counts: dict[int, int] = defaultdict(int)
        self.parts: dict[int, tuple[list[Any], bytearray]] = {}
        self.answers, self.answered = 0, 0
        """The handle of the link on which `$cbs` answers, and how often it has."""

    async def serve(self) -> None:
        try:
            await self.shake_hands()
            while True:
                body, channel = await self.read()
                if body:
                    self.channel = channel
                    reader = Reader(body)
                    performative = reader.value()
                    self.act(performative.code, fields(performative, 14), reader.rest())
                    await self.writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it has gone
        finally:
            for handle in list(self.targets):
                self.forget(handle)
            self.writer.close()

    async def shake_hands(self) -> None:
        header = await self.reader.readexactly(8)
        if header == b"AMQP\x03\x01\x00\x00":
            mechanisms = amqp.symbols(["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"])
            self.writer.write(header + frame(0, composite(amqp.MECHANISMS, mechanisms), kind=1))
            await self.read()
            self.writer.write(frame(0, composite(amqp.SASL_OUTCOME, amqp.ubyte(0)), kind=1))
            header = await self.reader.readexactly(8)
        if header != b"AMQP\x00\x01\x00\x00":
            raise ConnectionError("this is not AMQP 1.0")
        self.writer.write(header)

    async def read(self) -> tuple[bytes, int]:
        size, offset, _, channel = struct.unpack(">IBBH", await self.reader.readexactly(8))
        return (await self.reader.readexactly(size - 8))[offset * 4 - 8 :], channel

    def write(self, code: int, *values: bytes, payload: bytes = b"") -> None:
        self.writer.write(frame(self.channel, composite(code, *values) + payload))

    def act(self, code: int, values: list[Any], payload: bytes) -> None:
        if code == amqp.OPEN:
            self.write(
                amqp.OPEN, amqp.string("service bus"), NULL, amqp.uint(65_536), amqp.ushort(4999), amqp.uint(240_000)
            )
        elif code == amqp.BEGIN:
            self.expected = values[1]
            window = amqp.uint(5000)
            self.write(amqp.BEGIN, amqp.ushort(self.channel), amqp.uint(1), window, window, amqp.uint(255))
        elif code == amqp.ATTACH:
            self.attach(*values[:3], source=values[5], target=values[6])
        elif code == amqp.TRANSFER:
            self.transfer(values, payload)
        elif code == amqp.DETACH:
            self.forget(values[0])
            self.write(amqp.DETACH, amqp.uint(values[0]), amqp.boolean(True))
        elif code == amqp.END:
            self.write(amqp.END)
        elif code == amqp.CLOSE:
            self.write(amqp.CLOSE)
            self.writer.close()

    def attach(self, name: str, handle: int, receives: bool, *, source: Any, target: Any) -> None:
        node = urlsplit(str(fields(source if receives else target, 1)[0]))
        place = unquote(node.path).strip("/")
        refused = self.refusal(place) if place != "$cbs" else None
        ends = [composite(amqp.SOURCE, amqp.string("us" if not receives else place)),
                composite(amqp.TARGET, amqp.string("us" if receives else place))]  # fmt: skip
        if refused is not None:
            ends = [NULL, NULL]
        mode = [amqp.ubyte(2), amqp.ubyte(0)]
        count = [NULL, NULL, amqp.uint(0) if receives else NULL, amqp.ulong(LARGEST)]
        self.write(amqp.ATTACH, amqp.string(name), amqp.uint(handle), amqp.boolean(not receives), *mode, *ends, *count)
        if refused is not None:
            self.write(amqp.DETACH, amqp.uint(handle), amqp.boolean(True), amqp.error(*refused))
        elif receives:
            self.answers = handle
        else:
            self.targets[handle] = place
            links[place].add((self, handle))
            self.counts[handle] = 0
            self.grant(handle)

    def refusal(self, place: str) -> tuple[str, str] | None:
        if place not in self.allowed or place.startswith("forbidden"):
            return "amqp:unauthorized-access", f"Unauthorized access. 'Send' claim(s) are required. {place}"
        if place.startswith("missing"):
            return "amqp:not-found", f"The messaging entity '{place}' could not be found."
        if place.startswith("disabled"):
            return "com.microsoft:entity-disabled", f"The messaging entity '{place}' is currently disabled."
        return None

    def grant(self, handle: int) -> None:
        window = [amqp.uint(self.expected), amqp.uint(5000), amqp.uint(1), amqp.uint(5000)]
        self.write(amqp.FLOW, *window, amqp.uint(handle), amqp.uint(self.counts[handle]), amqp.uint(CREDIT))

    def forget(self, handle: int) -> None:
        links[self.targets.pop(handle, "")].discard((self, handle))
        self.parts.pop(handle, None)

    def transfer(self, values: list[Any], payload: bytes) -> None:
        """One frame of a delivery; only its first tells what it is."""
        handle, more = values[0], values[5]
        self.expected += 1
        if handle not in self.targets:
            return  # sent before the client knew that its link had been ended
        first, data = self.parts.setdefault(handle, (values, bytearray()))
        data += payload
        if more:
            return
        del self.parts[handle]
        number, form = first[1], first[3] or 0
        self.counts[handle] += 1
        try:
            answered = self.delivered(handle, form, bytes(data))
        except Refused as refused:
            wrong = amqp.error(refused.condition, refused.description)
            if refused.ends == "close":
                self.write(amqp.CLOSE, wrong)
            elif refused.ends == "detach":
                self.forget(handle)
                self.write(amqp.DETACH, amqp.uint(handle), amqp.boolean(True), wrong)
            else:
                self.settle(number, composite(amqp.REJECTED, wrong))
        else:
            if answered:
                self.settle(number, composite(amqp.ACCEPTED))
        if handle in self.targets:
            self.grant(handle)

    def settle(self, number: int, state: bytes) -> None:
        self.write(
            amqp.DISPOSITION, amqp.boolean(True), amqp.uint(number), amqp.uint(number), amqp.boolean(True), state
        )

    def delivered(self, handle: int, form: int, data: bytes) -> bool:
        """Whether it is to be answered. Raises `Refused`."""
        place = self.targets[handle]
        if place == "$cbs":
            self.put_token(amqp.sections(data))
            return True
        if len(data) > LARGEST:
            text = f"The received message (size:{len(data)} bytes) exceeds the limit ({LARGEST} bytes)"
            raise Refused("amqp:link:message-size-exceeded", text, ends="detach")
        messages = [section.value for section in amqp.sections(data) if section.code == amqp.DATA]
        messages = messages if form == BATCH_FORMAT else [data]
        answered = all(self.checked(place, amqp.sections(message)) for message in messages)
        keys = {annotation(message, "x-opt-partition-key") for message in (data, *messages)}  # the batch has one too
        if place.startswith("partitioned") and len(keys) > 1:
            raise Refused("amqp:not-allowed", "Batched messages must have one session or partition key.")
        if answered:
            deliveries[place].append(messages)
        return answered

    def checked(self, place: str, sections: list[Described]) -> bool:
        """Whether this message is to be answered. Raises `Refused`."""
        properties = next((fields(section, 13) for section in sections if section.code == amqp.PROPERTIES), [None] * 13)
        how, _, condition = (properties[3] or "").partition(" ")
        first = how == "once" and (place, properties[0]) not in known
        known.add((place, properties[0]))
        if first or how in ("reject", "detach", "close"):
            forced = {"detach": "amqp:link:detach-forced", "close": "amqp:connection:forced"}
            raise Refused(condition or forced.get(how, "amqp:internal-error"), f"{how} was asked for", ends=how)
        if place.startswith("sessions") and properties[10] is None:
            raise Refused("amqp:not-allowed", "The SessionId was not set on a message, and it cannot be sent.")
        return how != "silent"

    def put_token(self, sections: list[Described]) -> None:
        found = {section.code: section for section in sections}
        about = found[amqp.APPLICATION].value
        [request] = fields(found[amqp.PROPERTIES], 1)[:1]
        place = unquote(urlsplit(about["name"]).path).strip("/")
        good = accepted(found[amqp.VALUE].value, about["name"])
        status = int(place[7:10]) if place.startswith("status-") else 202 if good else 401
        if status == 202:
            self.allowed.add(place)
        text = "Accepted" if status == 202 else "InvalidSignature: The token has an invalid signature."
        told = {
            amqp.string("status-code"): amqp.integer(status),
            amqp.string("status-description"): amqp.string(text),
        }
        same = amqp.string(request) if isinstance(request, str) else b"\x98" + request
        answer = composite(amqp.PROPERTIES, *[NULL] * 5, same) + amqp.described(amqp.APPLICATION, amqp.mapped(told))
        answer += amqp.described(amqp.VALUE, NULL)
        number = self.answered
        self.answered += 1
        tag = [amqp.uint(number), amqp.binary(str(number).encode()), amqp.uint(0)]
        self.write(amqp.TRANSFER, amqp.uint(self.answers), *tag, amqp.boolean(True), payload=answer)


def annotation(message: bytes, name: str) -> Any:
    found: list[dict[str, Any]] = [s.value for s in amqp.sections(message) if s.code == amqp.ANNOTATIONS]
    return found[0].get(name) if found else None


async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        asked = json.loads(line)
        if "drop" in asked:
            for connection, handle in list(links[asked["drop"]]):
                connection.forget(handle)
                idle = amqp.error("amqp:link:detach-forced", "The link is force detached: idle for too long.")
                connection.write(amqp.DETACH, amqp.uint(handle), amqp.boolean(True), idle)
        place = asked.get("told", "")
        told = [[base64.b64encode(message).decode() for message in each] for each in deliveries[place]]
        writer.write(json.dumps(told).encode() + b"\n")
        await writer.drain()
    writer.close()


async def main(port: int, plain: int, control_port: int, certificate: str, key: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(reader, writer).serve()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=context)
    await asyncio.start_server(serve, "127.0.0.1", plain)
    await asyncio.start_server(control, "127.0.0.1", control_port, limit=1 << 20)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4]), *sys.argv[4:]))
