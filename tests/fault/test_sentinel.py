"""Redis Sentinel as the broker: after a failover the workers, beat and the nudge find the new master."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.binaries import valkey_server
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child, Group
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import UNHURRIED, check, destinations, drained

SENTINEL = """
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor shop 127.0.0.1 {master} 1
sentinel down-after-milliseconds shop 1000
sentinel failover-timeout shop 5000
"""


class Watched:
    """A master, its replica, and a sentinel that watches them."""

    def __init__(self, directory: Path, group: Group) -> None:
        self.ports = {name: free_port() for name in ("master", "replica", "sentinel")}
        plain = ["--bind", LOOPBACK, "--dir", str(directory), "--save", ""]
        self.master = self._start(group, "master", [*plain, "--port", str(self.ports["master"])])
        follow = ["--replicaof", LOOPBACK, str(self.ports["master"]), "--repl-diskless-sync-delay", "0"]
        self._start(group, "replica", [*plain, "--port", str(self.ports["replica"]), *follow])
        eventually(lambda: self.ask("replica", "INFO", "replication").get("master_link_status") == "up")
        path = directory / "sentinel.conf"
        path.write_text(SENTINEL.format(port=self.ports["sentinel"], directory=directory, master=self.ports["master"]))
        self._start(group, "sentinel", [str(path), "--sentinel"])
        eventually(lambda: self.ask("sentinel", "SENTINEL", "REPLICAS", "shop"))

    def _start(self, group: Group, name: str, options: list[str]) -> Child:
        return group.start(name, [str(valkey_server()), *options])

    def ask(self, name: str, *command: str) -> Any:
        with redis.Redis(host=LOOPBACK, port=self.ports[name]) as client, suppress(redis.RedisError):
            return client.execute_command(*command)
        return {}

    @property
    def url(self) -> str:
        return f"sentinel://{LOOPBACK}:{self.ports['sentinel']};sentinel://{LOOPBACK}:{free_port()}/0"


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Group() as group:
        yield Watched(tmp_path, group)


@pytest.fixture
def values(values: dict[str, Any], watched: Watched, stream: Stream) -> dict[str, Any]:
    options = {"broker_url": watched.url, "broker_transport_options": {"master_name": "shop"}}
    return {**values, **UNHURRIED, **options, "destinations": destinations(stream)}


def test_after_a_failover_all_go_on_with_the_new_master(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, watched: Watched
) -> None:
    outbox = Outbox(relay.settings)

    def published() -> str:
        with Session(engine) as session, session.begin():
            return str(outbox.publish(session, "order.created", {}, to="orders"))

    def arrives() -> bool:
        """Whether one more message arrives soon. An overloaded machine may lose its nudge; then the next one wakes the
        claim for both."""
        ids.append(published())
        with suppress(AssertionError):
            return bool(eventually(lambda: ids[-1] in stream.ids(), 15))
        return False

    workers = [relay.claim(), relay.publish()]
    beat = relay.beat()
    relay.ready()
    ids = [*rows.insert(50), published()]
    drained(rows)
    watched.master.kill()
    ids += rows.insert(200)
    ids.append(published())
    drained(rows)
    beat.teardown()
    for _ in range(3):  # without beat the nudge alone wakes the claim
        eventually(arrives)
    drained(rows)
    assert check(rows, stream, ids) == 0
    assert all(worker.alive for worker in workers)
