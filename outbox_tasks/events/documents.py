"""The declared events as documents: JSON Schemas, and AsyncAPI 3 (its specification: asyncapi.com/docs/reference)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outbox_tasks.events.event import Event, Schema
from outbox_tasks.settings import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"

FORMAT = "application/schema+json;version=draft-2020-12"
"""AsyncAPI's name for this dialect."""


def name_of(event_type: str) -> str:
    """An event type as a key of AsyncAPI or the name of a file: other characters become numbers."""
    return re.sub(r"[^\w.-]", lambda match: f"_{ord(match[0]):x}_", event_type, flags=re.ASCII)


def json_schema(event: Event) -> Schema:
    """The JSON Schema of an event's payloads."""
    schemas, models = _schemas({event.event_type: event}, "#/$defs/{model}")
    shared = {"$defs": models} if models else {}
    return {"$schema": DIALECT, "$id": event.event_type, **schemas[event.event_type], **shared}


def asyncapi(events: Mapping[str, Event], settings: Settings) -> dict[str, Any]:
    """One document with all events. A channel is a destination to which a route leads. It has no address: a
    destination's URL may hold a password."""
    schemas, models = _schemas(events, "#/components/schemas/{model}")
    names = {event_type: name_of(event_type) for event_type in events}
    channels: dict[str, dict[str, str]] = {}
    for event_type, name in names.items():
        route = settings.route(event_type)
        for destination in () if route is None else route.to:
            channels.setdefault(destination, {})[name] = f"#/components/messages/{name}"
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Events", "version": "1"},
        "defaultContentType": "application/json",
        "channels": {
            destination: {"address": None, "messages": {name: {"$ref": ref} for name, ref in refs.items()}}
            for destination, refs in channels.items()
        },
        "components": {
            "messages": {
                names[event_type]: {"name": event_type, "payload": {"schemaFormat": FORMAT, "schema": schema}}
                for event_type, schema in schemas.items()
            },
            "schemas": models,
        },
    }


def _schemas(events: Mapping[str, Event], ref_template: str) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """The schemas by event type, and by name the models that they refer to."""
    schemas: dict[str, Schema] = {}
    models: dict[str, Schema] = {}
    for kind in {type(event): None for event in events.values()}:
        of_kind, shared = kind.schemas([event for event in events.values() if type(event) is kind], ref_template)
        schemas.update(of_kind)
        models.update(shared)
    return schemas, models
