"""The SQL that the statements become, kept as text so that a reader sees it and a change shows in a diff.

`python -m tests.golden` writes the files anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.sql import ClauseElement, Executable
from sqlalchemy.sql.compiler import SQLCompiler

from outbox_tasks import breaker, statements
from outbox_tasks.schema import tables

DIRECTORY = Path(__file__).parent
DIALECT = make_url("postgresql+psycopg://").get_dialect()()
_CLAUSES = {
    "DELETE", "FOR", "FROM", "INSERT", "JOIN", "LIMIT", "ORDER", "RETURNING", "SELECT", "SET", "UNION", "UPDATE",
    "USING", "VALUES", "WHERE",
}  # fmt: skip
_TOKEN = re.compile(r"\s+|'(?:[^']|'')*'|%\(\w+\)s|[\w.]+|::|.", re.DOTALL)


def current() -> dict[str, str]:
    """The text of every statement, by the name of its file."""
    t = tables()
    made: dict[str, Executable] = {
        "publish": statements.publish(t),
        "publish_once": statements.publish_once("some_schema"),
        "claim": statements.claim(t),
        "bury_unroutable": statements.bury_unroutable(t),
        "begin": statements.begin(t),
        "settle_done": statements.settle_done(t, archive=True),
        "settle_done_delete": statements.settle_done(t, archive=False),
        "settle_failed": statements.settle_failed(t),
        "release": statements.release(t),
        "admit": breaker.admit(t),
        "untried": breaker.untried(t),
        "tripped": breaker.tripped(t),
        "recovered": breaker.recovered(t),
        "give_back": breaker.give_back(t),
        "pause": breaker.pause(t),
        "resume": breaker.resume(t),
        "states": breaker.states(t),
        "mark": statements.mark(t),
        "forget": statements.forget(t),
        "version": statements.version(t),
        "prepare_archive": statements.prepare_archive("some_schema", 7),
    }
    return {name: rendered(statement) for name, statement in made.items()}


def kept(name: str) -> str:
    """The text in the file of this name."""
    return (DIRECTORY / f"{name}.sql").read_text(encoding="utf-8")


def rendered(statement: Executable) -> str:
    """A statement as PostgreSQL gets it, laid out, with the values of its own under it."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=DIALECT)
    assert isinstance(compiled, SQLCompiler)
    fixed = {name: bind.value for bind, name in compiled.bind_names.items() if not bind.required}
    lines = [f"-- {name} = {value!r}" for name, value in sorted(fixed.items()) if value is not None]
    return "\n".join([_laid_out(str(compiled)) + ";", *lines]) + "\n"


def _laid_out(sql: str) -> str:
    """A clause, a condition, a WHEN or an assignment a line; subqueries indented."""
    tokens: list[str] = _TOKEN.findall(sql)
    lines, line, clause = [], "", ""
    subqueries: list[bool] = []  # for each open parenthesis: is it around a subquery?

    def end_line(extra: int = 0) -> None:
        nonlocal line
        lines.append(line.rstrip())
        line = "  " * (sum(subqueries) + extra)

    for n, token in enumerate(tokens):
        in_query = all(subqueries[-1:])
        if token == "(":
            line += token
            subqueries.append(tokens[n + 1] in ("SELECT", "DELETE") and "FROM" in _inside(tokens[n + 1 :]))
            if subqueries[-1]:
                end_line()
        elif token == ")":
            if subqueries.pop():
                end_line()
            line += token
        elif in_query and token in _CLAUSES and tokens[n - 2] not in ("DELETE", "FOR", "UNION ALL"):
            end_line()
            line += token
            clause = token
        elif in_query and token in ("AND", "WHEN", "ELSE"):
            end_line(2 if token != "AND" else 1)
            line += token
        elif not token.isspace():
            line += token
        elif line.strip():
            line += " "
        if token == "," and in_query and clause == "SET":
            end_line(1)
    end_line()
    return "\n".join(line for line in lines if line)


def _inside(tokens: list[str]) -> list[str]:
    """The tokens up to the parenthesis that closes."""
    depth = 0
    for n, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth < 0:
            return tokens[:n]
    return tokens
