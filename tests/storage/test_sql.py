"""The SQL files, as a server and as a reader see them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from outbox_tasks.database import sql
from tests.storage.conftest import Box, own_box
from tests.verbs import VERBS


@pytest.fixture(scope="module")
def read_only(engine: Engine, postgres_url: str) -> Iterator[Box]:
    """One for all verbs, which do nothing to it."""
    with own_box(engine, postgres_url) as made:
        yield made


@pytest.mark.parametrize("verb", VERBS)
def test_the_server_takes_each_verb_and_it_says_first_what_it_does(read_only: Box, verb: str) -> None:
    read_only.connection.execute(b"DEALLOCATE ALL; PREPARE this AS " + sql.statement(verb, read_only.schema).text)
    assert sql.source(verb).startswith("-- ")


def test_parameters_are_numbered_and_texts_and_casts_are_kept() -> None:
    text = "SELECT :a::text, ':b', 'it''s :c', x.y -- :d\nFROM :schema.t WHERE a = :a AND e = :e;"
    rendered = ("SELECT $1::text, ':b', 'it''s :c', x.y\nFROM \"S\".t WHERE a = $1 AND e = $2", ("a", "e"))
    assert sql.rendered(text, "S") == rendered


def test_each_driver_gets_its_own_style_of_parameters() -> None:
    text = "SELECT :a::text, '5%', 7 % 2 WHERE :b = :a"
    for style in ("pyformat", "format"):
        rendered = ("SELECT %s::text, '5%%', 7 %% 2 WHERE %s = %s", ("a", "b", "a"))
        assert sql.rendered(text, "S", style) == rendered


def test_without_a_schema_the_connection_finds_the_tables() -> None:
    assert sql.rendered("SELECT * FROM :schema.t", None) == ("SELECT * FROM t", ())
