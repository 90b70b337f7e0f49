"""What docs/log-readers.md says of the table of messages: a publication has it, and nothing of the relay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.integration.own_database import Place, own_database

PAGE = (Path(__file__).parents[2] / "docs/log-readers.md").read_text()
[SQL] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
[PROPERTIES] = re.findall(r"```properties\n(.*?)```", PAGE, re.DOTALL)
DEBEZIUM = dict(line.split("=", 1) for line in PROPERTIES.splitlines())


@pytest.fixture
def place(engine: Engine) -> Iterator[Place]:
    with own_database(engine) as place:
        assert place.command("init", settings=place.settings()).exit_code == 0
        yield place


def test_a_log_reader_sees_each_committed_message_and_nothing_of_the_relay(place: Place) -> None:
    place.run(SQL)
    name = DEBEZIUM["publication.name"]
    kinds = "pubinsert AND pubviaroot AND NOT (puballtables OR pubupdate OR pubdelete OR pubtruncate)"
    assert place.ask(f"SELECT {kinds} FROM pg_publication WHERE pubname = '{name}'")
    published = f"pg_publication_tables WHERE pubname = '{name}'"
    assert place.ask(f"SELECT string_agg(tablename, ' ') FROM {published}") == "outbox_messages"
    columns = {*place.ask(f"SELECT array_agg(c) FROM {published.replace(' WHERE', ', unnest(attnames) c WHERE')}")}
    named = {
        field.split(":")[0] for field in DEBEZIUM["transforms.outbox.table.fields.additional.placement"].split(",")
    }
    named |= {value for name, value in DEBEZIUM.items() if ".table.field.event." in name or ".route.by." in name}
    assert named <= columns
    assert {*re.findall(r"`(\w+)`", PAGE.partition("| column | |")[2].partition("\n\n")[0])} == columns
