"""Plants a bug in a verb: its text is wrong for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from outbox_tasks import sql


@contextmanager
def planted(verb: str, right: str, wrong: str) -> Iterator[None]:
    """Whoever loads `verb` finds `wrong` in the place of `right`."""
    source = sql.source
    assert right in source(verb), f"{verb} has changed"

    def planted_source(name: str) -> str:
        return source(name).replace(right, wrong) if name == verb else source(name)

    sql.statement.cache_clear()
    try:
        with patch.object(sql, "source", planted_source):
            yield
    finally:
        sql.statement.cache_clear()
