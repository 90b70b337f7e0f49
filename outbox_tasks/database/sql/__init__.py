"""Loads the SQL of this directory: a file for each verb, in psql's own syntax.

A satellite has the files of its own in its own folder `sql/`.

A file names its parameters `:name`, and the schema of the tables `:schema.`; `\\ir other.sql` includes another one. So
it also runs in psql, with `\\set schema public` and a `\\set` for each parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from posixpath import normpath
from typing import Any

from outbox_tasks.errors import UnsupportedDatabase
from outbox_tasks.satellites import satellites

_PARTS = re.compile(
    r"(?P<keep>'(?:[^']|'')*'|\$\$.*?\$\$|::)"  # texts, bodies of functions, casts
    r"|(?P<note>\s*--[^\n]*)"
    r"|(?P<schema>:schema(?:(?P<dot>\.)|(?!\w)))"
    r"|:(?P<name>[a-z_]+)",
    re.DOTALL,
)
_INCLUDED = re.compile(r"^[ ]*\\ir (\S+)\n", re.MULTILINE)


NUMBERED = "numeric_dollar"
"""PostgreSQL's own style of parameters: `$1`, `$2` … Drivers have others. SQLAlchemy calls them by these names."""

MARKED = "qmark"
"""SQLite's style, and that of some drivers for MariaDB: `?`."""

DIALECTS = ("postgresql",)
"""The dialects of the relay's own tables."""

FEEDS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
"""For each dialect that can have feeds, the folder of its own verbs in `feeds/sql/`."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement for PostgreSQL, with its parameters in the style of a driver, and their names in that order."""

    name: str
    text: bytes
    names: tuple[str, ...]

    def values(self, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """The parameters in the order of the text. Raises `KeyError` if one is missing."""
        return [parameters[name] for name in self.names]


def source(name: str) -> str:
    """The text of a file of this folder, such as `claim/due.sql`, or of a satellite's folder `sql`: `feeds/take.sql`.
    Included files are in it."""
    folder, _, verb = name.partition("/")
    return _text(
        f"{folder}/sql/{verb}" if files("outbox_tasks").joinpath(folder, "sql").is_dir() else f"database/sql/{name}"
    )


def schema() -> str:
    """The script that makes the tables of the core and of all satellites."""
    return source("schema.sql") + "".join(source(each.tables) for each in satellites().values() if each.tables)


def _text(path: str) -> str:
    """`path`: of a file, from the package's folder on."""
    text = files("outbox_tasks").joinpath(path).read_text(encoding="utf-8")
    return _INCLUDED.sub(lambda include: _text(normpath(f"{path}/../{include[1]}")), text)


@cache
def statement(name: str, schema: str | None, style: str = NUMBERED, quote: str = '"') -> Statement:
    """The statement of a file, for the tables of a schema; None: those that the connection finds. `style`: of the
    parameters, as in `sqlalchemy.Dialect.paramstyle`. `quote`: what stands around names."""
    text, names = rendered(source(name), schema, style, quote)
    return Statement(name, text.encode(), names)


def rendered(text: str, schema: str | None, style: str = NUMBERED, quote: str = '"') -> tuple[str, tuple[str, ...]]:
    """A text with its parameters in this style and without its comments, and the parameters' names. `pyformat` gets
    `%s`, as `format` does: drivers take both."""
    names: list[str] = []
    if style not in (NUMBERED, MARKED):
        text = text.replace("%", "%%")

    def replaced(match: re.Match[str]) -> str:
        if match["keep"]:
            return match["keep"]
        if match["note"]:
            return ""
        if match["schema"]:
            return "" if schema is None else quoted(schema, quote) + (match["dot"] or "")
        if style != NUMBERED or match["name"] not in names:
            names.append(match["name"])
        if style != NUMBERED:
            return "?" if style == MARKED else "%s"
        return f"${names.index(match['name']) + 1}"

    return _PARTS.sub(replaced, text).strip().rstrip(";"), tuple(names)


UNSUPPORTED = (
    "its dialect is {!r}, and only {} is supported here. The relay's own tables need PostgreSQL, in tests too: see "
    "docs/testing.md. An application whose data is in MySQL, MariaDB or SQLite publishes with Outbox(feed=…): see "
    "docs/feeds.md"
)


def check_dialect(name: str, dialects: Iterable[str] = DIALECTS) -> None:
    """Raises `UnsupportedDatabase` if the statements don't fit the dialect."""
    if name not in dialects:
        raise UnsupportedDatabase(reason=UNSUPPORTED.format(name, ", ".join(dialects)))


def quote_of(dialect: str) -> str:
    """What stands around names in a dialect."""
    return "`" if FEEDS.get(dialect) == "mysql" else '"'


def quoted(schema: str, quote: str = '"') -> str:
    """The name of a schema as SQL has it."""
    return quote + schema.replace(quote, 2 * quote) + quote
