"""`outbox-tasks demo` as people start it: what it counts, and that it leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from outbox_tasks.local.demo_report import counted, show, verdict

ORDERS = 300


@pytest.mark.timeout(300)
def test_every_committed_order_arrives_and_none_that_was_rolled_back(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "outbox.toml").write_text('database_schema = "elsewhere"')
    # Settings that are not meant for the demo, and a broker that Celery would prefer.
    others = {"OUTBOX_SINGLES": "7", "OUTBOX_DATABASE_SCHEMA": "nowhere", "CELERY_BROKER_URL": "redis://nowhere"}
    argv = [sys.executable, "-m", "outbox_tasks", "demo", "--json", "--orders", str(ORDERS)]
    family: set[psutil.Process] = set()
    with (tmp_path / "out").open("w") as out:
        demo = subprocess.Popen(argv, stdout=out, cwd=tmp_path, env={**os.environ, "TMPDIR": str(temporary), **others})
        while demo.poll() is None:
            family |= {*psutil.Process(demo.pid).children(recursive=True)}
            time.sleep(0.25)
    figures = json.loads((tmp_path / "out").read_text())
    assert demo.returncode == 0, figures
    assert (figures["committed"], figures["rolled_back"]) == (ORDERS, ORDERS // 10)
    assert (figures["delivered"], figures["dead"]) == (ORDERS - 1, 1)
    assert figures["retried"] > 0
    assert figures["killed"] > 0
    assert len(family) > 5
    assert not [process for process in family if process.is_running()]
    assert list(temporary.iterdir()) == [], "of a worker that is killed, too"


MESSAGES: dict[str, tuple[str, str | None]] = {
    "1": ("sent", None), "2": ("sent", "unsettled"), "3": ("dead", "bad"), "5": ("sent", "connection"),
}  # fmt: skip
ARRIVED = ["1", "2", "2", "5", "5", "5"]


def figures(messages: Any = MESSAGES, arrived: Any = ARRIVED, killed: int = 5) -> dict[str, int]:
    return {**counted({"1", "2", "3", "5"}, {"4"}, messages, arrived), "killed": killed, "failures": 9}


def test_a_verdict_says_what_is_wrong_and_what_could_not_be_shown() -> None:
    output = io.StringIO()
    show(figures(), Console(file=output, width=100))
    assert (figures()["retried"], figures()["duplicates"], figures()["delivered"]) == (2, 3, 3)
    assert output.getvalue().endswith("✓ Nothing was lost, and nothing that was rolled back was delivered.\n")
    wrong = {
        "✗ Committed, yet missing at the destination: 1": figures(arrived=ARRIVED[1:]),
        "✗ Delivered, though nobody had committed them: 1": figures(arrived=[*ARRIVED, "4"]),
        "✗ Arrived more than once, without a recorded cause: 1": figures(arrived=[*ARRIVED, "1"]),
        "✗ One message can't be delivered, and there are dead letters: 2": figures({**MESSAGES, "2": ("dead", "bad")}),
        "! Still on their way: 1 messages. Is the machine busy?": figures({**MESSAGES, "3": ("retrying", "bad")}),
        "! No publish worker was met while it was sending, to be killed": figures(killed=0),
    }
    assert {text: verdict(given) for text, given in wrong.items()} == {text: [text] for text in wrong}
