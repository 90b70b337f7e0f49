"""A server that speaks AMQP 1.0 as Azure Service Bus does, as far as senders go, with the codec of Azure's client:

    python -m tests.contract.servers.service_bus PORT PLAIN CONTROL CERTIFICATE

At PORT with TLS, at PLAIN without, as the emulator does.

Every queue or topic is there, but for names that begin with `missing`; for `status-NNN` every token is answered with
NNN. One that begins with `sessions` takes only messages with a session, one with `partitioned` no batch with several
partition keys. As in Azure, a token for the queue must be put to `$cbs` first, a batch is taken or refused as a whole,
and what is larger than a message may be ends the link.

A message whose subject is `reject CONDITION`, `detach CONDITION` or `close CONDITION` is refused with this error, or
ends the link or the connection with it; `silent` has no answer. Without a CONDITION it is `amqp:…-forced`.

At the port CONTROL, a line of JSON is answered with one: `{"told": place}` with the deliveries of a place, each a list
of base64 messages, and `{"drop": place}` after all links to it were ended, as Azure does with idle ones.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import struct
import sys
import time
from collections import defaultdict
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus, urlsplit

from azure.servicebus._pyamqp import performatives as amqp
from azure.servicebus._pyamqp._decode import decode_frame, decode_payload
from azure.servicebus._pyamqp._encode import encode_frame, encode_payload
from azure.servicebus._pyamqp.endpoints import Source, Target
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.message import Message, Properties
from azure.servicebus._pyamqp.outcomes import Accepted, Rejected

POLICY, KEY = "teller", "c2VjcmV0/with+signs="
TOKEN = "header.payload.signature"
"""One that Microsoft Entra would have issued."""
LARGEST = 262_144
"""Bytes of a message, or of a batch, as in the standard tier."""
BATCH_FORMAT = 0x80013700
PLENTY = 2**31 - 1
"""Of frames and of messages: a client is never told to wait."""

deliveries: dict[str, list[list[bytes]]] = defaultdict(list)
links: dict[str, set[tuple[Connection, int]]] = defaultdict(set)


class Refused(Exception):
    """A delivery that is refused, with its error."""

    def __init__(self, condition: str, description: str, ends: str = "reject") -> None:
        super().__init__(description)
        self.ends, self.error = ends, error(condition, description)


def error(condition: str, description: str) -> Any:
    return AMQPError(condition.encode(), description)


def text(value: Any) -> str:
    """The codec leaves texts as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value or "")


class Connection:
    """One client: one session at a time is enough for what we serve."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.channel = 0
        self.allowed: set[str] = set()
        self.targets: dict[int, str] = {}
        self.parts: dict[int, tuple[list[Any], bytearray]] = {}
        self.answers, self.answered = 0, 0
        """The handle of the link on which `$cbs` answers, and how often it has."""

    async def serve(self) -> None:
        try:
            await self.shake_hands()
            while True:
                code, values = await self.read()
                self.act(code, values)
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
            self.writer.write(header)
            self.write(amqp.SASLMechanism, kind=b"\x01", sasl_server_mechanisms=[b"ANONYMOUS", b"EXTERNAL"])
            await self.read()
            self.write(amqp.SASLOutcome, kind=b"\x01", code=0)
            header = await self.reader.readexactly(8)
        if header != b"AMQP\x00\x01\x00\x00":
            raise ConnectionError("this is not AMQP 1.0")
        self.writer.write(header)

    async def read(self) -> tuple[int, list[Any]]:
        while True:
            size, offset, _, channel = struct.unpack(">IBBH", await self.reader.readexactly(8))
            body = await self.reader.readexactly(size - 8)
            if body:  # an empty frame only says that somebody is there
                self.channel = channel
                return decode_frame(memoryview(body)[offset * 4 - 8 :])

    def write(self, frame: Any, kind: bytes = b"\x00", **values: Any) -> None:
        header, body = encode_frame(frame(**{**dict.fromkeys(frame._fields), **values}), frame_type=kind)
        self.writer.write(header + struct.pack(">H", self.channel) + (body or b""))

    def act(self, code: int, values: list[Any]) -> None:
        if code == amqp.OpenFrame._code:  # type: ignore[attr-defined]
            self.write(
                amqp.OpenFrame, container_id="service bus", max_frame_size=65_536, channel_max=99, idle_timeout=240_000
            )
        elif code == amqp.BeginFrame._code:  # type: ignore[attr-defined]
            windows = {"incoming_window": PLENTY, "outgoing_window": PLENTY, "handle_max": 255}
            self.write(amqp.BeginFrame, remote_channel=self.channel, next_outgoing_id=1, **windows)
        elif code == amqp.AttachFrame._code:  # type: ignore[attr-defined]
            self.attach(*values[:3], source=values[5], target=values[6])
        elif code == amqp.TransferFrame._code:  # type: ignore[attr-defined]
            self.transfer(values)
        elif code == amqp.DetachFrame._code:  # type: ignore[attr-defined]
            self.forget(values[0])
            self.write(amqp.DetachFrame, handle=values[0], closed=True)
        elif code == amqp.EndFrame._code:  # type: ignore[attr-defined]
            self.write(amqp.EndFrame)
        elif code == amqp.CloseFrame._code:  # type: ignore[attr-defined]
            self.write(amqp.CloseFrame)
            self.writer.close()

    def attach(self, name: bytes, handle: int, receives: bool, *, source: Any, target: Any) -> None:
        place = unquote(urlsplit(text((source if receives else target)[0])).path).strip("/")
        refused = None
        if place != "$cbs" and place not in self.allowed:
            refused = error("amqp:unauthorized-access", f"Unauthorized access. 'Send' claim(s) are required. {place}")
        elif place.startswith("missing"):
            refused = error("amqp:not-found", f"The messaging entity '{place}' could not be found.")
        ends = None if refused else (Source(address="a"), Target(address="a"))
        self.write(
            amqp.AttachFrame, name=text(name), handle=handle, role=not receives, send_settle_mode=2,
            rcv_settle_mode=0, source=ends and ends[0], target=ends and ends[1], max_message_size=LARGEST,
            initial_delivery_count=0 if receives else None,
        )  # fmt: skip
        if refused is not None:
            self.write(amqp.DetachFrame, handle=handle, closed=True, error=refused)
        elif receives:
            self.answers = handle
        else:
            self.targets[handle] = place
            links[place].add((self, handle))
            self.write(
                amqp.FlowFrame, next_incoming_id=0, incoming_window=PLENTY, next_outgoing_id=1,
                outgoing_window=PLENTY, handle=handle, delivery_count=0, link_credit=PLENTY,
            )  # fmt: skip

    def forget(self, handle: int) -> None:
        links[self.targets.pop(handle, "")].discard((self, handle))
        self.parts.pop(handle, None)

    def transfer(self, values: list[Any]) -> None:
        """One frame of a delivery; only its first tells what it is."""
        handle, more = values[0], values[5]
        if handle not in self.targets:
            return  # sent before the client knew that its link had been ended
        first, data = self.parts.setdefault(handle, (values, bytearray()))
        data += values[-1]
        if more:
            return
        del self.parts[handle]
        try:
            if self.delivered(self.targets[handle], first[3], bytes(data)):
                self.settle(first[1], Accepted())
        except Refused as refused:
            if refused.ends == "close":
                self.write(amqp.CloseFrame, error=refused.error)
            elif refused.ends == "detach":
                self.forget(handle)
                self.write(amqp.DetachFrame, handle=handle, closed=True, error=refused.error)
            else:
                self.settle(first[1], Rejected(refused.error))

    def settle(self, number: int, state: Any) -> None:
        self.write(amqp.DispositionFrame, role=True, first=number, last=number, settled=True, state=state)

    def delivered(self, place: str, form: int | None, data: bytes) -> bool:
        """Whether it is to be answered. Raises `Refused`."""
        delivery = decode_payload(memoryview(data))
        if place == "$cbs":
            self.put_token(delivery)
            return True
        if len(data) > LARGEST:
            size = f"The received message (size:{len(data)} bytes) exceeds the limit ({LARGEST} bytes)"
            raise Refused("amqp:link:message-size-exceeded", size, ends="detach")
        raw: list[Any] = list(delivery.data or ()) if form == BATCH_FORMAT else [data]
        messages = [decode_payload(memoryview(each)) for each in raw]
        answered = all(self.checked(place, message) for message in messages)
        keys = {(m.message_annotations or {}).get(b"x-opt-partition-key") for m in (delivery, *messages)}
        if place.startswith("partitioned") and len(keys) > 1:
            raise Refused("amqp:not-allowed", "Batched messages must have one session or partition key.")
        if answered:
            deliveries[place].append(raw)
        return answered

    def checked(self, place: str, message: Message) -> bool:
        """Whether this message is to be answered. Raises `Refused`."""
        properties: Any = message.properties or Properties()
        how, _, condition = text(properties.subject).partition(" ")
        if how in ("reject", "detach", "close"):
            forced = {"detach": "amqp:link:detach-forced", "close": "amqp:connection:forced"}
            raise Refused(condition or forced.get(how, "amqp:internal-error"), f"{how} was asked for", ends=how)
        if place.startswith("sessions") and properties.group_id is None:
            raise Refused("amqp:not-allowed", "The SessionId was not set on a message, and it cannot be sent.")
        return how != "silent"

    def put_token(self, request: Any) -> None:
        audience = text(request.application_properties[b"name"])
        place = unquote(urlsplit(audience).path).strip("/")
        good = accepted(text(request.value), audience)
        status = int(place[7:10]) if place.startswith("status-") else 202 if good else 401
        if status == 202:
            self.allowed.add(place)
        words = "Accepted" if status == 202 else "InvalidSignature: The token has an invalid signature."
        answer = Message(
            properties=Properties(correlation_id=request.properties.message_id),
            application_properties={"status-code": status, "status-description": words},
            value="",
        )
        number, self.answered = self.answered, self.answered + 1
        self.write(
            amqp.TransferFrame, handle=self.answers, delivery_id=number, delivery_tag=b"%d" % number, message_format=0,
            settled=True, payload=encode_payload(bytearray(), answer),
        )  # fmt: skip


def accepted(token: str, audience: str) -> bool:
    """Whether this is a shared access signature for the audience, made with our key, and not too old."""
    kind, _, rest = token.partition(" ")
    raw = dict(pair.split("=", 1) for pair in rest.split("&") if "=" in pair)
    told = dict(parse_qsl(rest))
    if kind != "SharedAccessSignature" or told.keys() < {"sr", "sig", "se", "skn"} or told["skn"] != POLICY:
        return token == TOKEN
    digest = hmac.new(KEY.encode(), f"{raw['sr']}\n{raw['se']}".encode(), hashlib.sha256).digest()
    covered = audience.lower().startswith(unquote_plus(raw["sr"]).lower())
    return told["sig"] == base64.b64encode(digest).decode() and covered and int(told["se"]) > time.time()


async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        asked = json.loads(line)
        for connection, handle in list(links[asked.get("drop", "")]):
            connection.forget(handle)
            idle = error("amqp:link:detach-forced", "The link is force detached: idle for too long.")
            connection.write(amqp.DetachFrame, handle=handle, closed=True, error=idle)
        told = [[base64.b64encode(m).decode() for m in each] for each in deliveries[asked.get("told", "")]]
        writer.write(json.dumps(told).encode() + b"\n")
        await writer.drain()
    writer.close()


async def main(port: int, plain: int, control_port: int, certificate: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(reader, writer).serve()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=context)
    await asyncio.start_server(serve, "127.0.0.1", plain)
    await asyncio.start_server(control, "127.0.0.1", control_port, limit=1 << 20)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4]), sys.argv[4]))
