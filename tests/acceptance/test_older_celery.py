"""Real workers on the oldest Celery that is supported deliver: its packages lie over the newest, in a directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

OLDEST = ("celery==5.5.*", "kombu==5.5.*", "redis==5.2.*", "click==8.1.*")
"""What stands apart from the newest. Their other requirements are those of the newest, which are here."""


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the older packages."""
    directory = tmp_path_factory.mktemp("older")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    argv = [*pip, "--no-deps", "--no-compile", "--retries", "0", "--timeout", "10", "--target", str(directory), *OLDEST]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    if done.returncode:
        pytest.skip(f"the older packages can't be had here: {done.stderr.strip().splitlines()[-1:]}")
    return directory


@pytest.fixture(scope="module")
def older(relay: Relay, overlay: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """A relay whose processes run on them."""
    made = Relay(tmp_path_factory.mktemp("relay"), relay.values, overlay, *relay.paths, fork=False)
    celery = [sys.executable, "-m", "celery", "-A", "outbox_tasks", "worker", "-l", "INFO"]
    made.worker([*celery, "-Q", "outbox.claim,outbox.maintain", "-P", "solo", "-n", "claim@%h"])
    made.worker([*celery, "-Q", "outbox.publish", "-c", "2", "-n", "publish@%h"])
    made.beat()
    made.ready()
    yield made
    made.close()


def test_it_delivers_retries_and_buries(
    older: Relay, overlay: Path, engine: Engine, rows: Rows, stream: Stream
) -> None:
    def publish(session: Any, payload: Any, to: str = "orders", **options: Any) -> str:
        return str(outbox.publish(session, "order.created", payload, to=to, **options))

    for node in older.nodes[:2]:
        assert " v5.5." in node.logs(), "the banner"

    outbox = Outbox(older.settings)
    with Session(engine) as session, session.begin():
        plain = [publish(session, n) for n in range(300)]
        keyed = [publish(session, n, key="order:42") for n in range(5)]
        again = publish(session, {"fail": 1}, "told")
        never = publish(session, {"refuse": "never"}, "told")
    eventually(lambda: {*plain, *keyed, again} <= set(stream.ids()), 60)
    assert [id for id in stream.ids() if id in keyed] == keyed
    eventually(lambda: rows.state(never) == "dead")
    assert rows.state(again) == "sent"
