"""What `claim_check` may be, and what it changes at the write."""

from __future__ import annotations

import sys

import pytest

from outbox_tasks.errors import ClaimCheckNotInstalled, ConfigurationError, PayloadTooLarge
from outbox_tasks.model import Message
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.claim_check import ClaimCheck
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import CLAIM_CHECK_LARGEST, Destination
from outbox_tasks.writing.rows import rows
from tests.conftest import MakeSettings


def opened(url: str) -> ClaimCheck:
    return ClaimCheck(Destination(name="orders", url="a://b", claim_check=url), 5)


class TestWhatIsRefused:
    def test_credentials_are_not_shown(self) -> None:
        assert "s3cret" not in repr(Destination(url="a://b", claim_check="sftp://ada:s3cret@host/out"))
        for wrong in ("sftp://ada:s3cret@host/o?ut", "ada:s3cret@host"):
            with pytest.raises(ConfigurationError) as caught:
                Settings(destinations={"orders": {"url": "a://b", "claim_check": wrong}})
            assert "s3cret" not in str(caught.value)

    def test_without_fsspec(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(ClaimCheckNotInstalled, match=r"fsspec.*pip install 'outbox-tasks\[claim-check\]'"):
            opened("s3://bucket")

    def test_without_the_client_of_the_storage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "s3fs", None)
        with pytest.raises(ClaimCheckNotInstalled, match="s3fs"):
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
        monkeypatch.setattr("outbox_tasks.settings.destination.CLAIM_CHECK_LARGEST", 100)
        small = {"url": "a://b", "max_bytes": 10}
        made = settings(destinations={"orders": small, "files": {**small, "claim_check": "s3://bucket"}})
        rows(Message("order.created", b"x" * 100, to="files"), made)
        for size, to, limit in ((101, "files", 100), (11, "orders", 10)):
            with pytest.raises(PayloadTooLarge, match=f"takes at most {limit}.*set its claim_check"):
                rows(Message("order.created", b"x" * size, to=to), made)

    def test_the_limit_is_64_mib(self) -> None:
        assert Destination(url="a://b", claim_check="s3://bucket").largest == CLAIM_CHECK_LARGEST == 2**26

    def test_the_writer_needs_no_fsspec(self, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "fsspec", None)
        Outbox(settings(nudge=False, destinations={"orders": {"url": "a://b", "claim_check": "s3://bucket"}}))
