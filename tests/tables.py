"""The outbox's tables and views as the database describes them, for statements of tests."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Engine, MetaData, Table
from sqlalchemy.sql import quoted_name

NAMES = {"messages": "outbox_at_work"}
"""Where an attribute is not the name of its table without `outbox_`."""


class Tables:
    """Those in one schema: `tables.audit` is `outbox_audit`, `tables.messages` the view of messages at work."""

    def __init__(self, engine: Engine, schema: str | None) -> None:
        self._engine, self._schema = engine, schema

    def __getattr__(self, name: str) -> Table:
        if name.startswith("_"):
            raise AttributeError(name)
        schema = self._schema and quoted_name(self._schema, True)
        return _table(self._engine, NAMES.get(name, f"outbox_{name}"), schema)


_columns: dict[str, Table] = {}
"""Each table as it was first read: all schemas have the same."""


@cache
def _table(engine: Engine, name: str, schema: str | None) -> Table:
    if name not in _columns:
        _columns[name] = Table(name, MetaData(), schema=schema, autoload_with=engine, resolve_fks=False)
    return _columns[name].to_metadata(MetaData(), schema=schema)
