"""A declared event: its type, the model of its payloads, and how a payload is checked against it."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from outbox_tasks.errors import InvalidArgument, InvalidEvent
from outbox_tasks.text import short

Schema = dict[str, Any]


class Event:
    """An event type and the model of its payloads: a Pydantic model, a dataclass or a TypedDict."""

    def __init__(self, event_type: str, model: Any) -> None:
        self.event_type, self.model = event_type, model
        self._prepare()

    def checked(self, payload: Any) -> Any:
        """The payload as JSON values: of an instance of the model, or of values that fit it. Raises `InvalidEvent`."""
        try:
            return self._as_json(payload)
        except (ValueError, TypeError) as error:  # the errors of pydantic and msgspec are ValueErrors
            raise InvalidEvent(event_type=self.event_type, model=self.model.__name__, reason=_reason(error)) from error

    def _prepare(self) -> None:
        try:
            self._adapter = TypeAdapter(self.model)
            self._adapter.json_schema(mode="serialization")
        except (PydanticUserError, TypeError) as error:
            rule = f"can't describe a payload ({str(error).splitlines()[0]})"
            raise InvalidArgument(argument="model", value=short(self.model), rule=rule) from error
        self._is_plain = dataclasses.is_dataclass(self.model) and not hasattr(self.model, "__pydantic_validator__")

    def _as_json(self, payload: Any) -> Any:
        instance = self._adapter.validate_python(payload)
        values = self._adapter.dump_python(instance, mode="json", by_alias=True, warnings="error")
        if self._is_plain:  # an instance was not checked when it was made
            self._adapter.validate_python(values)
        return values

    @staticmethod
    def schemas(events: Sequence[Event], ref_template: str) -> tuple[Mapping[str, Schema], Mapping[str, Schema]]:
        """The JSON Schemas by event type, and the models in them by name. `ref_template` leads to a `{model}`."""
        inputs = [(event.event_type, "serialization", event._adapter) for event in events]
        found, shared = TypeAdapter.json_schemas(inputs, ref_template=ref_template)  # type: ignore[arg-type]
        return {event_type: schema for (event_type, _), schema in found.items()}, shared.get("$defs", {})


class MsgspecEvent(Event):
    """Of a msgspec Struct."""

    def _prepare(self) -> None:
        pass

    def _as_json(self, payload: Any) -> Any:
        import msgspec

        values = msgspec.to_builtins(payload, str_keys=True)
        return msgspec.to_builtins(msgspec.convert(values, self.model, str_keys=True), str_keys=True)

    @staticmethod
    def schemas(events: Sequence[Event], ref_template: str) -> tuple[Mapping[str, Schema], Mapping[str, Schema]]:
        import msgspec

        models = [event.model for event in events]
        template = ref_template.format(model="{name}")
        found, shared = msgspec.json.schema_components(models, ref_template=template)
        return {event.event_type: schema for event, schema in zip(events, found, strict=True)}, shared


def event(event_type: str, model: Any) -> Event:
    """Declare the payloads of an event type. Raises `InvalidArgument`."""
    if not isinstance(model, type):
        rule = "must be a class: a Pydantic model, a dataclass, a TypedDict or a msgspec Struct"
        raise InvalidArgument(argument="model", value=short(model), rule=rule)
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None and issubclass(model, msgspec.Struct):
        return MsgspecEvent(event_type, model)
    return Event(event_type, model)


def _reason(error: Exception) -> str:
    """What does not fit, and where; without the values, which may be secret."""
    if not isinstance(error, ValidationError):
        text = "a value is not of the field's type" if isinstance(error, PydanticSerializationError) else str(error)
        return re.sub(r"(enum value) .*?(?=( - at `[^`]*`)?$)", r"\1", text)  # as msgspec says it
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    more = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    where = ".".join(map(str, first["loc"]))
    return f"{where + ': ' if where else ''}{first['msg']}{more}"
