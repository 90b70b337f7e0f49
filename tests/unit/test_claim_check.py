"""The claim check: large payloads go into a storage, each by itself. What can't be stored does not stop the others."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from outbox_tasks import destinations
from outbox_tasks.destinations.claim_check.publisher import Storage
from outbox_tasks.errors import ConfigurationError, NotInstalled, OutageError, PayloadTooLarge
from outbox_tasks.model import LeasedMessage, Message, Outcome, Result
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import LARGEST_CLAIM_CHECK_BYTES, Destination
from outbox_tasks.text import without_login, without_secrets
from outbox_tasks.writing.rows import rows
from tests.conftest import MakeSettings, eventually
from tests.contract.messages import sent_by

LARGE = b"x" * 11


def message(number: int, payload: bytes = LARGE) -> LeasedMessage:
    now = datetime.now(UTC)
    return LeasedMessage(
        f"id-{number}", "order.created", "orders", None, payload, "application/json", {}, None, None, now, 1
    )


def opened(url: str, timeout: float = 5) -> Any:
    return Storage(Destination(name="orders", url="a://b", max_bytes=10, claim_check=url), timeout)


class Trouble(MemoryFileSystem):
    """A storage that does as it is told."""

    protocol = "trouble"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in the base
    pseudo_dirs = [""]  # noqa: RUF012
    does: dict[str, Any] = {}  # noqa: RUF012 - an exception, or an event to wait for, by the object's name
    got: list[str] = []  # noqa: RUF012

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        name = path.rpartition("/")[2]
        self.got.append(name)
        what = self.does.get(name)
        if isinstance(what, Exception):
            raise what
        if what is not None:
            what.wait(10)
        super().pipe_file(path, value)


@pytest.fixture
def trouble() -> Iterator[type[Trouble]]:
    fsspec.register_implementation("trouble", Trouble, clobber=True)
    yield Trouble
    for made in (Trouble.store, Trouble.does, Trouble.got):
        made.clear()


class TestWhatIsStored:
    def test_a_large_payload_is_replaced_by_where_any_consumer_can_fetch_it(self, tmp_path: Path) -> None:
        """A small one is left as it is, and opens nothing."""
        check = opened(f"file://{tmp_path}")
        small = [message(0, b"x" * 10), message(1, b"")]
        assert check.store(small) == small
        assert check._opened.made is None
        messages = [message(n, LARGE + b"%d" % n if n % 3 else b"small") for n in range(30)]
        stored = check.store(messages)
        assert [entry.id for entry in stored] == [m.id for m in messages]
        for sent, original in zip(stored, messages, strict=True):
            assert sent.content_type == "application/json"
            if original.payload != b"small":
                assert (sent.payload, sent.dataref) == (b"", f"file://{tmp_path}/{sent.id}")
                with fsspec.open(sent.dataref) as file:
                    assert file.read() == original.payload
        assert len(list(tmp_path.iterdir())) == 20

    def test_a_repetition_writes_the_same_object_at_once(self, tmp_path: Path) -> None:
        check = opened(f"file://{tmp_path}")
        [first] = check.store([message(1)])
        before = (tmp_path / "id-1").stat().st_ino
        with (tmp_path / "id-1").open("rb") as reader:
            [second] = check.store([message(1)])
            assert reader.read() == LARGE  # who reads the first delivery is not disturbed
        assert first.dataref == second.dataref
        assert (tmp_path / "id-1").stat().st_ino != before
        assert [path.name for path in tmp_path.iterdir()] == ["id-1"]


class TestTrouble:
    def test_a_half_written_file_is_not_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        [failed] = opened(f"file://{tmp_path}").store([message(1)])
        assert "message id-1 (11 bytes) could not be stored in file://" in str(failed.error)
        assert "No space left" in str(failed.error)
        assert list(tmp_path.iterdir()) == []
        [failed] = opened(f"file://{tmp_path / 'missing'}").store([message(1)])
        assert not (tmp_path / "missing").exists(), "that would hide that a file system is not mounted"

    def test_one_that_hangs_ends_in_time_and_leaves_one_thread(self, trouble: type[Trouble]) -> None:
        trouble.does["id-1"] = hanging = threading.Event()
        check = opened("trouble://bucket", timeout=0.4)
        before = threading.active_count()
        for _ in range(3):
            started = time.monotonic()
            late, unasked, small = check.store([message(1), message(2), message(3, b"small")])
            assert time.monotonic() - started < 1
            assert isinstance(unasked, Outcome)
            assert "no answer within 0.4 s" in str(late.error)
            assert small.id == "id-3"
            assert threading.active_count() == before + 1
        hanging.set()
        eventually(lambda: threading.active_count() == before)
        assert set(trouble.got) == {"id-1"}, "what was given up is not stored later"
        trouble.does.clear()
        assert not any(isinstance(entry, Outcome) for entry in check.store([message(1), message(2)]))

    def test_several_at_once_where_the_client_can(
        self, trouble: type[Trouble], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trouble, "async_impl", True)
        together = threading.Barrier(8)
        trouble.does |= {f"id-{n}": together for n in range(16)}
        entries = opened("trouble://bucket").store([message(n) for n in range(16)])
        assert not any(isinstance(entry, Outcome) for entry in entries)


class TestCredentials:
    @pytest.mark.parametrize(
        ("url", "place", "secrets"),
        [
            ("sftp://ada:s3cr%2Ft@host:22/out", "sftp://host:22/out", {"s3cr%2Ft", "s3cr/t"}),
            ("sftp://t0ken@host/out", "sftp://host/out", {"t0ken"}),
            ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a", set()),
        ],
    )
    def test_are_in_no_reference(self, url: str, place: str, secrets: set[str]) -> None:
        assert without_login(url) == place
        assert "s3cr" not in repr(Destination(url="a://b", claim_check=url))
        for secret in secrets:
            assert without_secrets(f"refused: {secret}", url) == "refused: ***"

    def test_are_in_no_error(self, trouble: type[Trouble]) -> None:
        trouble.does["id-1"] = OSError("trouble://ada:s3cr/t@bucket and s3cr%2Ft")
        failed, stored = opened("trouble://ada:s3cr%2Ft@bucket").store([message(1), message(2)])
        assert stored.dataref == "trouble://bucket/id-2"
        assert "s3cr" not in str(failed.error)
        assert "ada:***@bucket and ***" in str(failed.error)


class Recorder:
    """A publisher that takes all, or raises."""

    keeps_order = True

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self.timeout = settings.send_timeout
        self.given: list[LeasedMessage] = []
        self.asked = self.closed = 0
        self.error: Exception | None = None

    def publish(self, messages: list[LeasedMessage]) -> list[Outcome]:
        self.given += messages
        self.asked += 1
        if self.error:
            raise self.error
        return [Outcome.sent()] * len(messages)

    def close(self) -> None:
        self.closed += 1


class TestTheSend:
    @pytest.fixture
    def publishers(self, settings: MakeSettings, trouble: type[Trouble], monkeypatch: pytest.MonkeyPatch) -> Publishers:
        monkeypatch.setattr(destinations, "kind_of", lambda _: Recorder)
        plain = {"url": "a://b", "max_bytes": 10, "send_timeout": 6}
        return Publishers(settings(destinations={"orders": {**plain, "claim_check": "trouble://b"}, "plain": plain}))

    @pytest.fixture
    def check(self, publishers: Publishers) -> Any:
        """The claim check of `orders`. Behind it is a `Recorder`."""
        return publishers["orders"]._free[0]  # type: ignore[attr-defined]

    def test_what_could_not_be_stored_is_not_sent_and_all_outcomes_are_in_order(
        self, publishers: Publishers, check: Any, trouble: type[Trouble]
    ) -> None:
        trouble.does["id-2"] = OSError("down")
        assert [o.code for o in sent_by(publishers["orders"], message(2))] == ["claim_check"]
        recorder: Recorder = check._publisher
        assert recorder.asked == 0, "it is not asked to send nothing"
        outcomes = sent_by(publishers["orders"], message(1), message(2), message(3, b"small"))
        assert [o.code for o in outcomes] == [None, "claim_check", None]
        assert outcomes[1].result is Result.RETRY
        assert [(m.id, m.payload, m.dataref) for m in recorder.given] == [
            ("id-1", b"", "trouble://b/id-1"), ("id-3", b"small", None),
        ]  # fmt: skip
        recorder.error = OutageError("gone", code="connection")
        assert [o.code for o in sent_by(publishers["orders"], message(1), message(2))] == [
            "connection",
            "claim_check",
        ]

    def test_storage_and_send_share_the_time_and_may_be_used_again_after_they_were_closed(self, check: Any) -> None:
        assert (check._publisher.timeout, check._storage._timeout) == (3, 3)
        for n in (1, 2):
            check.close()
            assert check.publish([message(n)]) == [Outcome.sent()]
        assert check._publisher.closed == 2

    def test_the_relay_keeps_the_order_of_keys_although_the_publisher_could(self, publishers: Publishers) -> None:
        """What could not be stored is not sent, and the publisher does not know of it."""
        assert [publishers[name].keeps_order for name in ("orders", "plain")] == [False, True]  # type: ignore[attr-defined]
        for claim_check in ("memory://claims", None):
            destination = Destination(url="a://b", claim_check=claim_check)
            assert destinations.keeps_order(destination) is (claim_check is None)


class TestWhatIsRefused:
    @pytest.mark.parametrize("missing", ["fsspec", "s3fs"])
    def test_without_a_client(self, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(NotInstalled, match=rf"{missing}.*pip install 'outbox-tasks\[claim-check\]'"):
            opened("s3://user:s3cret@bucket")

    def test_a_scheme_that_nobody_knows(self) -> None:
        with pytest.raises(ConfigurationError, match=r"destinations\.orders\.claim_check.*no storage nosuch://"):
            opened("nosuch://bucket")

    @pytest.mark.parametrize(
        "url",
        ["/srv/outbox", "file://srv/outbox", "s3://b?x=1", "s3://b#x", "s3://a b", "simplecache::s3://b",
         "file:///srv/100%", "sftp://ada:s3cret@host/o?ut", "ada:s3cret@host"],
    )  # fmt: skip
    def test_what_is_no_place_for_every_consumer(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="such as s3://bucket/prefix") as caught:
            Settings(destinations={"orders": {"url": "a://b", "claim_check": url}})
        assert caught.value.setting == "destinations.orders.claim_check"
        assert "s3cret" not in str(caught.value)

    def test_what_could_never_work(self) -> None:
        with pytest.raises(ConfigurationError, match=r"celery:// destination can't say.*Remove claim_check"):
            Settings(destinations={"tasks": {"url": "celery://", "claim_check": "s3://bucket"}})
        with pytest.raises(ConfigurationError, match="must be below 67108864"):
            Settings(destinations={"orders": {"url": "a://b", "max_bytes": 64 << 20, "claim_check": "s3://bucket"}})


def test_a_writer_needs_no_fsspec_and_more_is_taken_up_to_its_limit(
    settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Destination(url="a://b", claim_check="s3://bucket").largest == LARGEST_CLAIM_CHECK_BYTES == 2**26
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setattr("outbox_tasks.settings.destination.LARGEST_CLAIM_CHECK_BYTES", 100)
    small = {"url": "a://b", "max_bytes": 10}
    made = settings(nudge=False, destinations={"orders": small, "files": {**small, "claim_check": "s3://bucket"}})
    Outbox(made)
    rows(Message("order.created", b"x" * 100, to="files"), made)
    for size, to, limit in ((101, "files", 100), (11, "orders", 10)):
        with pytest.raises(PayloadTooLarge, match=f"takes at most {limit}.*set its claim_check"):
            rows(Message("order.created", b"x" * size, to=to), made)
