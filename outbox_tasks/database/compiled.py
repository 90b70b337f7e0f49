"""Statements that the pipe runs all the time, as text for the driver.

SQLAlchemy builds and compiles each of them once, when it first runs. To execute it by SQLAlchemy each time would cost
a worker two or three times as much CPU as the driver itself takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from sqlalchemy import Dialect, Executable
from sqlalchemy.dialects.postgresql.psycopg import dialect
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

T = TypeVar("T")

DIALECT = dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
"""With parameters as PostgreSQL itself has them: the driver sends the text as it is."""


class Compiled(Generic[T]):
    """A statement, and what makes a value of each row that it returns.

    `binary`: the rows travel in PostgreSQL's binary format, which is cheaper for payloads.
    """

    def __init__(
        self, build: Callable[[], Executable], make: Callable[[Sequence[Any]], T], *, binary: bool = False
    ) -> None:
        self._build, self.make, self.binary = build, make, binary

    @cached_property
    def statement(self) -> Executable:
        """The statement for SQLAlchemy."""
        return self._build()

    @property
    def text(self) -> bytes:
        """The statement for the driver."""
        return self._compiled[0]

    def values(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The parameters in the order of the text, with those that are part of the statement."""
        _, names, constants = self._compiled
        values = {**constants, **parameters}
        return [values[name] for name in names]

    @cached_property
    def _compiled(self) -> tuple[bytes, Sequence[str], Mapping[str, Any]]:
        text, names, constants = as_text(self.statement, DIALECT)
        assert names is not None
        return text.encode(), names, constants


def as_text(statement: Executable, dialect: Dialect) -> tuple[str, Sequence[str] | None, Mapping[str, Any]]:
    """The text of a statement, the order of its parameters (None: they have names), and the values that are part of
    the statement."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    return str(compiled), compiled.positiontup, compiled.params
