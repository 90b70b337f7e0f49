"""What a worker's processes count. Each test is a process of its own: prometheus-client is set up once in each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
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

FRESH = get_context("forkserver")
FRESH.set_forkserver_preload([__name__])  # so that not each test waits for its imports


def called(function: Callable[[], Any], directory: Path, given: Path | None) -> Any:
    """In the fork of a server that was started by another test, and has the variables of that one."""
    os.environ.pop(VARIABLE, None)
    if given is not None:
        os.environ[VARIABLE] = str(given)
    tempfile.tempdir = str(directory)
    return function()


def fresh(function: Callable[[], Any], directory: Path, given: Path | None = None) -> Any:
    """What a function of this module returns in a process that has imported this module alone. `directory`: where it
    makes temporary ones."""
    with ProcessPoolExecutor(1, mp_context=FRESH) as pool:
        return pool.submit(called, function, directory, given).result()


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


def settle(*verdicts: Verdict, to: str = "orders") -> None:
    signals.settled.send(sender=APP, destination=to, lease="a token", verdicts=verdicts, seconds=0.02)


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


def count_everything() -> Samples:
    """In this process, in one that ends, and in one that is killed."""
    listening()
    settle(
        verdict(Step.SENT), verdict(Step.SENT, age=10.0), verdict(Step.RETRY, "timeout"),
        verdict(Step.DEAD, "http_404"), verdict(Step.DISCARDED, "expired"), verdict(Step.BEHIND, sent=False),
        verdict(Step.OUTAGE, "timeout"), verdict(Step.HANDED),
        verdict(Step.STALE, sent=False), verdict(Step.STALE), verdict(Step.LATER, "http_500"),
    )  # fmt: skip
    in_fork(lambda: settle(*[verdict(Step.SENT)] * 2))
    in_fork(lambda: settle(*[verdict(Step.SENT)] * 3), by=signal.SIGKILL)
    settle(*(verdict(Step.SENT, age=age) for age in (-5.0, float("inf"), float("nan"), 1e12)), to="odd")
    settle(*(verdict(Step.RETRY, f"code_{n}") for n in range(100)), to="odd")
    buried = [Buried(str(n), "a", f"typo{n}", None, "nobody knows it") for n in range(3)]
    expired = Counter({("orders", "unsettled"): 1, ("orders", "lease_expired"): 3})
    tally = Tally(singles=30, drains=4, held_back=True, buried=buried, expired=expired)
    signals.claimed.send(sender=APP, tally=tally, seconds=0.004)
    signals.claimed.send(sender=APP, tally=Tally(), seconds=0.002)
    signals.claimed.send(sender=Celery("another", set_as_current=False), tally=tally, seconds=0.004)
    for code in ("connection", "connection", None):
        signals.breaker_opened.send(sender=APP, destination="orders", code=code, error="x")
    signals.key_blocked.send(sender=APP, destination="orders", key="k", message_id="1", code="x")
    ended = {"task": "shop.pay", "destination": "orders", "state": "SUCCESS", "seconds": 0.5}
    for waited in (2.0, None):
        signals.task_ran.send(sender=APP, waited=waited, **ended)
    Path(os.environ[VARIABLE], "counter_1.db").touch()  # of a process that was killed while it made its file
    return scraped()


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    found: Samples = fresh(count_everything, tmp_path_factory.mktemp("counted"))
    return found


def by(found: Samples, name: str, label: str, destination: str = "orders") -> dict[str, float]:
    return {labels[label]: value for labels, value in found[name] if labels.get("destination") in (destination, None)}


def test_outcomes_codes_attempts_and_times_of_all_processes_are_counted_by_destination(counted: Samples) -> None:
    assert by(counted, "outbox_messages_total", "outcome") == {
        "sent": 7, "handed": 1, "retry": 1, "later": 1, "outage": 1, "dead": 1, "discarded": 1, "behind": 1,
        "stale": 1, "lost": 1,
    }  # fmt: skip
    assert by(counted, "outbox_errors_total", "code") == {"timeout": 2, "http_404": 1, "expired": 1, "http_500": 1}

    def of_orders(name: str) -> float:
        return by(counted, name, "destination")["orders"]

    assert of_orders("outbox_attempts_total") == 14  # not the one behind, nor the one that was not ours
    assert (of_orders("outbox_batch_messages_sum"), of_orders("outbox_send_seconds_count")) == (16, 3)
    buckets = by(counted, "outbox_latency_seconds_bucket", "le")
    assert (buckets["0.1"], buckets["0.25"], buckets["10.0"], buckets["30.0"], buckets["+Inf"]) == (0, 7, 7, 8, 8)
    assert of_orders("outbox_latency_seconds_sum") == pytest.approx(7 * 0.12 + 10.02)


def test_claims_leases_that_ran_out_breakers_blocked_keys_and_tasks_are_counted(counted: Samples) -> None:
    totals = {name: value for name, [(labels, value), *_] in counted.items() if not labels}
    assert totals["outbox_claims_total"] == totals["outbox_claim_seconds_count"] == 2
    assert (totals["outbox_claimed_singles_total"], totals["outbox_claimed_drains_total"]) == (30, 4)
    assert totals["outbox_claims_held_back_total"] == 1
    assert by(counted, "outbox_claimed_again_total", "cause") == {
        "unsettled": 1, "lease_expired": 3, "not_started": 0, "worker_lost": 0,
    }  # fmt: skip
    assert by(counted, "outbox_messages_total", "outcome", "") == {"dead": 3}  # unknown destinations
    assert by(counted, "outbox_errors_total", "code", "") == {"unknown_destination": 3}
    assert by(counted, "outbox_breaker_opened_total", "code") == {"connection": 2, "none": 1}
    assert counted["outbox_keys_blocked_total"] == [({"destination": "orders"}, 1)]
    assert counted["outbox_task_wait_seconds_sum"] == [({"task": "shop.pay"}, 2.0)]
    assert counted["outbox_task_seconds_count"] == [({"task": "shop.pay", "state": "SUCCESS"}, 2)]


def test_odd_ages_and_many_codes_do_no_harm(counted: Samples) -> None:
    assert 0 <= by(counted, "outbox_latency_seconds_sum", "destination", "odd")["odd"] < 1e10
    codes = by(counted, "outbox_errors_total", "code", "odd")
    assert (len(codes), codes["other"], sum(codes.values())) == (41, 60, 100)


def count_late() -> Samples:
    from prometheus_client import Counter as Early

    Early("the_applications_own", "Made before us.", registry=None).inc()
    listening()
    in_fork(lambda: settle(verdict(Step.SENT)))
    return scraped()


def test_an_application_may_import_the_client_first_and_counts_begin_at_zero(tmp_path: Path) -> None:
    found = fresh(count_late, tmp_path)
    outcomes = by(found, "outbox_messages_total", "outcome")
    assert (outcomes["sent"], outcomes["dead"]) == (1, 0)
    assert by(found, "outbox_keys_blocked_total", "destination") == {"orders": 0}


def begin_and_leave() -> tuple[list[str], list[str]]:
    resources = listening()
    during = os.listdir(tempfile.gettempdir())  # noqa: PTH208
    in_fork(resources.close)
    assert os.listdir(tempfile.gettempdir()) == during  # noqa: PTH208
    resources.close()
    return during, os.listdir(tempfile.gettempdir())  # noqa: PTH208


def begin_in_a_given_one() -> str:
    listening()
    settle(verdict(Step.SENT))
    return os.environ[VARIABLE]


def test_the_main_process_removes_its_directory_but_no_given_one(tmp_path: Path) -> None:
    during, after = fresh(begin_and_leave, tmp_path)
    assert [name.startswith("outbox-metrics-") for name in during] == [True]
    assert after == []
    given = tmp_path / "given"
    assert fresh(begin_in_a_given_one, tmp_path, given) == str(given)
    assert {file.name.partition("_")[0] for file in given.glob("*.db")} == {"counter", "histogram"}


WITHOUT = """
import sys
from celery import Celery, signals
from outbox_tasks.errors import NotInstalled
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry import metrics
from outbox_tasks.worker.resources import Resources

def start(**values):
    app = Celery("counted")
    metrics.connect(Resources(app, Settings(**values)))
    signals.worker_init.send(sender=type("Worker", (), {"app": app}))

start()
assert "prometheus_client" not in sys.modules
sys.modules["prometheus_client"] = None  # as if it were not installed
start(monitor_port=0)
try:
    metrics.worker_registry()
except NotInstalled as error:
    print(error)
"""


def test_without_a_monitor_nothing_is_imported_and_without_the_client_it_is_said_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT], capture_output=True, text=True)
    assert "pip install 'outbox-tasks[metrics]'" in done.stdout, done.stderr
