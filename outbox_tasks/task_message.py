"""A Celery task message as it is stored: what Celery would have handed to the broker, byte for byte.

The body is the outbox message's payload. The rest, its envelope, is JSON in the header `ENVELOPE`, written and read
with kombu's own JSON, which is what brings it through most brokers and keeps times, UUIDs and bytes what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from kombu import Exchange, Queue, binding
from kombu.utils.json import dumps, loads

ENVELOPE = "celery-message"
"""The header of an outbox message that makes it a stored task."""

Described = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """All but the body."""

    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str
    priority: int | None
    mandatory: bool
    declare: list[Described]
    """The queues and exchanges that Celery would have declared before sending."""
    expires: datetime | None
    """Not to be run from then on. A TTL counts from the sending, and is worked out then."""

    def dumps(self) -> str:
        """Raises `TypeError` or `ValueError` for what no broker's JSON could carry."""
        return str(dumps({field.name: getattr(self, field.name) for field in fields(self)}))

    @classmethod
    def loads(cls, text: str) -> TaskMessage:
        """Raises `TypeError`, `ValueError` or `KeyError` if it is not such a text."""
        return cls(**loads(text))

    def entities(self) -> list[Queue | Exchange]:
        """What is to be declared, as kombu's objects."""
        return [_entity(described) for described in self.declare]


def describe(entities: Sequence[Queue | Exchange]) -> list[Described]:
    """Queues and exchanges as plain values; the live objects hold channels."""
    return [
        {"queue" if isinstance(entity, Queue) else "exchange": _said(entity.as_dict(recurse=True))}
        for entity in entities
    ]


def _said(described: Described) -> Described:
    """Without what nobody has said: it is the default again when they are made anew."""
    return {
        name: _said(value) if isinstance(value, dict) and name == "exchange" else value
        for name, value in described.items()
        if value is not None and value != []
    }


def _entity(described: Described) -> Queue | Exchange:
    if "exchange" in described:
        return Exchange(**described["exchange"])
    queue = dict(described["queue"])
    bindings = [_binding(each) for each in queue.pop("bindings", None) or []]
    exchange = queue.pop("exchange", None)
    return Queue(**queue, exchange=Exchange(**exchange) if exchange else None, bindings=bindings)


def _binding(described: Described) -> binding:
    exchange = described.get("exchange")
    return binding(**{**described, "exchange": Exchange(**exchange) if exchange else None})
