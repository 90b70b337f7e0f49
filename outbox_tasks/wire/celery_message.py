"""A Celery task message as it is stored: what Celery would have handed to the broker, byte for byte.

The body is the outbox message's payload. The rest, its envelope, is JSON in the header `ENVELOPE`, written and read
with kombu's own JSON. Celery's messages pass most brokers in this form, and it keeps the types of times, UUIDs and
bytes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from kombu import Exchange, Producer, Queue, binding
from kombu.exceptions import SerializerNotInstalled
from kombu.serialization import prepare_accept_content
from kombu.utils.json import dumps, loads

from outbox_tasks.model import RUN_HEADER, TASK_HEADER, LeasedMessage, content
from outbox_tasks.settings.destination import Destination

ENVELOPE = TASK_HEADER
"""The header that has it."""

RUN = RUN_HEADER

COMPRESSIONS = {"application/x-gzip", "application/x-bz2", "application/x-lzma", "application/x-brotli",
                "application/zstd"}  # fmt: skip
"""kombu's, whether or not they are installed here."""

JSON = "json"
"""What a destination without the option `accept` accepts."""

CELERYS_OWN = re.compile(r"celeryev\b.*|.*\.pidbox")
"""The exchanges and queues of workers and dashboards for events, commands and answers."""

COPYING_HEADERS = {"cc", "bcc"}
"""Headers for which RabbitMQ sends a copy to other queues."""

NO_PROPERTIES = inspect.signature(Producer.publish).parameters.keys() - {"delivery_mode", "properties", "expiration"}
"""Names that can't be properties. kombu would act upon them, for example serialise or compress the body."""

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
    """The task must not run from then on. A TTL counts from the send, so it is computed then."""
    confirm: bool = False
    """Its row stays until it has run."""

    def dumps(self) -> str:
        """Raises `TypeError` or `ValueError` for what no broker's JSON could carry."""
        return str(dumps({field.name: getattr(self, field.name) for field in fields(self)}))

    @classmethod
    def loads(cls, text: str, accepted: Collection[str] | None = None) -> TaskMessage:
        """Raises any of `cloudevents.UNEXPRESSED` if it is not such a text, or if the content type of its body is not
        accepted. Any writer may have made the row."""
        task = cls(**loads(text))
        for name, kind in KINDS.items():
            if not isinstance(getattr(task, name), kind):
                raise ValueError(f"{name} is {getattr(task, name)!r:.40}")
        if accepted is not None and (refused := task.refusal(accepted)):
            raise ValueError(refused)
        if names := task.properties.keys() & NO_PROPERTIES:
            raise ValueError(f"{', '.join(sorted(names))} can't be a property")
        return task

    def refusal(self, accepted: Collection[str]) -> str | None:
        """Why a relay that accepts these content types would not send it."""
        if self.content_type not in accepted:
            return f"its content type is {self.content_type}, and its destination accepts {', '.join(sorted(accepted))}"
        compression = self.headers.get("compression")
        if compression is not None and compression not in COMPRESSIONS:
            return f"its compression {compression!r:.40} is not known"
        return None

    def misdirection(self, payload: bytes, queues: Collection[str]) -> str | None:
        """Why it must not go where it says. Any writer may have made the row: a command to workers is no task, and a
        destination that names its `queues` has no others."""
        names = [self.exchange, self.routing_key, *_texts(self.declare)]
        if reserved := next((name for name in names if name and CELERYS_OWN.fullmatch(name)), None):
            return f"{reserved[:80]} is for events of workers and for commands to them, not for tasks"
        if copying := sorted(name for name in self.headers if name.lower() in COPYING_HEADERS):
            return f"the header {copying[0]} would send it to other queues too"
        is_plain_json = self.content_type == "application/json" and "compression" not in self.headers
        fields = _fields(payload) if is_plain_json and "task" not in self.headers else self.headers
        if not all(isinstance(fields.get(name), str) for name in ("task", "id")):
            return "it is no task: it has no task and no id"
        if queues and not {self.exchange or self.routing_key, *_named(self.declare)} <= {*queues}:
            return f"it goes to {self.exchange or self.routing_key}, and its destination's queue is {', '.join(queues)}"
        return None

    def entities(self) -> list[Queue | Exchange]:
        """What is to be declared, as kombu's objects."""
        return [_entity(described) for described in self.declare]


KINDS: dict[str, Any] = {
    "content_type": str, "content_encoding": str, "headers": dict, "properties": dict, "exchange": str | None,
    "routing_key": str | None, "priority": int | None, "mandatory": bool | None, "declare": list,
    "expires": datetime | None, "confirm": bool,
}  # fmt: skip


def run_header(message: LeasedMessage, outbox: str, lease: float) -> dict[str, Any]:
    """What the header `RUN` says: the row, its outbox, a digest of this copy, and after how many seconds of silence a
    run is lost."""
    digest = content(message.payload, message.headers)
    return {"id": message.id, "of": outbox, "content": digest, "lease": lease}


def accepted(destination: Destination) -> set[str]:
    """The content types of stored tasks that a `celery://` destination takes, by its option `accept`. Raises
    `ConfigurationError`."""
    names = (destination.option("accept") or JSON).split(",")
    try:
        return set(prepare_accept_content(names))
    except SerializerNotInstalled:
        rule = "accept names serializers of Celery or content types, as in celery://?accept=json,yaml"
        raise destination.unusable(rule) from None


def describe(entities: Sequence[Queue | Exchange]) -> list[Described]:
    """Queues and exchanges as plain values; the live objects hold channels. Without the values that nobody has set: who
    reads it fills in the defaults again."""
    return [
        {
            "queue" if isinstance(entity, Queue) else "exchange": {
                name: value for name, value in entity.as_dict(recurse=True).items() if value is not None
            }
        }
        for entity in entities
    ]


def _entity(described: Described) -> Queue | Exchange:
    if "exchange" in described:
        return Exchange(**described["exchange"])
    queue = dict(described["queue"])
    bindings = [_binding(each) for each in queue.pop("bindings", [])]
    exchange = queue.pop("exchange", None)
    return Queue(**queue, exchange=Exchange(**exchange) if exchange else None, bindings=bindings)


def _fields(payload: bytes) -> Described:
    """The fields of a task of Celery's first protocol, which are in its body."""
    body = loads(payload)
    return body if isinstance(body, dict) else {}


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _named(declare: Sequence[Described]) -> set[str]:
    """The queues that are declared."""
    return {str(described["queue"].get("name")) for described in declare if "queue" in described}


def _binding(described: Described) -> binding:
    exchange = described.get("exchange")
    return binding(**{**described, "exchange": Exchange(**exchange) if exchange else None})
