"""What docs/log-readers.md says of the table of messages, on a server that decodes its log."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox, Settings
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.migrations import upgrade
from outbox_tasks.relay.store import Store
from tests.claims import drain_batches
from tests.storage.relaying import Receiver

PAGE = (Path(__file__).parents[2] / "docs/log-readers.md").read_text()
[SQL] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
[PROPERTIES] = re.findall(r"```properties\n(.*?)```", PAGE, re.DOTALL)
DEBEZIUM = dict(line.split("=", 1) for line in PROPERTIES.splitlines())
SLOT = DEBEZIUM["slot.name"]


@pytest.fixture(scope="module")
def site() -> Iterator[Settings]:
    with EmbeddedPostgres(settings={"wal_level": "logical"}) as server:
        settings = Settings(database_url=server.url, destinations={"orders": {"url": "a://b"}})
        with migrating(settings) as connection:
            upgrade(connection)
        yield settings


def connect(site: Settings) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(str(site.database_url).replace("+psycopg", ""), autocommit=True)


def test_a_log_reader_sees_each_committed_message_once_and_nothing_of_the_relay(site: Settings) -> None:
    engine = create_engine(engine_url(str(site.database_url)))
    outbox = Outbox(site)
    with connect(site) as connection:
        connection.execute(SQL.encode())
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        with Session(engine) as session:
            session.begin()
            ids = [str(outbox.publish(session, "order.created", {"id": n}, key="order:1")) for n in range(3)]
            session.commit()
            session.begin()
            outbox.publish(session, "order.created", {"id": "rolled back"})
            session.rollback()
        with closing(Store.connect(site)) as store:
            receiver = Receiver()
            drain_batches(store, {"orders": receiver})
            assert len(receiver.got) == 3
        kinds, relations, inserted = read(connection)
    engine.dispose()
    assert (kinds["I"], kinds["U"] + kinds["D"] + kinds["T"]) == (3, 0)
    assert relations == {"outbox_messages"}
    assert [row["id"] for row in inserted] == ids
    assert [bytes.fromhex(row["payload"][2:]) for row in inserted] == [b'{"id":%d}' % n for n in range(3)]
    assert {row["destination"] for row in inserted} == {"orders"}
    named = {
        field.split(":")[0] for field in DEBEZIUM["transforms.outbox.table.fields.additional.placement"].split(",")
    }
    named |= {value for name, value in DEBEZIUM.items() if ".table.field.event." in name or ".route.by." in name}
    assert named <= inserted[0].keys()
    described = set(re.findall(r"`(\w+)`", PAGE.partition("| column | |")[2].partition("\n\n")[0]))
    assert described == inserted[0].keys()


def read(connection: psycopg.Connection[tuple[object, ...]]) -> tuple[Counter[str], set[str], list[dict[str, str]]]:
    """How many changes of each kind the slot has, into which tables, and the rows. The format is that of
    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html"""
    changes = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', %s)",
        [SLOT, DEBEZIUM["publication.name"]],
    ).fetchall()
    kinds: Counter[str] = Counter()
    relations: dict[int, tuple[str, list[str]]] = {}
    names: set[str] = set()
    rows: list[dict[str, str]] = []
    for [data] in changes:
        assert isinstance(data, bytes)
        kind, body = chr(data[0]), data[1:]
        kinds[kind] += 1
        if kind == "R":
            _, table, rest = body[4:].split(b"\0", 2)
            relations[struct.unpack("!I", body[:4])[0]] = table.decode(), list(attributes(rest[1:]))
        elif kind == "I":
            name, columns = relations[struct.unpack("!I", body[:4])[0]]
            names.add(name)
            rows.append(dict(zip(columns, values(body[5:]), strict=True)))
    return kinds, names, rows


def attributes(data: bytes) -> Iterator[str]:
    [count], data = struct.unpack("!H", data[:2]), data[2:]
    for _ in range(count):
        name, _, rest = data[1:].partition(b"\0")
        data = rest[8:]
        yield name.decode()


def values(data: bytes) -> Iterator[str]:
    [count], data = struct.unpack("!H", data[:2]), data[2:]
    for _ in range(count):
        kind, data = data[:1], data[1:]
        length = struct.unpack("!I", data[:4])[0] if kind == b"t" else None
        yield "" if length is None else data[4 : 4 + length].decode()
        data = data if length is None else data[4 + length :]
