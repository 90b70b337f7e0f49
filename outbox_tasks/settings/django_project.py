"""What a Django project's settings.py says: `OUTBOX = {…}`, and the database in `DATABASES`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from psycopg import pq
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from outbox_tasks.errors import ConfigurationError

ALIAS, APP = "default", "outbox_tasks.django"
VARIABLE = "DJANGO_SETTINGS_MODULE"
DATABASE = f"DATABASES[{ALIAS!r}]"
"""Where a project names the database of the outbox's tables."""


def read_django() -> tuple[dict[str, Any], dict[str, Any]]:
    """What `OUTBOX` says; and the URL of Django's default database, if the outbox's app makes its tables there.

    Both are empty where there is no Django project: it has its settings, or DJANGO_SETTINGS_MODULE says where they are.
    An error inside the project's settings is raised as it is.
    """
    if not is_django():
        return {}, {}
    from django.conf import settings

    try:
        own = getattr(settings, "OUTBOX", {})
    except ModuleNotFoundError as error:
        module = os.environ.get(VARIABLE, "")
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        rule = "there is no such module; start in the project's directory, or leave the variable out"
        raise ConfigurationError(setting=VARIABLE, value=module, rule=rule) from None
    database = settings.DATABASES.get(ALIAS, {})
    has_tables = any(app.startswith(APP) for app in settings.INSTALLED_APPS)
    return dict(own), {"database_url": database_url(database)} if has_tables and is_postgresql(database) else {}


def is_django() -> bool:
    """Whether this process has the settings of a Django project."""
    if os.environ.get(VARIABLE):
        return "django" in sys.modules or find_spec("django") is not None
    return "django.conf" in sys.modules and bool(sys.modules["django.conf"].settings.configured)


def is_postgresql(database: Mapping[str, Any]) -> bool:
    """Whether an entry of `DATABASES` is PostgreSQL, as far as the name of its engine says so."""
    return any(word in database.get("ENGINE", "") for word in ("postgres", "postgis", "psqlextra"))


def database_url(database: Mapping[str, Any]) -> str:
    """The URL of an entry of `DATABASES`. Of its OPTIONS it has those that libpq knows, and the role that Django would
    assume; the others are Django's own."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    options = database.get("OPTIONS", {})
    query = {name: str(value) for name, value in options.items() if name in known}
    if role := options.get("assume_role"):
        escaped = re.sub(r"([\\\s])", r"\\\1", role)
        query["options"] = f"{query.get('options', '')} -c role={escaped}".lstrip()
    host, port = str(database.get("HOST") or ""), database.get("PORT")
    if host.startswith("/"):  # the directory of a socket
        query["host"], host = host, ""
    elif "," in host:  # several servers
        query.update(host=host, **({"port": str(port)} if port else {}))
        host, port = "", None
    try:
        port = int(port) if port else None
    except ValueError:
        raise ConfigurationError(setting="PORT in DATABASES", value=port, rule="it must be a number") from None
    url = URL.create(
        "postgresql", database.get("USER") or None, database.get("PASSWORD") or None, host or None, port,
        database.get("NAME") or None, query,
    )  # fmt: skip
    return url.render_as_string(hide_password=False)


_declared: dict[str, URL] = {}
"""Django's PostgreSQL databases by alias, as its settings name them. Its tests make others in their place."""


def note_databases() -> None:
    """Remember where Django's databases are, before its tests make others."""
    from django.conf import settings

    ours = {alias: each for alias, each in settings.DATABASES.items() if is_postgresql(each)}
    _declared.update({alias: make_url(database_url(each)) for alias, each in ours.items()})


def alias_of(url: str | None) -> str | None:
    """The alias of Django's database with this URL, or of the one that Django's tests have made in its place."""
    if not (url and _declared):
        return None
    place = _place_named(url)
    for alias, declared in _declared.items():
        if place in (place_of(declared), place_of(declared.set(database=name_in_tests(alias) or declared.database))):
            return alias
    return None


def name_in_tests(alias: str | None) -> str | None:
    """The name of the database that Django's tests have made in the place of this one; None: these are no tests."""
    if alias not in _declared:
        return None
    from django.db import connections

    name: str | None = connections[alias].settings_dict["NAME"] or None
    return None if name == _declared[alias].database else name


def now_at(url: str) -> str:
    """The URL; in Django's tests, that of the database which they made in the place of this one."""
    name = name_in_tests(alias_of(url))
    return url if name is None else make_url(url).set(database=name).render_as_string(hide_password=False)


def in_project(url: str) -> bool:
    """Whether this is the URL of one of the databases of Django's project."""
    from django.conf import settings

    databases = (make_url(database_url(each)) for each in settings.DATABASES.values() if is_postgresql(each))
    return alias_of(url) is not None or _place_named(url) in map(place_of, databases)


def _place_named(url: str) -> tuple[object, ...]:
    try:
        return place_of(make_url(url))
    except (ArgumentError, ValueError):  # whoever connects says so
        return ()


def place_of(url: URL) -> tuple[object, ...]:
    """Host, port and database."""
    return url.host or url.query.get("host"), url.port or url.query.get("port") or 5432, url.database
