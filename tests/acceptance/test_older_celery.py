"""The oldest Celery that is supported has the internals that we use, and real workers on it deliver. Its packages lie
over the newest, in a directory."""

from __future__ import annotations

import os
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

ROOT = Path(__file__).parents[2]

OLDEST = ("celery==5.5.*", "kombu==5.5.*", "redis==5.2.*", "click==8.1.*")
"""What stands apart from the newest. Their other requirements are those of the newest, which are here."""


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the older packages."""
    directory = tmp_path_factory.mktemp("older")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    argv = [*pip, "--no-deps", "--no-compile", "--timeout", "10", "--target", str(directory), *OLDEST]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    if done.returncode:
        pytest.fail(f"the older packages can't be had: {done.stderr}")
    return directory


def test_it_has_the_internals_that_we_use(overlay: Path) -> None:
    """The same tests as on the newest, and how calls are recorded and apps get the relay."""
    files = [f"tests/unit/test_{name}.py" for name in ("internals", "install", "schedule")]
    script = "import celery, pytest, sys; print(celery.__version__); sys.exit(pytest.main(sys.argv[1:]))"
    argv = [sys.executable, "-c", script, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    environment = {**os.environ, "PYTHONPATH": str(overlay)}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("5.5.")
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


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
