"""Settings: where they come from, what they refuse, and what they never show."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.broker.task_broker import app_of
from outbox_tasks.database.engine import engine_url
from outbox_tasks.errors import (
    ConfigurationError,
    NoRoute,
    OutboxError,
    SettingsFileError,
)
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import WEEK_SECONDS, Destination
from outbox_tasks.settings.sources import Environment
from tests.conftest import MakeSettings

SECRET = "hunter2"
ORDERS = {"orders": {"url": "redis+stream://localhost/0/orders"}}


class TestLimits:
    """What follows from `send_timeout`, `statement_timeout` and `queue_lease`."""

    @given(
        send=st.floats(0.001, WEEK_SECONDS), own=st.floats(0.001, WEEK_SECONDS),
        statement=st.floats(0.001, WEEK_SECONDS), queue=st.floats(0.001, WEEK_SECONDS),
    )  # fmt: skip
    def test_always_end_in_the_same_order(self, send: float, own: float, statement: float, queue: float) -> None:
        """A slow send is settled, then given up, then killed, and only then claimed again."""
        made = Settings(
            send_timeout=send,
            statement_timeout=statement,
            queue_lease=queue,
            destinations={"own": {"url": "a://b", "send_timeout": own}},
        )
        longest = max(send, own) + 2 * statement
        assert longest < made.soft_time_limit < made.hard_time_limit < made.send_lease
        assert 0 < made.sending_time_of("own") <= made.soft_time_limit - own - 2 * statement
        assert 2 * (1.25 * made.native_retry_max + queue) <= made.visibility_timeout


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"breaker_failures": 0}, "breaker_failures"),
        ({"queue_lease": float("nan")}, "queue_lease"),
        ({"singles": 201}, "singles"),
        ({"statement_timeout": float("nan")}, "statement_timeout"),
        ({"claim_interval": f"redis://:{'s3cret' * 2}@host"}, "claim_interval"),
        ({"database_schema": 'a"b'}, "database_schema"),
        ({"routes": {"order.*": "orders"}}, "routes.order.*"),
        ({"claim_intervall": 3}, "claim_intervall"),
        ({"destinations": {"orders": {}}}, "destinations.orders.url"),
        ({"destinations": {"orders": "://b"}}, "destinations.orders.url"),
        ({"destinations": {"orders": {"url": "a://b", "max_bytes": 0}}}, "destinations.orders.max_bytes"),
    ],
)
def test_an_invalid_value_is_refused_by_name(values: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(**values)
    assert caught.value.setting == setting
    assert "s3cret" not in str(caught.value)


def test_an_invalid_value_is_shown_if_it_can_be_no_secret() -> None:
    with pytest.raises(ConfigurationError, match="Setting claim_interval = 'soon' is not usable"):
        Settings(claim_interval="soon")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="such as postgresql://user@host:5432/database"):
        Settings(database_url="localhost/shop")


def test_a_route_to_an_unknown_destination_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'order\.\*' = 'audit' is not usable.*known: orders") as caught:
        Settings(destinations=ORDERS, routes={"order.*": ["orders", "audit"]})
    assert caught.value.value == "audit"


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("breaker_failure = 3", "did you mean breaker_failures"),
            ('[destinations.orders]\nurl = "a://b"\nmax_byte = 3', r"destinations\.orders\.max_byte .*mean max_bytes"),
            ("breaker_failures = ", r"outbox\.toml could not be read"),
        ],
    )
    def test_in_the_file_are_errors(self, empty_directory: Path, content: str, said: str) -> None:
        (empty_directory / "outbox.toml").write_text(content)
        with pytest.raises(OutboxError, match=said):
            Settings()

    def test_json_that_is_none_is_refused_and_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for setting in ("destinations", "routes"):
            with monkeypatch.context() as patch:
                patch.setenv(f"OUTBOX_{setting.upper()}", f'{{"orders": {{"url": "{SECRET}"}}')
                with pytest.raises(ConfigurationError, match=f"Setting {setting} .*must be written as JSON") as caught:
                    Settings()
                assert SECRET not in str(caught.value)

    def test_in_the_environment_are_logged_once_and_ignored(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They may be the application's own."""
        monkeypatch.setattr(logging.getLogger("outbox_tasks.settings"), "disabled", False)  # Alembic disables it
        monkeypatch.setattr(Environment, "logged", set())
        monkeypatch.setenv("OUTBOX_CLAIM_INTERVALL", SECRET)
        monkeypatch.setenv("OUTBOX_ENABLED", SECRET)
        assert Settings() == Settings()
        assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
            "OUTBOX_CLAIM_INTERVALL is ignored: there is no such setting; did you mean OUTBOX_CLAIM_INTERVAL?",
            "OUTBOX_ENABLED is ignored: there is no such setting",
        ]

    def test_of_a_service_in_kubernetes_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are in each pod of the namespace, also in the application's. One has the name of a setting."""
        monkeypatch.setenv("OUTBOX_MONITOR_PORT", "tcp://10.96.7.20:80")
        assert Settings().monitor_port is None
        monkeypatch.setenv("OUTBOX_MONITOR_PORT", "80 80")
        with pytest.raises(ConfigurationError, match="monitor_port"):
            Settings()


class TestSources:
    @pytest.fixture(autouse=True)
    def file(self, empty_directory: Path) -> Path:
        path = empty_directory / "outbox.toml"
        path.write_text('breaker_failures = 1\nsingles = 1\nclaim_interval = 1\n[destinations.file]\nurl = "a://b"\n')
        return path

    def test_keywords_come_before_the_environment_and_that_before_the_file(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OUTBOX_BREAKER_FAILURES", "2")
        monkeypatch.setenv("OUTBOX_SINGLES", "2")
        made = Settings(breaker_failures=3)
        assert (made.breaker_failures, made.singles, made.claim_interval) == (3, 2, 1)

    def test_an_empty_variable_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OUTBOX_BREAKER_FAILURES", "")
        assert Settings().breaker_failures == 1

    def test_a_missing_file_is_an_error_if_it_was_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OUTBOX_CONFIG", "nowhere.toml")
        with pytest.raises(SettingsFileError, match=r"nowhere\.toml.*there is no such file"):
            Settings()


class TestDestinationsAndRoutes:
    def test_an_unknown_destination_is_refused_with_the_known_ones(self, settings: MakeSettings) -> None:
        with pytest.raises(NoRoute, match=r"'order\.created'.*'order' is not.*Known: orders\."):
            settings().destination("order", "order.created")

    def test_the_first_pattern_that_matches_counts(self) -> None:
        two = {name: {"url": "a://b"} for name in ("orders", "audit")}
        made = Settings(destinations=two, routes={"order.paid": ["audit"], "order.*": ["orders", "audit"]})
        assert made.routed("order.paid") == ["audit"]
        assert made.routed("order.created") == ["orders", "audit"]
        with pytest.raises(NoRoute, match=r"'Order\.created'.*Known destinations: audit, orders\."):
            made.routed("Order.created")

    def test_a_stored_task_goes_to_the_first_route_or_the_only_destination_that_makes_no_tasks_of_events(self) -> None:
        made = Settings(destinations={"events": {"url": "celery://?task=shop.on_event"}, "tasks": {"url": "celery://"}})
        assert made.task_destination("shop.mail") == "tasks"
        urls = {"one": {"url": "celery://"}, "two": {"url": "celery://"}, "audit": {"url": "a://b"}}
        made = Settings(destinations=urls, routes={"*": ["audit"], "shop.*": ["audit", "two"]})
        assert made.task_destination("shop.mail") == "two"
        with pytest.raises(NoRoute, match=r"several celery:// destinations \(one, two\)"):
            made.task_destination("mail")
        with pytest.raises(NoRoute, match="there is no celery:// destination"):
            Settings(destinations={"audit": {"url": "a://b"}}).task_destination("mail")

    def test_a_dead_message_holds_up_its_key_unless_the_destination_skips_it_or_is_unknown(self) -> None:
        made = Settings(destinations={"a": {"url": "a://b"}, "b": {"url": "a://b", "on_dead": "skip"}})
        assert [made.dead_blocks(name) for name in ("a", "b", "unknown")] == [True, False, False]

    def test_a_destination_may_have_its_own_dial(self) -> None:
        urls = {"a": {"url": "a://b", "singles": "all"}, "b": {"url": "a://b"}, "c": {"url": "a://b", "singles": 0}}
        made = Settings(destinations=urls, singles=9)
        assert [made.singles_of(name) for name in urls] == ["all", 9, 0]
        assert {made.with_singles(1).singles_of(name) for name in urls} == {1}
        made = Settings(destinations={"a": {"url": "a://b", "singles": "all", "concurrency": 3}})
        assert made.singles_of("a") == 0  # drains only


class TestCredentials:
    URL = f"redis+stream://user:{SECRET}@localhost/0/s?password={SECRET}"
    FEED: ClassVar = {"url": f"mysql://user:{SECRET}@localhost/shop"}

    @pytest.mark.parametrize("show", [repr, str])
    def test_are_not_in_the_repr(self, show: Callable[[object], str]) -> None:
        made = Settings(
            database_url=self.URL, broker_url=self.URL, archive_export=f"s3://{SECRET}@b/c",
            alert_webhook=f"https://user:{SECRET}@localhost/{SECRET}",
            destinations={"orders": {"url": self.URL, "claim_check": f"s3://{SECRET}@b/c"}}, feeds={"eu": self.FEED},
            broker_transport_options={"password": SECRET}, web_users={"ada": {"password": SECRET * 4}},
        )  # fmt: skip
        for part in (made, made.destinations, made.feeds, made.web_users):
            assert SECRET not in show(part)

    @pytest.mark.parametrize(
        "values",
        [
            {"database_url": f"user:{SECRET}@localhost"},
            {"databas_url": URL},
            {"databas_password": SECRET},
            {"destinations": {"orders": {"url": f"user:{SECRET}@localhost"}}},
            {"destinations": {"orders": f"user:{SECRET}@localhost"}},
            {"destinations": [URL]},
            {"destinations": {"orders": {"url": "a://b", "password": SECRET}}},
            {"broker": URL},
        ],
    )
    def test_are_not_in_errors(self, values: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError) as caught:
            Settings(**values)
        assert SECRET not in f"{caught.value} {caught.value.facts}"


def test_a_wrong_setting_of_a_feed_is_named() -> None:
    for values, setting, rule in (
        ({"url": "sqlite:////a.db", "route": {}}, "feeds.eu.route", "routes"),
        ({"url": "sqlite:////a.db", "routes": {"*": ["nowhere"]}}, "feeds.eu.routes.'*'", "not configured"),
        ("SELECT 1", "feeds.eu", "it must be a table with a url"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            Settings(feeds={"eu": values})
        assert caught.value.setting == setting
        assert rule in str(caught.value)


def test_two_feeds_with_one_source_are_refused() -> None:
    eu = {"url": "mysql://relay:secret@host/shop", "schema": "a"}
    Settings(feeds={"eu": eu, "us": {**eu, "schema": "b"}})
    with pytest.raises(ConfigurationError, match=r"feeds\.us\.url .*the source of feeds\.eu too") as caught:
        Settings(feeds={"eu": eu, "us": eu})
    assert "secret" not in str(caught.value)


def test_a_send_has_time_for_its_statements_and_its_lease_holds_a_message_not_too_long_after_a_crash() -> None:
    assert Settings(send_timeout=10, statement_timeout=0).longest_send == 16
    short = {"send_timeout": 1, "statement_timeout": 0.5}
    assert [Settings(**short, queue_lease=seconds).send_lease for seconds in (30, 600)] == [20, 40]


def test_an_option_of_the_database_s_url_is_one_of_postgresql() -> None:
    with pytest.raises(ConfigurationError, match=r"database_url .*knows no option sslmod"):
        engine_url("postgresql://u:secret@h/d?sslmod=require&connect_timeout=5")


@pytest.mark.parametrize("password", ["a#b/c@d%e?f&g", "p%23w", "1+1"])
@pytest.mark.parametrize("written", [str, lambda url: quote(url, safe="")], ids=["as it stands", "encoded"])
def test_the_password_of_a_broker_in_a_url_is_decoded_once(password: str, written: Callable[[str], str]) -> None:
    broker = f"redis://:{quote(password, safe='')}@localhost/1"
    shop = Destination(name="shop", url=f"celery://?queue=shop&broker={written(broker)}")
    assert shop.option("broker") == broker
    assert app_of(shop, Settings()).connection_for_write().password == password
    assert shop.queue == "shop"
    assert Destination(url="a://b?key=a+b%20c").option("key") == "a+b c"
