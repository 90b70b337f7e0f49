"""The SQL of every statement is as in tests/golden. After a change: `python -m tests.golden`, and read the diff."""

from __future__ import annotations

import inspect

import pytest

from outbox_tasks.database import activity, begin, breaker, inbox, settle, write
from outbox_tasks.database.pieces import check_dialect
from outbox_tasks.errors import UnsupportedDialect
from tests import golden

CURRENT = golden.current()


@pytest.mark.parametrize("name", CURRENT)
def test_the_sql_is_as_recorded(name: str) -> None:
    assert CURRENT[name] == golden.kept(name), "after a wanted change, run: python -m tests.golden"


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in golden.DIRECTORY.glob("*.sql")} == set(CURRENT)


def test_every_statement_is_recorded() -> None:
    for module in (activity, begin, breaker, inbox, settle, write):
        public = {
            name
            for name, made in inspect.getmembers(module, inspect.isfunction)
            if made.__module__ == module.__name__ and not name.startswith("_")
        }
        assert public <= set(CURRENT)


def test_locks_are_skipped_wherever_due_rows_are_picked() -> None:
    """SQLAlchemy would drop the clause without a word on some dialects."""
    for name in ("claim", "bury_unroutable"):
        assert "FOR UPDATE SKIP LOCKED" in CURRENT[name]


@pytest.mark.parametrize("dialect", ["sqlite", "mysql", "mssql", "oracle"])
def test_a_dialect_that_is_not_on_the_list_is_refused(dialect: str) -> None:
    with pytest.raises(UnsupportedDialect, match="Use one of: postgresql"):
        check_dialect(dialect)
