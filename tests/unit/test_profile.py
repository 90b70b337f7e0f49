"""The profile `per-message`: what it sets, and what contradicts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbox_tasks.celery import configuration
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.relay.claim import bundled
from outbox_tasks.settings import Settings
from outbox_tasks.writing.nudge import broker_nudge
from tests.unit.test_claim import claimed

ORDERS = {"orders": {"url": "redis+stream://localhost/0/orders"}}


def made(**values: Any) -> Settings:
    return Settings(profile="per-message", broker_url="redis://localhost/0", destinations=ORDERS, **values)


def test_it_sets_what_it_says_and_nothing_else() -> None:
    usual, ours = Settings().model_dump(), Settings(profile="per-message").model_dump()
    changed = {name: value for name, value in ours.items() if value != usual[name]}
    assert changed == {"profile": "per-message", "bundle_size": 1, "nudge": False}


def test_a_variable_or_the_file_can_name_it(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_directory / "outbox.toml").write_text('profile = "per-message"')
    assert Settings().bundle_size == 1
    (empty_directory / "outbox.toml").unlink()
    monkeypatch.setenv("OUTBOX_PROFILE", "per-message")
    assert Settings().bundle_size == 1


def test_writers_ask_nothing_of_the_broker() -> None:
    assert broker_nudge(made()) is None


def test_a_claim_makes_a_task_of_each_message_and_workers_gather_none() -> None:
    bundles = list(bundled(made(), [claimed(n) for n in range(40)], "lease", flooding={"orders"}))
    assert [len(bundle.tickets) for bundle in bundles] == [1] * 40
    assert not any(bundle.gather for bundle in bundles)


def test_a_key_has_one_message_at_work() -> None:
    assert made().longest_run_of("orders") == 1


def test_workers_take_one_message_at_a_time_and_send_events() -> None:
    told = configuration(made())
    assert (told["worker_prefetch_multiplier"], told["worker_send_task_events"]) == (1, True)
    assert configuration(Settings(broker_url="redis://localhost/0"))["worker_send_task_events"] is False


@pytest.mark.parametrize(("name", "value"), [("bundle_size", 100), ("nudge", True)])
def test_a_setting_that_breaks_it_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} = {value} .*with profile = per-message it is ") as caught:
        made(**{name: value})
    assert caught.value.setting == name


def test_a_variable_that_breaks_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_NUDGE", "true")
    with pytest.raises(ConfigurationError, match="nudge"):
        made()


def test_so_is_one_of_a_destination() -> None:
    bundles = {"orders": {**ORDERS["orders"], "bundle_size": 2}}
    with pytest.raises(ConfigurationError) as caught:
        Settings(profile="per-message", destinations=bundles)
    assert caught.value.setting == "destinations.orders.bundle_size"


def test_settings_that_agree_are_taken() -> None:
    alone = {"orders": {**ORDERS["orders"], "bundle_size": 1}}
    assert Settings(profile="per-message", destinations=alone, bundle_size=1, nudge=False).profile == "per-message"
    assert made().replace(queue_lease=30).bundle_size == 1


@pytest.mark.parametrize("profile", ["per_message", "", ["per-message"], 1])
def test_an_unknown_one_is_refused(profile: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(profile=profile)
    assert caught.value.setting == "profile"
