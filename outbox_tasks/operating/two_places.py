"""Settings that stand in two places with different values: one is left over, or somebody looks at the wrong server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from celery import Celery

from outbox_tasks.broker.places import joined, same_place
from outbox_tasks.errors import OutboxError
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.settings.django_project import DATABASE, in_project, place_of, read_django
from outbox_tasks.settings.sources import PREFIX, read_file, settings_file
from outbox_tasks.text import redacted

CODE, APP = "the settings in code", "the Celery app"


class TwoPlaces(NamedTuple):
    """A setting that stands in two places, with values that lead to different servers."""

    used: str
    """Where the value stands that counts."""
    ignored: str
    """Where the other value stands."""
    fact: str
    """Both, with what they name, as a sentence."""
    breaks: bool
    """Whether something can't work: the other value says where an application writes, or where its workers take."""


def two_places(settings: Settings, app: Celery | None = None) -> Iterator[TwoPlaces]:
    """The settings that stand in two places with different values. `app`: the one that the relay is installed in."""
    for name in ("database_url", "broker_url"):
        url: str | None = getattr(settings, name)
        if url is None:
            continue
        urls = _urls(name)
        if name == "broker_url" and app is not None and (broker := joined(app.conf.broker_read_url)):
            urls[APP] = broker
        used = next((where for where, other in urls.items() if other == url), CODE)
        for where, other in urls.items():
            if name == "broker_url":
                same = same_place(url, other)
            else:
                same = (where == DATABASE and in_project(url)) or _same_database(settings, other)
            if not same:
                fact = f"{used} names {redacted(url)}, and {where} names {redacted(other)}."
                yield TwoPlaces(used, where, fact, breaks=where in (DATABASE, APP))


def _urls(name: str) -> dict[str, str]:
    """The values of a setting, by the place where each stands. The first one counts."""
    project, its_database = read_django()
    values = {
        (variable := f"{PREFIX}{name.upper()}"): os.environ.get(variable),
        "OUTBOX in Django's settings": project.get(name),
        str(settings_file()): read_file().get(name),
        DATABASE: its_database.get(name),
    }
    return {where: str(value) for where, value in values.items() if value}


def _same_database(settings: Settings, other: str) -> bool:
    """Whether another URL leads to the relay's database. If the URLs don't say so, the servers are asked: one URL may
    lead through a pooler, or name the host in another way. Servers that can't be asked count as two."""
    if settings.database_url == other:
        return True
    try:
        stores = Store.connect(settings), Store.connect(settings.replace(database_url=other))
        with closing(stores[0]) as own, closing(stores[1]) as named:
            return place_of(own.engine.url) == place_of(named.engine.url) or own.identity == named.identity
    except OutboxError:
        return False
