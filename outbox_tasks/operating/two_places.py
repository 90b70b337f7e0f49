"""Two settings that name two places: one of them is left over, or somebody looks at the wrong one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from celery import Celery

from outbox_tasks.broker.places import joined, same_place
from outbox_tasks.errors import OutboxError
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.settings.django_project import DATABASE, in_project, place_of, read_django
from outbox_tasks.settings.sources import PREFIX, read_file, settings_file
from outbox_tasks.text import redacted

CODE = "the settings in code"


@dataclass(frozen=True)
class TwoPlaces:
    """A setting with two values."""

    used: str
    """Where the one stands that counts."""
    ignored: str
    """Where the other one stands."""
    here: str
    there: str
    breaks: bool
    """Whether something can't work: the other one is where an application writes, or what a worker takes from."""

    @property
    def fact(self) -> str:
        """What is so, as a sentence."""
        return f"{self.used} names {self.here}, and {self.ignored} names {self.there}."


def two_places(settings: Settings, app: Celery | None = None) -> Iterator[TwoPlaces]:
    """What the settings name twice, and not alike. `app`: the one that the relay is installed in."""
    for name in ("database_url", "broker_url"):
        value: str | None = getattr(settings, name)
        if value is None:
            continue
        said = _said(name)
        if name == "broker_url" and app is not None and (broker := joined(app.conf.broker_read_url)):
            said["the Celery app"] = broker
        used = next((where for where, one in said.items() if one == value), CODE)
        for where, other in said.items():
            if name == "broker_url":
                same = same_place(value, other)
            else:
                same = (where == DATABASE and in_project(value)) or _same_database(settings, other)
            if not same:
                breaks = where in (DATABASE, "the Celery app")
                yield TwoPlaces(used, where, redacted(value), redacted(other), breaks)


def _said(name: str) -> dict[str, str]:
    """The values of a setting by where they stand, the first one counts."""
    project, its_database = read_django()
    places = {
        f"{PREFIX}{name.upper()}": os.environ,
        "OUTBOX in Django's settings": project,
        str(settings_file()): read_file(),
        DATABASE: its_database,
    }
    found = ((where, values.get(where if values is os.environ else name)) for where, values in places.items())
    return {where: str(value) for where, value in found if value}


def _same_database(settings: Settings, other: str) -> bool:
    """Whether another URL leads to the relay's database. If the URLs don't say so, the servers are asked: a pooler, or
    another name of the host, may be between."""
    if settings.database_url == other:
        return True
    try:
        stores = Store.connect(settings), Store.connect(settings.replace(database_url=other))
        with closing(stores[0]) as one, closing(stores[1]) as two:
            return place_of(one.engine.url) == place_of(two.engine.url) or one.identity == two.identity
    except OutboxError:
        return False
