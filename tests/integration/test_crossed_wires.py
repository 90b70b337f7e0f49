"""Two relays on one broker: the second refuses to start, and everybody is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from celery import Celery
from click.testing import CliRunner
from sqlalchemy import URL, Engine, make_url

from outbox_tasks import cli
from outbox_tasks.database.activity import CROSSED
from outbox_tasks.errors import CrossedWires
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.operating.problems import Severity, examine
from outbox_tasks.settings import Settings
from outbox_tasks.worker.app import make_app
from outbox_tasks.worker.resources import Resources
from outbox_tasks.worker.start_checks import check
from tests.claims import take
from tests.conftest import MakeSettings, Rows, eventually, make_tables, own_schema
from tests.integration.conftest import environment

Relay = Callable[[Settings], Resources]


@pytest.fixture
def relay() -> Iterator[Relay]:
    """The main process of a worker."""
    with ExitStack() as made:

        def make(settings: Settings) -> Resources:
            app = made.enter_context(make_app(settings))
            made.callback(app.outbox_relay.close)
            return app.outbox_relay  # type: ignore[no-any-return]

        yield make


@pytest.fixture
def mine(settings: MakeSettings, rows: Rows, own_redis: EmbeddedValkey) -> Settings:
    return settings(broker_url=own_redis.url)


@pytest.fixture
def other(settings: MakeSettings, engine: Engine, own_redis: EmbeddedValkey) -> Iterator[Settings]:
    """Another outbox, on the same broker."""
    with own_schema(engine) as name:
        make_tables(engine, name)
        yield settings(broker_url=own_redis.url, database_schema=name)


def crossed(settings: Settings) -> list[str]:
    return [problem.fact for problem in examine(settings, only=["crossed_wires"]).problems]


def claim(resources: Resources) -> str:
    return str(resources.app.tasks["outbox_tasks.claim"]())


def test_the_second_relay_on_a_broker_refuses_and_names_both(mine: Settings, other: Settings, relay: Relay) -> None:
    check(relay(mine))
    check(relay(mine))
    assert crossed(mine) == []
    assert len(crossed(other)) == 1  # before it has started once
    with pytest.raises(CrossedWires) as refused:
        check(relay(other))
    for settings in (mine, other):
        assert f"schema {settings.database_schema}, server " in str(refused.value)
    assert "A relay of this outbox found its stamp" in crossed(other.replace(broker_url=None))[0]
    root = examine(other).problems[0]
    assert root.code == "crossed_wires"
    assert {"no_workers", "no_beat", "no_claims"} <= {problem.code for problem in root.follows}
    assert crossed(mine) == []
    read_only = make_url(str(other.database_url)).update_query_dict({"options": "-c default_transaction_read_only=on"})
    with pytest.raises(CrossedWires):
        check(relay(other.replace(database_url=text_of(read_only), statement_timeout=0)))
    check(relay(other.replace(broker_url=str(other.broker_url).replace("/0", "/1"))))
    assert crossed(other.replace(broker_url=str(other.broker_url).replace("/0", "/1"))) == []


def test_an_outbox_that_was_moved_adopts_the_broker(
    mine: Settings, other: Settings, relay: Relay, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that is left at the old place claims nothing more, and says why, until the broker is its own again."""
    working = relay(mine)
    check(working)
    for name, value in environment(other, broker_url=other.broker_url).items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(cli.outbox, ["init", "--adopt-broker"], prog_name="outbox-tasks")
    assert done.exit_code == 0, done.output
    assert f"schema {other.database_schema}, server " in done.stdout
    assert f"Before: database outbox, schema {mine.database_schema}, server " in done.stdout
    check(relay(other))
    assert crossed(other) == []
    rows.insert()
    assert take(working.store, {"orders": 1})
    assert claim(working) == "crossed wires"
    assert len(crossed(mine)) == 1
    with redis.Redis.from_url(str(mine.broker_url)) as client:
        client.flushdb()
    # The lease of what was lost is over.
    eventually(lambda: claim(working).startswith("claimed 1 singles"), 20)
    assert CROSSED not in [row.kind for row in working.store.ask("report/heartbeats.sql")]


def test_two_settings_that_name_two_places_are_named(
    mine: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_url(str(mine.database_url))
    monkeypatch.chdir(tmp_path)

    def found(database: URL, broker: str) -> list[str]:
        (tmp_path / "outbox.toml").write_text(f'database_url = "{text_of(database)}"\nbroker_url = "{broker}"\n')
        monkeypatch.setenv("OUTBOX_DATABASE_URL", text_of(place))
        monkeypatch.setenv("OUTBOX_BROKER_URL", str(mine.broker_url))
        return [problem.fact for problem in examine(Settings(), only=["two_places"]).everything]

    assert found(place, str(mine.broker_url)) == []
    assert found(place.set(host="localhost"), f"{mine.broker_url};redis://other/0") == []
    assert len(found(place.set(port=1), str(mine.broker_url))) == 1  # nobody knows where that leads
    database, broker = found(place.set(database="template1"), "redis://other/0")
    assert database.startswith("OUTBOX_DATABASE_URL names postgresql://")
    assert "/outbox, and outbox.toml names postgresql://" in database
    assert broker == f"OUTBOX_BROKER_URL names {mine.broker_url}, and outbox.toml names redis://other/0."
    app = Celery(broker="redis://other/1", set_as_current=False)
    problems = examine(mine, app, only=["two_places"]).everything
    assert [problem.fact for problem in problems if problem.severity is not Severity.NOTE] == [
        f"OUTBOX_BROKER_URL names {mine.broker_url}, and the Celery app names redis://other/1."
    ]


def text_of(url: URL) -> str:
    return url.render_as_string(hide_password=False)
