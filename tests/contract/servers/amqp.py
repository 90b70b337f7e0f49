"""AMQP 1.0 as bytes: what the server `service_bus.py` reads and writes. Written from the specification, and on purpose
not with the client's own code, which would agree with itself."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Performatives, and the sections and states that are told by their number too.
MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR, ACCEPTED, REJECTED, SOURCE, TARGET = 0x1D, 0x24, 0x25, 0x28, 0x29
HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)

FIXED: dict[int, str] = {
    0x50: ">B", 0x51: ">b", 0x52: ">B", 0x53: ">B", 0x54: ">b", 0x55: ">b", 0x60: ">H", 0x61: ">h", 0x70: ">I",
    0x71: ">i", 0x72: ">f", 0x80: ">Q", 0x81: ">q", 0x82: ">d", 0x83: ">q",
}  # fmt: skip
CONSTANT = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
NULL = b"\x40"


class Symbol(str):
    """A symbol, which is not a string."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970."""

    __slots__ = ()


class Described(NamedTuple):
    """A value with a type of the protocol's own."""

    code: Any
    value: Any


class Reader:
    """Takes values off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise ValueError("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)

    def value(self) -> Any:
        return self.of(self.take(1)[0])

    def of(self, constructor: int) -> Any:
        if constructor == 0:
            return Described(self.value(), self.value())
        if constructor in CONSTANT:
            return CONSTANT[constructor]
        if constructor == 0x56:
            return self.take(1) == b"\x01"
        if constructor in FIXED:
            form = FIXED[constructor]
            (number,) = struct.unpack(form, self.take(struct.calcsize(form)))
            return Timestamp(number) if constructor == 0x83 else number
        if constructor == 0x98:
            return self.take(16)
        wide = constructor & 0x10
        size = int.from_bytes(self.take(4 if wide else 1))
        kind = constructor & ~0x10
        if kind in (0xA0, 0xA1, 0xA3):
            data = self.take(size)
            return data if kind == 0xA0 else data.decode() if kind == 0xA1 else Symbol(data.decode("ascii"))
        inner = Reader(self.take(size))
        count = int.from_bytes(inner.take(4 if wide else 1))
        if kind == 0xE0:
            element = inner.take(1)[0]
            return [inner.of(element) for _ in range(count)]
        if kind not in (0xC0, 0xC1):
            raise ValueError(f"there is no type {constructor:#x}")
        values = [inner.value() for _ in range(count)]
        return values if kind == 0xC0 else dict(zip(values[::2], values[1::2], strict=True))


def fields(value: Any, count: int) -> list[Any]:
    """The fields of a composite value; those left out at its end are null."""
    found = list(value.value)
    return found + [None] * (count - len(found))


def sections(message: bytes) -> list[Described]:
    """The sections of a message, in order."""
    reader, found = Reader(message), []
    while reader.at < len(message):
        section = reader.value()
        if not isinstance(section, Described) or section.code not in range(HEADER, FOOTER + 1):
            raise ValueError("it is not a section of a message")
        found.append(section)
    return found


def ubyte(number: int) -> bytes:
    return b"\x50" + struct.pack(">B", number)


def ushort(number: int) -> bytes:
    return b"\x60" + struct.pack(">H", number)


def uint(number: int) -> bytes:
    return b"\x70" + struct.pack(">I", number)


def integer(number: int) -> bytes:
    return b"\x71" + struct.pack(">i", number)


def ulong(number: int) -> bytes:
    return b"\x80" + struct.pack(">Q", number)


def boolean(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def binary(data: bytes) -> bytes:
    return b"\xb0" + struct.pack(">I", len(data)) + data


def string(text: str) -> bytes:
    data = text.encode()
    return b"\xb1" + struct.pack(">I", len(data)) + data


def symbol(text: str) -> bytes:
    data = text.encode("ascii")
    return b"\xb3" + struct.pack(">I", len(data)) + data


def symbols(texts: Iterable[str]) -> bytes:
    """An array of symbols."""
    data = [text.encode("ascii") for text in texts]
    body = struct.pack(">I", len(data)) + b"\xb3" + b"".join(struct.pack(">I", len(each)) + each for each in data)
    return b"\xf0" + struct.pack(">I", len(body)) + body


def listed(*values: bytes) -> bytes:
    body = struct.pack(">I", len(values)) + b"".join(values)
    return b"\xd0" + struct.pack(">I", len(body)) + body


def mapped(values: Mapping[bytes, bytes]) -> bytes:
    body = struct.pack(">I", 2 * len(values)) + b"".join(key + value for key, value in values.items())
    return b"\xd1" + struct.pack(">I", len(body)) + body


def described(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes([code]) + value


def composite(code: int, *values: bytes) -> bytes:
    return described(code, listed(*values))


def error(condition: str, description: str) -> bytes:
    # With the third field: Azure's client waits for ever if it is left out, as the protocol would allow.
    return composite(ERROR, symbol(condition), string(description), NULL)


def frame(channel: int, body: bytes = b"", kind: int = 0) -> bytes:
    """A frame; without a body, it only says that somebody is there."""
    return struct.pack(">IBBH", 8 + len(body), 2, kind, channel) + body
