"""Settings. `sources` says where they come from.

They are checked when they are made, so a contradiction stops the program at its start. The error names the setting, its
value and the rule.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from outbox_tasks.errors import ConfigurationError, NoDestinations, NoRoute
from outbox_tasks.satellites import satellites
from outbox_tasks.settings.destination import HIDDEN, Destination, Route, Url
from outbox_tasks.settings.django_project import is_django
from outbox_tasks.settings.operation import OperationSettings
from outbox_tasks.settings.password import Password
from outbox_tasks.settings.pipe import PipeSettings
from outbox_tasks.settings.sources import PREFIX, first_problem, settings_file, sources
from outbox_tasks.settings.web import WebSettings

CLAIM_QUEUE, PUBLISH_QUEUE, DRAIN_QUEUE = "outbox.claim", "outbox.publish", "outbox.drain"
MAINTAIN_QUEUE, FEED_QUEUE = "outbox.maintain", "outbox.feed"
"""The queues' names are a contract: routing, dashboards and other people's workers rely on them."""


TABLES: dict[str, type[BaseModel]] = {
    "destinations": Destination,
    "database_password": Password,
    "broker_password": Password,
}
"""The settings that are tables, with the model of an entry or of the table."""


class Settings(WebSettings, OperationSettings, PipeSettings, BaseSettings):
    """All settings of the relay. Times are in seconds. Raises `ConfigurationError`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    database_url: Url | None = Field(default=None, repr=False)
    """Where the outbox tables are: postgresql://…"""
    database_password: Password | None = Field(default=None, repr=False)
    """Where its password or token comes from, if that changes: see passwords.md."""
    database_schema: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")
    """The schema of the outbox tables; none: the first one of the connection's search_path."""
    broker_url: Url | None = Field(default=None, repr=False)
    """Celery's broker. Give it a Redis database of its own."""
    broker_password: Password | None = Field(default=None, repr=False)
    """Where its password or token comes from, if that changes: see passwords.md."""
    broker_transport_options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """kombu's transport options for it, over the relay's own: `master_name` for Redis Sentinel, for example."""
    source: str = Field(default="/outbox_tasks", min_length=1, max_length=255)
    """The CloudEvents `source` of every message: which system speaks."""
    routes: dict[str, Route] = Field(default_factory=dict)
    """Event type patterns (`order.*`) → destinations; the first pattern that matches counts."""

    feeds: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Databases from which the relay copies messages, by name: see `outbox_tasks.feeds.place`. `list` is a query of the
    relay's database for more: it returns a name, a URL and a schema, which may be null."""

    _file: Path = PrivateAttr(default_factory=lambda: settings_file().absolute())
    _found: bool = PrivateAttr(default_factory=lambda: settings_file().exists())

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise first_problem(error, type(self).model_fields, TABLES) from None
        except SettingsError as error:
            setting = str(error).partition('field "')[2].partition('"')[0]
            rule = "it must be written as JSON"
            raise ConfigurationError(setting=setting, value=HIDDEN, rule=rule) from None
        for name, destination in self.destinations.items():
            self.destinations[name] = destination.model_copy(update={"name": name})
        self._check_contradictions()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return sources(settings_cls, init_settings)

    def replace(self, **values: Any) -> Self:
        """A copy with other values, checked like the first."""
        return type(self)(**{**self.model_dump(), **values})

    @property
    def origin(self) -> str:
        """Which settings file was read, or that there is none; for people."""
        return f"the settings file is {self._file}" if self._found else f"there is no settings file {self._file}"

    def check_destinations(self) -> None:
        """Raises `NoDestinations` if there are none: a relay without any could only make dead letters."""
        if not self.destinations:
            own = "[destinations.<name>] with a url to the settings file"
            in_django = '"destinations": {"<name>": {"url": …}} to OUTBOX in Django\'s settings'
            raise NoDestinations(origin=self.origin, addition=in_django if is_django() else own)

    def destination(self, name: str, event_type: str) -> Destination:
        """The destination called `name`. Raises `NoRoute`."""
        try:
            return self.destinations[name]
        except KeyError:
            reason = (
                f"{name!r} is not a configured destination. Known: {self._known}. Add [destinations.{name}] to "
                "outbox.toml, or correct the name"
            )
            raise NoRoute(event_type=event_type, reason=reason) from None

    @property
    def _known(self) -> str:
        return ", ".join(sorted(self.destinations)) or f"none ({self.origin})"

    def route(self, event_type: str) -> Route | None:
        """The first route whose pattern matches an event type."""
        for pattern, route in self.routes.items():
            if fnmatchcase(event_type, pattern):
                return route
        return None

    def routed(self, event_type: str) -> list[str]:
        """The destinations of an event type: by route, else the only destination there is. Raises `NoRoute`."""
        if (route := self.route(event_type)) is not None:
            return route.to
        if len(self.destinations) == 1:
            return list(self.destinations)
        reason = (
            "no route names a destination for it, `to` was not given, and there isn't exactly one destination. Known "
            f"destinations: {self._known}. Add a route to outbox.toml, or pass `to=`"
        )
        raise NoRoute(event_type=event_type, reason=reason)

    def task_destination(self, task: str) -> str:
        """Where a stored Celery task goes: by the first route to a `celery://` destination, else to the only one
        that does not make tasks of events. Raises `NoRoute`."""
        celery = [name for name, destination in self.destinations.items() if destination.scheme == "celery"]
        for pattern, route in self.routes.items():
            if fnmatchcase(task, pattern) and (routed := [name for name in route.to if name in celery]):
                return routed[0]
        free = [name for name in celery if not self.destinations[name].option("task")]
        if len(free or celery) != 1:
            several = f"there are several celery:// destinations ({', '.join(free or celery)})"
            reason = (
                f"its destination is unknown: {several if celery else 'there is no celery:// destination'}. Add a "
                'destination for tasks to outbox.toml ([destinations.tasks] with url = "celery://"). If there are '
                "several, add a route for this task's name"
            )
            raise NoRoute(event_type=task, reason=reason)
        return (free or celery)[0]

    def with_singles(self, singles: int | Literal["all"]) -> Self:
        """These settings with this number of singles for all destinations."""
        destinations = {name: each.model_copy(update={"singles": None}) for name, each in self.destinations.items()}
        return self.model_copy(update={"singles": singles, "destinations": destinations})

    def dead_blocks(self, destination: str) -> bool:
        """Whether a dead message holds up those behind it with the same key. It does not if the destination is not
        configured: the messages wait for the configuration."""
        configured = self.destinations.get(destination)
        return configured is not None and configured.on_dead == "block"

    def limits_of(self, destination: str) -> Self:
        """These settings with the timeout of `destination`."""
        return self.model_copy(update={"send_timeout": self.send_timeout_of(destination)})

    def _check_contradictions(self) -> None:
        if self.backoff_cap < self.backoff_base:
            rule = f"it must be at least backoff_base ({self.backoff_base:g})"
            raise ConfigurationError(setting="backoff_cap", value=self.backoff_cap, rule=rule)
        for destination in self.destinations.values():
            destination.check_claim_check()
            destination.check_confirm()
        self.check_routes("", self.routes)
        for each in satellites().values():
            each.check_settings(self)

    def check_routes(self, prefix: str, routes: dict[str, Route]) -> None:
        """Raises `ConfigurationError` if a route leads nowhere. `prefix`: where the routes stand, before `routes.`."""
        for pattern, route in routes.items():
            for name in route.to:
                if name not in self.destinations:
                    rule = f"the route names a destination that is not configured (known: {self._known})"
                    raise ConfigurationError(setting=f"{prefix}routes.{pattern!r}", value=name, rule=rule)
