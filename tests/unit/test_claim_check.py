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
from outbox_tasks.destinations.claim_check import publisher as claim_check
from outbox_tasks.destinations.claim_check.publisher import Storage
from outbox_tasks.errors import ConfigurationError, NotInstalled, OutageError, PayloadTooLarge
from outbox_tasks.model import LeasedMessage, Message, Outcome, Result
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.publishers import Publishers, send
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import LARGEST_CLAIM_CHECK_BYTES, Destination
from outbox_tasks.text import without_login, without_secrets
from outbox_tasks.writing.rows import rows
from tests.conftest import MakeSettings, eventually

LARGE = b"x" * 11


def message(number: int, payload: bytes = LARGE, key: str | None = None, **fields: Any) -> LeasedMessage:
    now, type = datetime.now(UTC), fields.pop("content_type", "application/json")
    return LeasedMessage(
        f"id-{number}", "order.created", "orders", key, payload, type, {}, None, None, now, 1, **fields
    )


def opened(url: str, timeout: float = 5) -> Storage:
    return Storage(Destination(name="orders", url="a://b", max_bytes=10, claim_check=url), timeout)


class Trouble(MemoryFileSystem):
    """A storage that does as it is told."""

    protocol = "trouble"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in the base
    pseudo_dirs = [""]  # noqa: RUF012
    does: dict[str, Any] = {}  # noqa: RUF012 - an exception, or an event to wait for, by the object's name
    got: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        name = path.rpartition("/")[2]
        self.got.append((name, options))
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
    def test_a_large_payload_is_replaced_by_where_it_is(self, tmp_path: Path) -> None:
        [sent] = opened(f"file://{tmp_path}").store([message(1)])
        assert isinstance(sent, LeasedMessage)
        assert (sent.payload, sent.dataref) == (b"", f"file://{tmp_path}/id-1")
        assert sent.content_type == "application/json"
        assert (tmp_path / "id-1").read_bytes() == LARGE

    def test_any_consumer_can_fetch_it_by_the_reference(self) -> None:
        [sent] = opened("memory://claims/").store([message(1)])
        assert isinstance(sent, LeasedMessage)
        assert sent.dataref == "memory://claims/id-1"
        with fsspec.open(sent.dataref) as file:
            assert file.read() == LARGE

    def test_what_is_small_enough_is_left_as_it_is_and_opens_nothing(self, tmp_path: Path) -> None:
        small = [message(1, b"x" * 10), message(2, b"")]
        check = opened(f"file://{tmp_path / 'missing'}")
        assert check.store(small) == small
        assert check._opened.made is None

    def test_each_in_its_place(self, tmp_path: Path) -> None:
        messages = [message(n, LARGE + b"%d" % n if n % 3 else b"small") for n in range(30)]
        sent = opened(f"file://{tmp_path}").store(messages)
        assert [entry.id for entry in sent if isinstance(entry, LeasedMessage)] == [m.id for m in messages]
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
            m.id: m.payload for m in messages if m.payload != b"small"
        }

    def test_a_repetition_writes_the_same_object_at_once(self, tmp_path: Path) -> None:
        check = opened(f"file://{tmp_path}")
        first = check.store([message(1)])
        before = (tmp_path / "id-1").stat().st_ino
        with (tmp_path / "id-1").open("rb") as reader:
            assert [getattr(m, "dataref", None) for m in check.store([message(1)])] == [first[0].dataref]  # type: ignore[union-attr]
            assert reader.read() == LARGE  # who reads the first delivery is not disturbed
        assert (tmp_path / "id-1").stat().st_ino != before
        assert [path.name for path in tmp_path.iterdir()] == ["id-1"]

    def test_its_content_type_goes_along_where_the_storage_takes_one(
        self, trouble: type[Trouble], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        odd = [message(1), message(2, content_type=""), message(3, content_type="a\nb")]
        opened("trouble://bucket").store(odd)
        monkeypatch.setitem(claim_check.CONTENT_TYPE_OPTIONS, "trouble", "ContentType")
        opened("trouble://bucket").store(odd)
        assert [options for _, options in trouble.got] == [{}, {}, {}, {"ContentType": "application/json"}, {}, {}]

    def test_it_is_opened_once(self, tmp_path: Path) -> None:
        check = opened(f"file://{tmp_path}")
        check.store([message(1)])
        storage = check._opened.made
        check.store([message(2)])
        assert check._opened.made is storage is not None


class TestTrouble:
    def test_a_storage_out_of_reach_is_a_retry_and_its_small_neighbours_go_on(self, tmp_path: Path) -> None:
        missing = tmp_path / "missing"
        messages = [message(1, b"small"), message(2), message(3, b"small")]
        first, failed, last = opened(f"file://{missing}").store(messages)
        assert (first, last) == (messages[0], messages[2])
        assert isinstance(failed, Outcome)
        assert (failed.result, failed.code) == (Result.RETRY, "claim_check")
        assert f"message id-2 (11 bytes) could not be stored in file://{missing}: FileNotFound" in str(failed.error)
        assert not missing.exists()

    def test_a_half_written_file_is_not_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        [failed] = opened(f"file://{tmp_path}").store([message(1)])
        assert isinstance(failed, Outcome)
        assert "No space left" in str(failed.error)
        assert list(tmp_path.iterdir()) == []

    def test_one_that_is_refused_stops_no_other(self, trouble: type[Trouble]) -> None:
        trouble.does["id-2"] = PermissionError("no")
        messages = [message(n, LARGE if n < 4 else b"small") for n in range(1, 5)]
        entries = opened("trouble://bucket").store(messages)
        assert [entry.code or entry.result if isinstance(entry, Outcome) else entry.id for entry in entries] == [
            "id-1", "claim_check", "id-3", "id-4",
        ]  # fmt: skip

    def test_one_that_hangs_ends_in_time_and_leaves_one_thread(self, trouble: type[Trouble]) -> None:
        trouble.does["id-1"] = hanging = threading.Event()
        check = opened("trouble://bucket", timeout=0.6)
        before = threading.active_count()
        for _ in range(3):
            started = time.monotonic()
            late, unasked, small = check.store([message(1), message(2), message(3, b"small")])
            assert time.monotonic() - started < 1.2
            assert isinstance(late, Outcome)
            assert isinstance(unasked, Outcome)
            assert "no answer within 0.6 s" in str(late.error)
            assert small.id == "id-3"  # type: ignore[union-attr]
            assert threading.active_count() == before + 1
        hanging.set()
        eventually(lambda: threading.active_count() == before)
        assert {name for name, _ in trouble.got} == {"id-1"}, "what was given up is not stored later"
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
            ("s3://bucket/prefix/", "s3://bucket/prefix", set()),
            ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a", set()),
        ],
    )
    def test_are_in_no_reference(self, url: str, place: str, secrets: set[str]) -> None:
        assert without_login(url) == place
        for secret in secrets:
            assert without_secrets(f"refused: {secret}", url) == "refused: ***"

    def test_are_in_no_error(self, trouble: type[Trouble]) -> None:
        trouble.does["id-1"] = OSError("trouble://ada:s3cr/t@bucket and s3cr%2Ft")
        [failed] = opened("trouble://ada:s3cr%2Ft@bucket").store([message(1)])
        assert isinstance(failed, Outcome)
        assert "s3cr" not in str(failed.error)
        assert "ada:***@bucket and ***" in str(failed.error)


class Recorder:
    """A publisher that takes all, or raises."""

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


def the_only(shared: Any) -> Any:
    """The publisher behind a shared one, and behind the claim check."""
    [publisher] = shared._free
    return getattr(publisher, "_publisher", publisher)


class TestTheSend:
    @pytest.fixture
    def publishers(self, settings: MakeSettings, trouble: type[Trouble], monkeypatch: pytest.MonkeyPatch) -> Publishers:
        monkeypatch.setattr(destinations, "kind_of", lambda _: Recorder)
        plain = {"url": "a://b", "max_bytes": 10, "send_timeout": 6}
        return Publishers(settings(destinations={"orders": {**plain, "claim_check": "trouble://b"}, "plain": plain}))

    def test_what_could_not_be_stored_is_not_sent_and_all_outcomes_are_in_order(
        self, publishers: Publishers, trouble: type[Trouble]
    ) -> None:
        trouble.does["id-2"] = OSError("down")
        outcomes = send(publishers, "orders", [message(1), message(2), message(3, b"small")])
        assert [o.code for o in outcomes] == [None, "claim_check", None]
        given = the_only(publishers["orders"])
        assert [(m.id, m.payload, m.dataref) for m in given.given] == [
            ("id-1", b"", "trouble://b/id-1"), ("id-3", b"small", None),
        ]  # fmt: skip

    def test_what_the_publisher_raises_is_about_what_it_was_given(
        self, publishers: Publishers, trouble: type[Trouble]
    ) -> None:
        trouble.does["id-2"] = OSError("down")
        given = the_only(publishers["orders"])
        given.error = OutageError("gone", code="connection")
        assert [o.code for o in send(publishers, "orders", [message(1), message(2)])] == ["connection", "claim_check"]

    def test_with_nothing_left_the_publisher_is_not_asked(self, publishers: Publishers, trouble: type[Trouble]) -> None:
        trouble.does["id-1"] = OSError("down")
        assert [o.code for o in send(publishers, "orders", [message(1)])] == ["claim_check"]
        given = the_only(publishers["orders"])
        assert given.asked == 0

    def test_a_time_limit_that_strikes_meanwhile_is_a_retry(
        self, publishers: Publishers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def strike(*_: Any) -> None:
            raise TimeoutError

        monkeypatch.setattr(Storage, "store", strike)
        assert [o.code for o in send(publishers, "orders", [message(1)])] == ["failed_alone"]

    def test_storage_and_send_share_the_time(self, publishers: Publishers) -> None:
        orders: Any = publishers["orders"]
        assert (the_only(orders).timeout, orders._free[0]._storage._timeout) == (3, 3)
        assert the_only(publishers["plain"]).timeout == 6

    def test_the_relay_keeps_the_order_of_keys_although_the_publisher_could(
        self, publishers: Publishers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What could not be stored is not sent, and the publisher does not know of it."""
        monkeypatch.setattr(Recorder, "keeps_order", True, raising=False)
        assert [publishers[name].keeps_order for name in ("orders", "plain")] == [False, True]  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("claim_check", "kept"), [(None, True), ("memory://claims", False)])
    def test_a_drain_takes_one_message_of_a_key_at_a_time(self, claim_check: str | None, kept: bool) -> None:
        orders = Destination(name="orders", url="redis+stream://localhost/0/orders", claim_check=claim_check)
        assert destinations.keeps_order(orders) is kept

    def test_it_may_be_used_again_after_it_was_closed(self, publishers: Publishers) -> None:
        check: Any = publishers["orders"]._free[0]  # type: ignore[attr-defined]
        for n in (1, 2):
            check.close()
            assert check.publish([message(n)]) == [Outcome.sent()]
        assert the_only(publishers["orders"]).closed == 2

    def test_a_missing_client_is_noticed_at_the_start_of_a_relay(
        self, publishers: Publishers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`start_checks.check` asks for each publisher."""
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(NotInstalled):
            publishers["orders"]


class TestWhatIsRefused:
    def test_credentials_are_not_shown(self) -> None:
        assert "s3cret" not in repr(Destination(url="a://b", claim_check="sftp://ada:s3cret@host/out"))
        for wrong in ("sftp://ada:s3cret@host/o?ut", "ada:s3cret@host"):
            with pytest.raises(ConfigurationError) as caught:
                Settings(destinations={"orders": {"url": "a://b", "claim_check": wrong}})
            assert "s3cret" not in str(caught.value)

    def test_without_fsspec(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(NotInstalled, match=r"fsspec.*pip install 'outbox-tasks\[claim-check\]'"):
            opened("s3://bucket")

    def test_without_the_client_of_the_storage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "s3fs", None)
        with pytest.raises(NotInstalled, match="s3fs"):
            opened("s3://user:s3cret@bucket")

    def test_a_scheme_that_nobody_knows(self) -> None:
        with pytest.raises(ConfigurationError, match=r"destinations\.orders\.claim_check.*no storage nosuch://"):
            opened("nosuch://bucket")

    @pytest.mark.parametrize(
        "url",
        ["/srv/outbox", "file://srv/outbox", "local://srv", "s3://b?x=1", "s3://b#x", "s3://a b", "simplecache::s3://b",
         "file:///srv/100%", "file:///srv/out@box"],
    )  # fmt: skip
    def test_what_is_no_place_for_every_consumer(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="such as s3://bucket/prefix") as caught:
            Settings(destinations={"orders": {"url": "a://b", "claim_check": url}})
        assert caught.value.setting == "destinations.orders.claim_check"

    @pytest.mark.parametrize("url", ["memory://", "file:///srv/out-box", "s3://bucket/a:b/c", "sftp://a:b%40@h:22/c"])
    def test_what_is_one_is_not(self, url: str) -> None:
        assert Destination(url="a://b", claim_check=url).claim_check == url

    def test_a_destination_that_can_not_carry_a_reference(self) -> None:
        with pytest.raises(ConfigurationError, match=r"celery:// destination can't say.*Remove claim_check") as caught:
            Settings(destinations={"tasks": {"url": "celery://", "claim_check": "s3://bucket"}})
        assert caught.value.setting == "destinations.tasks.claim_check"

    def test_a_limit_that_no_payload_could_pass(self) -> None:
        with pytest.raises(ConfigurationError, match="must be below 67108864"):
            Settings(destinations={"orders": {"url": "a://b", "max_bytes": 64 << 20, "claim_check": "s3://bucket"}})


class TestAtTheWrite:
    def test_with_a_claim_check_more_is_taken_up_to_its_limit(
        self, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.settings.destination.LARGEST_CLAIM_CHECK_BYTES", 100)
        small = {"url": "a://b", "max_bytes": 10}
        made = settings(destinations={"orders": small, "files": {**small, "claim_check": "s3://bucket"}})
        rows(Message("order.created", b"x" * 100, to="files"), made)
        for size, to, limit in ((101, "files", 100), (11, "orders", 10)):
            with pytest.raises(PayloadTooLarge, match=f"takes at most {limit}.*set its claim_check"):
                rows(Message("order.created", b"x" * size, to=to), made)

    def test_the_limit_is_64_mib(self) -> None:
        assert Destination(url="a://b", claim_check="s3://bucket").largest == LARGEST_CLAIM_CHECK_BYTES == 2**26

    def test_the_writer_needs_no_fsspec(self, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "fsspec", None)
        Outbox(settings(nudge=False, destinations={"orders": {"url": "a://b", "claim_check": "s3://bucket"}}))
