"""`outbox-tasks check --app` says which stored tasks the code of today can't run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from celery import Celery, chain
from sqlalchemy import Engine, func
from sqlalchemy.orm import Session

from outbox_tasks.guard.stored import failing
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows
from tests.integration.conftest import environment


@pytest.fixture
def shop_settings(settings: MakeSettings) -> Settings:
    return settings(nudge=False, destinations={"tasks": "celery://?accept=json,yaml"})


@pytest.fixture
def outbox(shop_settings: Settings, rows: Rows) -> Outbox:
    return Outbox(shop_settings)


def app_of(**functions: Any) -> Celery:
    """An app whose tasks are these functions, called stored.<name>."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    for name, function in functions.items():
        app.task(function, name=f"stored.{name}", shared=False)
    return app


def mail(order: int, lang: str = "en", *, urgent: bool = False) -> None: ...


def ship(result: Any, order: int) -> None: ...


def test_tasks_that_fit_are_passed_over(outbox: Outbox, store: Store, engine: Engine, shop_settings: Settings) -> None:
    app = app_of(mail=mail, ship=ship)
    task = app.tasks["stored.mail"]
    with Session(engine) as session, session.begin():
        outbox.publish(session, "order.created", {"args": "none"}, to="tasks")
        for args, kwargs in (((1,), {}), ((1, "de"), {"urgent": True}), ((), {"order": 1})):
            outbox.apply_async(session, task, args, kwargs)
        ship_it = app.tasks["stored.ship"]
        outbox.apply_async(session, task, (1,), countdown=3600, link_error=ship_it.s())
        outbox.apply_async(session, chain(task.s(1), ship_it.s(1), ship_it.si(1, 2)))
    assert failing(store, shop_settings, [app]) == []


def test_each_reason_is_told_with_its_number(
    outbox: Outbox, store: Store, rows: Rows, engine: Engine, shop_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.guard.stored.MESSAGES_A_READ", 2)
    old = app_of(mail=mail, ship=ship, gone=mail, moved=mail, binary=mail, followed=mail)
    old.conf.task_serializer = "json"
    tasks = {name.removeprefix("stored."): task for name, task in old.tasks.items() if name.startswith("stored.")}
    with Session(engine) as session, session.begin():
        for _ in range(2):
            outbox.delay(session, tasks["mail"], 1, lang="de")
        outbox.apply_async(session, tasks["mail"], (1,), {"lang": "de"}, countdown=3600)
        outbox.delay(session, tasks["gone"], 1)
        outbox.delay(session, tasks["ship"], 1, 2)
        outbox.apply_async(session, chain(tasks["followed"].s(1), tasks["gone"].si(1)))
    dead = rows.insert(1, status="dead", destination="tasks", event_type="stored.moved", payload=b"[[], {}, {}]",
                       headers={"celery-message": "{}"})  # fmt: skip
    places: list[dict[str, Any]] = [{}, {"key": "k", "attempts": 1}, {"handed_at": func.now()}]
    for place in places:  # ready, held, handed over
        rows.insert(1, destination="left", event_type="stored.mail", headers={"celery-message": "{}"}, **place)
    rows.insert(
        1, destination="tasks", event_type="stored.binary", payload=b"no JSON", headers={"celery-message": "{}"}
    )

    def no_lang(order: int) -> None: ...
    def later(result: Any, order: int, carrier: str) -> None: ...

    new = app_of(mail=no_lang, ship=later, moved=mail, binary=mail, followed=mail)
    groups = failing(store, shop_settings, [new])
    assert [(each.task, each.number) for each in groups[:3]] == [("stored.mail", 3), ("stored.mail", 3), (ANY, 1)]
    assert {(each.task, each.reason) for each in groups} == {
        ("stored.mail", "got an unexpected keyword argument 'lang'"),
        ("stored.mail", "there is no celery:// destination left"),
        ("stored.gone", "there is no such task"),
        ("stored.ship", "missing a required argument: 'carrier'"),
        ("stored.followed", "it is followed by stored.gone, and there is no such task"),
        ("stored.moved", "missing a required argument: 'order'"),
        ("stored.binary", "its payload is not that of a task"),
    }
    [moved] = [each for each in groups if each.task == "stored.moved"]
    assert [str(moved.first)] == [str(id) for id in dead]


def test_a_task_without_typing_takes_all(outbox: Outbox, store: Store, engine: Engine, shop_settings: Settings) -> None:
    def nothing() -> None: ...

    with Session(engine) as session, session.begin():
        outbox.apply_async(session, app_of(yaml=mail).tasks["stored.yaml"], (1,), serializer="yaml")  # it is not read
        outbox.delay(session, app_of(mail=mail).tasks["stored.mail"], 1)
    loose = app_of(mail=nothing, yaml=nothing)
    [misfit] = failing(store, shop_settings, [loose])
    assert (misfit.task, misfit.reason) == ("stored.mail", "too many positional arguments")
    loose.tasks["stored.mail"].typing = False
    assert failing(store, shop_settings, [loose]) == []
    assert failing(store, shop_settings, [app_of(other=nothing), loose]) == []


def test_the_command_lists_them_and_ends_with_1(
    outbox: Outbox, engine: Engine, shop_settings: Settings, tmp_path: Path
) -> None:
    def check(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [Path(sys.executable).with_name("outbox-tasks"), "check", *arguments]
        variables = {**environment(shop_settings), "PATH": ""}
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    (tmp_path / "shop.py").write_text(
        "from celery import Celery\napp = Celery('shop', broker='memory://')\n"
        "@app.task(name='stored.mail')\ndef mail(order): pass\n"
    )
    with Session(engine) as session, session.begin():
        outbox.delay(session, app_of(mail=mail).tasks["stored.mail"], 1)
    fits = check("--app", "shop:app")
    assert (fits.returncode, fits.stdout) == (0, "Each stored task can be run by this code.\n"), fits.stderr
    with Session(engine) as session, session.begin():
        result = outbox.delay(session, app_of(mail=mail).tasks["stored.mail"], 1, lang="de")
    failed = check("--app", "shop")
    assert (failed.returncode, failed.stderr.split(".")[0]) == (1, "1 stored task would fail")
    assert failed.stdout.startswith("1 stored.mail to tasks: got an unexpected keyword argument 'lang'; the first: ")
    assert result.id
    [fact] = json.loads(check("--app", "shop", "--json").stdout)
    assert fact["number"] == 1
    assert "can't be loaded" in check("--app", "missing").stderr
    assert check().returncode == check("shop.py", "--app", "shop").returncode == 2
