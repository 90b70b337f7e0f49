"""What a worker's processes count. Each test is a process of its own: prometheus-client is set up once in each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from prometheus_client.multiprocess import MultiProcessCollector

from outbox_tasks import signals
from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.claim import Tally
from outbox_tasks.relay.store.claims import Buried
from outbox_tasks.telemetry.metrics import VARIABLE, exposition
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


def listening() -> Any:
    """A worker's main process, ready to count."""
    from outbox_tasks.telemetry.metrics import directory
    from outbox_tasks.telemetry.metrics.workers import WorkerMetrics

    directory.prepare()
    directory.count_here()
    counting = WorkerMetrics(["orders"])
    counting.listen(APP)
    return counting


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
    return samples(exposition()[0])


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
    assert found["outbox_worker_processes"] == [({}, 1)]
    buckets = {labels["le"]: value for labels, value in found["outbox_latency_seconds_bucket"]}
    assert (buckets["0.1"], buckets["0.25"], buckets["10.0"], buckets["30.0"], buckets["+Inf"]) == (0, 7, 7, 8, 8)
    assert found["outbox_latency_seconds_sum"][0][1] == pytest.approx(7 * 0.12 + 10.02)


def count_nothing() -> Samples:
    listening()
    return samples(exposition()[0])


def test_counts_begin_at_zero(fresh: Fresh) -> None:
    found = fresh(count_nothing)
    assert ({"destination": "orders", "outcome": "dead"}, 0) in found["outbox_messages_total"]
    assert ({"destination": "orders", "cause": "unsettled"}, 0) in found["outbox_claimed_again_total"]


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
    return samples(exposition()[0])


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
    return samples(exposition()[0])


def test_odd_ages_and_many_codes_do_no_harm(fresh: Fresh) -> None:
    found = fresh(count_odd_ones)
    [(_, total)] = found["outbox_latency_seconds_sum"]
    assert 0 <= total < 1e10
    codes = {labels["code"]: value for labels, value in found["outbox_errors_total"]}
    assert (len(codes), codes["other"], sum(codes.values())) == (41, 60, 100)


def count_in_forks() -> tuple[Samples, Samples, list[str]]:
    listening()
    reading, writing = os.pipe()
    if not (living := os.fork()):
        settle(verdict(Step.SENT))
        os.write(writing, b".")
        signal.pause()
    os.read(reading, 1)
    in_fork(lambda: settle(verdict(Step.SENT), verdict(Step.SENT)))
    in_fork(lambda: settle(*[verdict(Step.SENT)] * 10), by=signal.SIGKILL)
    first = samples(exposition()[0])
    for _ in range(3):
        in_fork(lambda: settle(*[verdict(Step.SENT)] * 100), by=signal.SIGKILL)
    second = samples(exposition()[0])
    files = [file.name for file in Path(os.environ[VARIABLE]).glob("*.db")]
    os.kill(living, signal.SIGKILL)
    os.waitpid(living, 0)
    return first, second, files


def test_a_scrape_adds_up_all_processes_also_killed_ones(fresh: Fresh) -> None:
    first, second, files = fresh(count_in_forks)
    sent = [[each for each in found["outbox_messages_total"] if each[1]] for found in (first, second)]
    assert sent == [[({"destination": "orders", "outcome": "sent"}, n)] for n in (13, 313)]
    assert second["outbox_latency_seconds_count"] == [({"destination": "orders"}, 313)]
    assert [found["outbox_worker_processes"] for found in (first, second)] == [[({}, 1)]] * 2
    # The main process and the living one have their files. The five others went on with the same ones.
    kinds = Counter(name.partition("_")[0] for name in files)
    assert kinds == {"counter": 3, "histogram": 3, "gauge": 2}


def two_at_once() -> tuple[Samples, Samples]:
    """Two processes that live at the same time, and then only one of them."""
    listening()
    reading, writing = os.pipe()
    pids = []
    for number in range(2):
        pids.append(os.fork())
        if not pids[-1]:
            settle(*[verdict(Step.SENT)] * (number + 1))
            os.write(writing, b".")
            signal.pause()
        os.read(reading, 1)
    both = samples(exposition()[0])
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if pid == pids[0]:
            one = samples(exposition()[0])
    return both, one


def test_living_processes_are_counted_as_long_as_they_live(fresh: Fresh) -> None:
    both, one = fresh(two_at_once)
    assert [found["outbox_worker_processes"] for found in (both, one)] == [[({}, 2)], [({}, 1)]]
    for found in (both, one):
        assert ({"destination": "orders", "outcome": "sent"}, 3) in found["outbox_messages_total"]


def scrape_while_one_begins() -> Samples:
    listening()
    settle(verdict(Step.SENT))
    # A process makes each of its files empty first. If it is killed then, the file stays empty.
    for name in ("counter_outbox-place-7.db", "gauge_livesum_outbox-place-7.db"):
        (Path(os.environ[VARIABLE]) / name).touch()
    return samples(exposition()[0])


def test_a_scrape_does_without_the_files_that_are_just_being_made(fresh: Fresh) -> None:
    found = fresh(scrape_while_one_begins)
    assert ({"destination": "orders", "outcome": "sent"}, 1) in found["outbox_messages_total"]


def observe_both_ways() -> tuple[Samples, Samples]:
    from prometheus_client import CollectorRegistry, Histogram, generate_latest

    from outbox_tasks.telemetry.metrics.batch_histogram import BatchHistogram

    found = []
    for kind in (Histogram, BatchHistogram):
        registry = CollectorRegistry()
        histogram = kind("h", "h", ["to"], buckets=(0.1, 1, 10), registry=registry).labels("orders")
        for amounts in ([0.0, 0.1, 0.1000001, 9], [10.0], [11.0, 1000.0, 0.5]):
            if isinstance(histogram, BatchHistogram):
                histogram.observe_all(amounts)
            else:
                for amount in amounts:
                    histogram.observe(amount)
        found.append(samples(generate_latest(registry)))
    return found[0], found[1]


def test_a_batch_of_values_counts_like_each_of_them(fresh: Fresh) -> None:
    one_by_one, together = fresh(observe_both_ways)
    assert {name: value for name, value in together.items() if "created" not in name} == {
        name: value for name, value in one_by_one.items() if "created" not in name
    }


def count_late() -> Samples:
    from prometheus_client import Counter as Early

    Early("the_applications_own", "Made before us.", registry=None).inc()
    listening()
    in_fork(lambda: settle(verdict(Step.SENT)))
    return samples(exposition()[0])


def test_an_application_may_import_the_client_first(fresh: Fresh) -> None:
    found = fresh(count_late)
    assert [value for _, value in found["outbox_messages_total"] if value] == [1]


def begin_and_leave() -> tuple[list[str], list[str]]:
    from outbox_tasks.telemetry.metrics import directory

    listening()
    during = os.listdir(tempfile.gettempdir())  # noqa: PTH208
    in_fork(directory.leave)
    assert os.listdir(tempfile.gettempdir()) == during  # noqa: PTH208
    directory.leave()
    assert VARIABLE not in os.environ
    return during, os.listdir(tempfile.gettempdir())  # noqa: PTH208


def test_the_main_process_removes_its_directory(fresh: Fresh) -> None:
    during, after = fresh(begin_and_leave)
    assert [name.startswith("outbox-metrics-") for name in during] == [True]
    assert after == []


def leave_during_a_scrape() -> tuple[Samples, bool]:
    from outbox_tasks.telemetry.metrics import directory

    listening()
    leaving = threading.Thread(target=directory.leave)
    merge = MultiProcessCollector.merge

    def begin(files: list[str]) -> Any:
        leaving.start()
        leaving.join(0.2)
        return merge(files)  # type: ignore[no-untyped-call]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiProcessCollector, "merge", staticmethod(begin))
        found = samples(exposition()[0])
    leaving.join()
    return found, VARIABLE in os.environ


def test_a_worker_that_ends_lets_a_scrape_end_first(fresh: Fresh) -> None:
    found, stays = fresh(leave_during_a_scrape)
    assert "outbox_messages_total" in found
    assert not stays


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
        "gauge",
    }


def begin_and_be_killed() -> str:
    from outbox_tasks.telemetry.metrics import directory

    reading, writing = os.pipe()
    if not (pid := os.fork()):
        listening()
        os.write(writing, os.environ[VARIABLE].encode())
        signal.pause()
    path = os.read(reading, 1000).decode()
    directory.prepare()  # as another worker of this host
    assert Path(path).exists(), "that of a living worker was removed"
    directory.leave()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return path


def test_a_worker_removes_the_directories_of_killed_workers_only(fresh: Fresh, directory: Path) -> None:
    abandoned = Path(fresh(begin_and_be_killed))
    assert abandoned.exists()
    fresh(begin_and_leave)
    assert not abandoned.exists()


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
from outbox_tasks.errors import MetricsNotInstalled
from outbox_tasks.worker.resources import Resources
from outbox_tasks.settings import Settings

app = Celery("counted")
metrics.connect(Resources(app, Settings(monitor_port=0)))
signals.worker_init.send(sender=type("Worker", (), {"app": app}))
try:
    metrics.exposition()
except MetricsNotInstalled as error:
    print(error)
"""


def test_without_a_monitor_nothing_is_imported() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SILENT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_the_client_the_worker_starts_and_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True)
    assert "pip install 'outbox-tasks[metrics]'" in done.stdout, done.stderr
