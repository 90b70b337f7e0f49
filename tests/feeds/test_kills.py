"""Bridges in processes of their own, killed again and again, while applications write: nothing is lost, copied twice,
or out of order."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import uuid4

from outbox_tasks.feeds.source import open_source
from tests.conftest import MakeSettings
from tests.storage.conftest import Box

BRIDGE = """
import json, random, sys, time
from outbox_tasks.feeds.source import open_source
from outbox_tasks.feeds.bridge import bridge
from outbox_tasks.feeds import store as feeds
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
feeds.LEASE_SECONDS, feeds.PAUSE_SECONDS_AT_MOST = 0.2, 0.1  # shorter than a run: leases are lost, and bridges overlap
given, url = json.loads(sys.argv[1]), sys.argv[2]
store = Store.connect(Settings(**given))
source = open_source("shop", url)
look, delete = source.look, source.delete

def looked(most):
    found = look(most)
    time.sleep(random.uniform(0, 0.3))  # so that it dies, or loses its lease, between two steps
    return found

def deleted(rows):
    time.sleep(random.uniform(0, 0.3))
    delete(rows)

source.look, source.delete = looked, deleted
while True:
    bridge(feeds.Feeds(store), source, store.settings)
    time.sleep(0.01)
"""
WRITERS, TRANSACTIONS, EACH, KILLS, KEYS = 4, 150, 5, 25, 7


def write(path: Path, writer: int, kept: list[tuple[str, str]]) -> None:
    """A tenth of the transactions is rolled back."""
    with sqlite3.connect(path, isolation_level=None, timeout=30) as database:
        for n in range(TRANSACTIONS):
            database.execute("BEGIN IMMEDIATE")
            own = [(str(uuid4()), f"key {random.randrange(KEYS)}") for _ in range(EACH)]
            for id, key in own:
                message = json.dumps({"event_type": "a", "destination": "orders", "text": "{}"})
                database.execute(
                    "INSERT INTO outbox_feed (id, ordering_key, message) VALUES (?, ?, ?)", (id, key, message)
                )
            if n % 10 == writer % 10:
                database.execute("ROLLBACK")
            else:
                kept += own  # before the commit: no other writer is in between
                database.execute("COMMIT")
            time.sleep(0.01)


def test_bridges_that_are_killed_lose_nothing_and_copy_nothing_twice(
    box: Box, settings: MakeSettings, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    url = f"sqlite:///{path}"
    source = open_source("shop", url)
    source.init()
    given = settings(database_schema=box.schema).model_dump(
        mode="json", include={"database_url", "database_schema", "broker_url"}
    )
    given["destinations"] = {"orders": {"url": "http://localhost:1"}}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", BRIDGE, json.dumps(given), url])

    kept: list[tuple[str, str]] = []
    writers = [threading.Thread(target=write, args=(path, n, kept)) for n in range(WRITERS)]
    bridges = [start(), start()]
    try:
        for writer in writers:
            writer.start()
        for _ in range(KILLS):
            time.sleep(random.uniform(0.2, 0.9))
            bridges[0].send_signal(random.choice([signal.SIGKILL, signal.SIGSTOP]))
            if len(bridges) > 3:  # the eldest may have been stopped: it goes on, long after its lease
                bridges[-1].send_signal(signal.SIGCONT)
            bridges = [*bridges[1:], start()] if bridges[0].poll() is not None else [*bridges[1:], bridges[0], start()]
            while len(bridges) > 4:
                eldest = bridges.pop(0)
                eldest.send_signal(signal.SIGCONT)
                time.sleep(0.05)
                eldest.kill()
                eldest.wait()
        for writer in writers:
            writer.join()
        for one in bridges:
            one.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        for one in bridges[:-1]:  # on a busy machine several would take the short lease from each other for minutes
            one.kill()
        ends = time.monotonic() + 60
        while source.lag()[0] and time.monotonic() < ends:
            time.sleep(0.1)
        time.sleep(1)
    finally:
        for one in bridges:
            one.kill()
            one.wait()
    copied = [(str(id), key) for id, key in box.rows("SELECT id, key FROM outbox_messages ORDER BY seq")]
    assert source.lag()[0] == 0
    assert len(copied) == len(set(copied)) == len(kept)
    for key in {key for _, key in kept}:
        assert [id for id, its in copied if its == key] == [id for id, its in kept if its == key]
    source.close()
    box.check_books()
