"""Statements that the pipe runs all the time, as text for the driver.

SQLAlchemy builds and compiles each of them once, when it first runs. To execute it by SQLAlchemy each time would cost
a worker two or three times as much CPU as the driver itself takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from sqlalchemy import BindParameter, Dialect, Executable
from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg, dialect
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

T = TypeVar("T")


class _Written(PGCompiler_psycopg):
    """Writes the values that are part of a statement into its text. As parameters, they would be sent with each run."""

    def visit_bindparam(self, bindparam: BindParameter[Any], *arguments: Any, **options: Any) -> str:
        options["literal_binds"] = not bindparam.required
        return str(super().visit_bindparam(bindparam, *arguments, **options))  # type: ignore[no-untyped-call]


DIALECT = dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
"""With parameters as PostgreSQL itself has them: the driver sends the text as it is."""
DIALECT.statement_compiler = _Written


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
        """The parameters in the order of the text."""
        return [parameters[name] for name in self._compiled[1]]

    @cached_property
    def _compiled(self) -> tuple[bytes, Sequence[str]]:
        text, names, _ = as_text(self.statement, DIALECT)
        return text.encode(), names or ()


def as_text(statement: Executable, dialect: Dialect) -> tuple[str, Sequence[str] | None, Mapping[str, Any]]:
    """The text of a statement, the order of its parameters (None: they have names), and the values that are part of
    the statement."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    return str(compiled), compiled.positiontup, compiled.params
