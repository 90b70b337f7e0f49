"""What a worker's processes count. Each test is a process of its own: prometheus-client is set up once in each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import celery
import pytest
from celery import Celery

from outbox_tasks import signals
from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.claim import Tally
from outbox_tasks.relay.store.claims import Buried
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry import metrics
from outbox_tasks.telemetry.metrics import VARIABLE
from outbox_tasks.worker.resources import Resources
from tests.contract.messages import message
from tests.exposed import Samples, samples

APP = Celery("counted", set_as_current=False)

Fresh = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


FRESH = get_context("forkserver")
FRESH.set_forkserver_preload([__name__])  # so that not each test waits for its imports


def called(function: Callable[[], Any], variables: dict[str, str]) -> Any:
    """In the fork of a server that was started by another test, and has the variables of that one."""
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    return function()


@pytest.fixture
def fresh(directory: Path) -> Iterator[Fresh]:
    """Calls a function of this module in a process that has imported this module alone; returns, or raises, what it
    does."""
    with ProcessPoolExecutor(1, mp_context=FRESH) as pool:
        yield lambda function: pool.submit(called, function, dict(os.environ)).result()


def listening() -> Resources:
    """A worker's main process, ready to count."""
    resources = Resources(
        APP, Settings(monitor_port=0, broker_url="redis://x", destinations={"orders": {"url": "a://b"}})
    )
    metrics.connect(resources)
    celery.signals.worker_init.send(sender=type("Worker", (), {"app": APP}))
    return resources


def scraped() -> Samples:
    from prometheus_client import generate_latest

    return samples(generate_latest(metrics.worker_registry()))


def verdict(step: Step, code: str | None = None, age: float = 0.1, sent: bool = True) -> Verdict:
    return Verdict(message(1, age=age), step, code=code, sent=sent)


def settle(*verdicts: Verdict, seconds: float = 0.02) -> None:
    signals.settled.send(sender=APP, destination="orders", lease="a token", verdicts=verdicts, seconds=seconds)


def in_fork(work: Callable[[], object], by: int = 0) -> None:
    """Do it in a forked process, which then ends, or ends by a signal."""
    pid = os.fork()
    if not pid:
        try:
            work()
            if by:
                os.kill(os.getpid(), by)
        finally:
            os._exit(1)
    os.waitpid(pid, 0)


def count_outcomes() -> Samples:
    listening()
    settle(
        verdict(Step.SENT), verdict(Step.SENT, age=10.0), verdict(Step.RETRY, "timeout"),
        verdict(Step.DEAD, "http_404"), verdict(Step.DISCARDED, "expired"), verdict(Step.BEHIND, sent=False),
        verdict(Step.OUTAGE, "timeout"), verdict(Step.HANDED),
        verdict(Step.STALE, sent=False), verdict(Step.STALE), verdict(Step.LATER, "http_500"),
    )  # fmt: skip
    settle(*[verdict(Step.SENT)] * 5)
    return scraped()


def test_outcomes_codes_attempts_and_times_are_counted_by_destination(fresh: Fresh) -> None:
    found = fresh(count_outcomes)
    outcomes = {labels["outcome"]: value for labels, value in found["outbox_messages_total"]}
    assert outcomes == {
        "sent": 7, "handed": 1, "retry": 1, "later": 1, "outage": 1, "dead": 1, "discarded": 1, "behind": 1,
        "stale": 1, "lost": 1,
    }  # fmt: skip
    codes = {labels["code"]: value for labels, value in found["outbox_errors_total"]}
    assert codes == {"timeout": 2, "http_404": 1, "expired": 1, "http_500": 1}
    assert found["outbox_attempts_total"] == [({"destination": "orders"}, 14)]  # not those behind, nor the one not ours
    assert found["outbox_batch_messages_sum"] == [({"destination": "orders"}, 16)]
    assert found["outbox_send_seconds_count"] == [({"destination": "orders"}, 2)]
    buckets = {labels["le"]: value for labels, value in found["outbox_latency_seconds_bucket"]}
    assert (buckets["0.1"], buckets["0.25"], buckets["10.0"], buckets["30.0"], buckets["+Inf"]) == (0, 7, 7, 8, 8)
    assert found["outbox_latency_seconds_sum"][0][1] == pytest.approx(7 * 0.12 + 10.02)


def count_nothing() -> Samples:
    listening()
    return scraped()


def test_counts_begin_at_zero(fresh: Fresh) -> None:
    found = fresh(count_nothing)
    assert ({"destination": "orders", "outcome": "dead"}, 0) in found["outbox_messages_total"]
    assert ({"destination": "orders", "cause": "unsettled"}, 0) in found["outbox_claimed_again_total"]


def count_beside_a_killed_process() -> Samples:
    """It was killed while it made its file."""
    listening()
    Path(os.environ[VARIABLE], "counter_1.db").touch()
    return scraped()


def test_a_file_that_is_not_begun_does_not_stop_a_scrape(fresh: Fresh) -> None:
    assert fresh(count_beside_a_killed_process)["outbox_messages_total"]


def count_claims() -> Samples:
    listening()
    buried = [Buried(str(n), "a", f"typo{n}", None, "nobody knows it") for n in range(3)]
    expired = Counter({("orders", "unsettled"): 1, ("orders", "lease_expired"): 3})
    tally = Tally(singles=30, drains=4, held_back=True, buried=buried, expired=expired)
    signals.claimed.send(sender=APP, tally=tally, seconds=0.004)
    signals.claimed.send(sender=APP, tally=Tally(), seconds=0.002)
    signals.claimed.send(sender=Celery("another", set_as_current=False), tally=tally, seconds=0.004)
    for code in ("connection", "connection", None):
        signals.breaker_opened.send(sender=APP, destination="orders", code=code, error="x")
    signals.key_blocked.send(sender=APP, destination="orders", key="k", message_id="1", code="x")
    for waited in (2.0, None):
        signals.task_ran.send(
            sender=APP, task="shop.pay", destination="orders", state="SUCCESS", waited=waited, seconds=0.5
        )
    return scraped()


def test_claims_leases_that_ran_out_breakers_and_blocked_keys_are_counted(fresh: Fresh) -> None:
    found = fresh(count_claims)
    totals = {name: value for name, [(labels, value), *_] in found.items() if not labels}
    assert totals["outbox_claims_total"] == totals["outbox_claim_seconds_count"] == 2
    assert (totals["outbox_claimed_singles_total"], totals["outbox_claimed_drains_total"]) == (30, 4)
    assert totals["outbox_claims_held_back_total"] == 1
    assert {labels["cause"]: value for labels, value in found["outbox_claimed_again_total"]} == {
        "unsettled": 1, "lease_expired": 3, "not_started": 0, "worker_lost": 0,
    }  # fmt: skip
    dead = {labels["destination"]: value for labels, value in found["outbox_messages_total"] if value}
    assert dead == {"": 3}
    assert {labels["code"]: value for labels, value in found["outbox_errors_total"]} == {"unknown_destination": 3}
    assert {labels["code"]: value for labels, value in found["outbox_breaker_opened_total"]} == {
        "connection": 2, "none": 1,
    }  # fmt: skip
    assert found["outbox_keys_blocked_total"] == [({"destination": "orders"}, 1)]
    assert found["outbox_task_wait_seconds_sum"] == [({"task": "shop.pay"}, 2.0)]
    assert found["outbox_task_seconds_count"] == [({"task": "shop.pay", "state": "SUCCESS"}, 2)]


def count_odd_ones() -> Samples:
    listening()
    settle(*(verdict(Step.SENT, age=age) for age in (-5.0, float("inf"), float("nan"), 1e12)))
    for n in range(100):
        settle(verdict(Step.RETRY, f"code_{n}"))
    return scraped()


def test_odd_ages_and_many_codes_do_no_harm(fresh: Fresh) -> None:
    found = fresh(count_odd_ones)
    [(_, total)] = found["outbox_latency_seconds_sum"]
    assert 0 <= total < 1e10
    codes = {labels["code"]: value for labels, value in found["outbox_errors_total"]}
    assert (len(codes), codes["other"], sum(codes.values())) == (41, 60, 100)


def count_in_forks() -> Samples:
    listening()
    settle(verdict(Step.SENT))
    in_fork(lambda: settle(verdict(Step.SENT), verdict(Step.SENT)))
    in_fork(lambda: settle(*[verdict(Step.SENT)] * 10), by=signal.SIGKILL)
    return scraped()


def test_a_scrape_adds_up_all_processes_also_killed_ones(fresh: Fresh) -> None:
    found = fresh(count_in_forks)
    assert [each for each in found["outbox_messages_total"] if each[1]] == [
        ({"destination": "orders", "outcome": "sent"}, 13)
    ]
    assert found["outbox_latency_seconds_count"] == [({"destination": "orders"}, 13)]


def count_late() -> Samples:
    from prometheus_client import Counter as Early

    Early("the_applications_own", "Made before us.", registry=None).inc()
    listening()
    in_fork(lambda: settle(verdict(Step.SENT)))
    return scraped()


def test_an_application_may_import_the_client_first(fresh: Fresh) -> None:
    found = fresh(count_late)
    assert [value for _, value in found["outbox_messages_total"] if value] == [1]


def begin_and_leave() -> tuple[list[str], list[str]]:
    resources = listening()
    during = os.listdir(tempfile.gettempdir())  # noqa: PTH208
    in_fork(resources.close)
    assert os.listdir(tempfile.gettempdir()) == during  # noqa: PTH208
    resources.close()
    return during, os.listdir(tempfile.gettempdir())  # noqa: PTH208


def test_the_main_process_removes_its_directory(fresh: Fresh) -> None:
    during, after = fresh(begin_and_leave)
    assert [name.startswith("outbox-metrics-") for name in during] == [True]
    assert after == []


def begin_in_a_given_one() -> str:
    listening()
    settle(verdict(Step.SENT))
    return os.environ[VARIABLE]


def test_a_given_directory_is_used_and_left(fresh: Fresh, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(directory / "given"))
    assert fresh(begin_in_a_given_one) == str(directory / "given")
    assert {file.name.partition("_")[0] for file in (directory / "given").glob("*.db")} == {
        "counter",
        "histogram",
    }


SILENT = """
import sys
from celery import Celery, signals
from outbox_tasks.telemetry import metrics
from outbox_tasks.worker.resources import Resources
from outbox_tasks.settings import Settings

app = Celery("counted")
metrics.connect(Resources(app, Settings()))
signals.worker_init.send(sender=type("Worker", (), {"app": app}))
signals.worker_process_init.send(sender=None)
assert "prometheus_client" not in sys.modules
"""

MISSING = """
import sys

class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "prometheus_client":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocked())
from celery import Celery, signals
from outbox_tasks.telemetry import metrics
from outbox_tasks.errors import NotInstalled
from outbox_tasks.worker.resources import Resources
from outbox_tasks.settings import Settings

app = Celery("counted")
metrics.connect(Resources(app, Settings(monitor_port=0)))
signals.worker_init.send(sender=type("Worker", (), {"app": app}))
try:
    metrics.worker_registry()
except NotInstalled as error:
    print(error)
"""


def test_without_a_monitor_nothing_is_imported() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SILENT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_the_client_the_worker_starts_and_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True)
    assert "pip install 'outbox-tasks[metrics]'" in done.stdout, done.stderr
