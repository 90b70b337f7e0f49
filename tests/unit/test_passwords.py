"""Where a password comes from, and for how long an answer is used."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import kombu
import pytest
from kombu.transport.pyamqp import SSLTransport

from outbox_tasks.broker.login import RedisLogin, connection
from outbox_tasks.broker.task_broker import app_of
from outbox_tasks.destinations import load
from outbox_tasks.errors import ConfigurationError, PasswordUnavailable
from outbox_tasks.model import Outcome
from outbox_tasks.relay.publishers import _is_refused
from outbox_tasks.settings import Settings
from outbox_tasks.settings.password import Password

answers: list[Any] = []


def answer() -> Any:
    return answers.pop(0)


FUNCTION = f"{__name__}:answer"


def test_a_file_is_read_each_time_and_its_white_space_does_not_count(tmp_path: Path) -> None:
    password = Password(file=tmp_path / "password")
    for text in ("first", "second"):
        (tmp_path / "password").write_text(f"{text}\n")
        assert password.ask() == text
    assert RedisLogin("redis://a%40b@h/0", password).get_credentials() == ("a@b", "second")


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({}, ["first", "second"], ["first", "first"]),
        ({"seconds": 0}, ["first", "second"], ["first", "second"]),
        ({}, [("first", 0), "second"], ["first", "second"]),
        ({"seconds": 0}, [("first", 60), "second"], ["first", "first"]),
    ],
    ids=["for a minute", "not at all", "the answer says: not at all", "the answer says: a minute"],
)
def test_an_answer_is_used_for_as_long_as_it_may(settings: Any, given: list[Any], expected: list[str]) -> None:
    answers[:] = given
    password = Password(function=FUNCTION, **settings)
    password.forget()
    assert [password.ask(), password.ask()] == expected


def test_a_command_prints_the_password() -> None:
    assert Password(command=f"{sys.executable} -c 'print(\"p w\")'").ask() == "p w"


FAILING = "import sys; print('out'); print('no token', file=sys.stderr); sys.exit(3)"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"command": f'{sys.executable} -c "{FAILING}" --key=S3cret'}, [sys.executable, "code 3", "no token"]),
        ({"command": f"{sys.executable} -c pass --key=S3cret"}, ["its answer is empty"]),
        ({"command": "/nowhere/command --key=S3cret"}, ["/nowhere/command", "No such file"]),
        ({"file": "/nowhere/password"}, ["the file /nowhere/password", "No such file"]),
        ({"function": "nowhere.at:all"}, ["the function nowhere.at:all", "No module named 'nowhere'"]),
        ({"function": "sys:gettrace"}, ["its answer is no text but NoneType"]),
    ],
)
def test_why_there_is_no_password(source: dict[str, str], words: list[str]) -> None:
    with pytest.raises(PasswordUnavailable) as caught:
        Password(**source).ask()
    assert all(word in str(caught.value) for word in words), caught.value
    assert "S3cret" not in str(caught.value)


def test_a_command_that_takes_long_has_failed_and_its_arguments_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox_tasks.settings.password.COMMAND_SECONDS", 0.01)
    with pytest.raises(PasswordUnavailable, match=r"it did not end within 0\.01 s") as caught:
        Password(command=f"{sys.executable} -c 'import time; time.sleep(60)' S3cret").ask()
    assert "S3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({}, "it must have one of file, command and function"),
        ({"file": "/a", "command": "b"}, "it must have one of file, command and function"),
        ({"function": "S3cret"}, "String should match pattern"),
        ({"command": "say 'it"}, "No closing quotation"),
        ({"fil": "/S3cret"}, "there is no such setting; did you mean file"),
        ("S3cret", "it must say where the password is"),
    ],
)
@pytest.mark.parametrize("setting", ["database_password", "broker_password"])
def test_a_table_that_says_nothing_usable_is_refused_at_once(setting: str, table: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule) as caught:
        Settings(**{setting: table})
    assert setting in str(caught.value)
    assert "S3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("nats://localhost:4222/orders", "has its login in its URL"),
        ("https://me:secret@shop.example/hooks", "one of a user, outbox_bearer and password"),
        ("https://shop.example/hooks?outbox_bearer=secret", "one of a user, outbox_bearer and password"),
        ("azurestoragequeues://key@http://127.0.0.1:10001/devstoreaccount1", "its login in its URL"),
    ],
)
def test_a_destination_that_can_not_ask_is_refused(url: str, rule: str) -> None:
    settings = Settings(destinations={"orders": {"url": url, "password": {"file": "/a"}}})
    with pytest.raises(ConfigurationError, match=rule) as caught:
        load(settings.destinations["orders"], settings)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "version", "rule"),
    [("redis://localhost", (5, 5, 4), "needs kombu 5.6"), ("amqp://a//;amqp://b//", (5, 7, 0), "needs one URL")],
)
def test_a_broker_that_can_not_be_asked_for_is_refused(
    url: str, version: tuple[int, ...], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu, "VERSION", kombu.version_info_t(*version, "", ""))
    with pytest.raises(ConfigurationError, match=re.escape(rule)):
        connection(url, Password(file=Path("/a")))


def test_a_password_that_is_asked_for_goes_over_tls_where_the_url_says_so() -> None:
    assert issubclass(connection("amqps://a", Password(file=Path("/a"))).get_transport_cls(), SSLTransport)


def test_another_broker_gets_neither_the_password_nor_the_options_of_the_relays() -> None:
    urls = {"own": "celery://", "other": "celery://?broker=redis://other/0"}
    options = {"global_keyprefix": "relay:"}
    settings = Settings(
        broker_url="redis://own/0", broker_password={"file": "/a"}, broker_transport_options=options, destinations=urls
    )
    settings = settings.replace(source="/shop")
    own, other = (app_of(each, settings).conf for each in settings.destinations.values())
    assert (own.broker_password, other.broker_password) == (Password(file=Path("/a")), None)
    assert own.broker_transport_options.items() >= options.items()
    assert "global_keyprefix" not in other.broker_transport_options


def test_behind_a_message_that_failed_nothing_is_sent_once_more() -> None:
    refused = [Outcome.outage("unauthorized", "no"), Outcome.behind()]
    assert _is_refused([Outcome.sent(), *refused])
    for failed in (Outcome.dead("too_large", "it is"), Outcome.retry("busy", "later"), Outcome.outage("away", "gone")):
        assert not _is_refused([failed, *refused])
