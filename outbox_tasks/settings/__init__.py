"""Settings: from keywords, the environment (`OUTBOX_<NAME>`), Django's settings and `outbox.toml`, in that order of
precedence.

They are checked when they are made, so a contradiction stops the program at its start. The error names the setting, its
value and the rule.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from outbox_tasks.errors import ConfigurationError, NoDestinations, NoRoute
from outbox_tasks.feeds.place import LIST, FeedPlace
from outbox_tasks.settings.destination import (
    HIDDEN,
    Count,
    Destination,
    Route,
    Seconds,
    SecondsOrZero,
    Singles,
    Url,
)
from outbox_tasks.settings.django_project import is_django, read_django
from outbox_tasks.settings.operation import OperationSettings
from outbox_tasks.settings.sources import PREFIX, Environment, first_problem, read_file, settings_file
from outbox_tasks.settings.web import WebSettings

CLAIM_QUEUE, PUBLISH_QUEUE, DRAIN_QUEUE = "outbox.claim", "outbox.publish", "outbox.drain"
MAINTAIN_QUEUE, FEED_QUEUE = "outbox.maintain", "outbox.feed"
"""The queues' names are a contract: routing, dashboards and other people's workers rely on them."""

DRAIN_SECONDS = 5.0
"""A drain ends after so many seconds, so that a worker can be stopped, and others have their turn."""

USUAL_STATEMENT = 3.0
"""Seconds that a statement may take if the relay sets no limit: the limit that its role has then."""


class Settings(WebSettings, OperationSettings, BaseSettings):
    """All settings of the relay. Times are in seconds. Raises `ConfigurationError`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    database_url: Url | None = Field(default=None, repr=False)
    """Where the outbox tables are: postgresql://…"""
    database_schema: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")
    """The schema of the outbox tables; none: the first one of the connection's search_path."""
    broker_url: Url | None = Field(default=None, repr=False)
    """Celery's broker. Give it a Redis database of its own."""
    broker_transport_options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """kombu's transport options for it, over the relay's own: `master_name` for Redis Sentinel, for example."""
    source: str = Field(default="/outbox_tasks", min_length=1, max_length=255)
    """The CloudEvents `source` of every message: which system speaks."""
    destinations: dict[str, Destination] = Field(default_factory=dict)
    """Where messages can go, by name."""
    routes: dict[str, Route] = Field(default_factory=dict)
    """Event type patterns (`order.*`) → destinations; the first pattern that matches counts."""

    feeds: dict[str, FeedPlace | str] = Field(default_factory=dict, repr=False)
    """Databases from which the relay copies messages, by name. `list` is a query of the relay's database for more: it
    returns a name, a URL and a schema, which may be null."""

    claim_interval: Seconds = 1.0
    """How often beat wakes the claim; what the nudge missed waits this long at most."""
    singles: Singles = 50
    """How many due messages of a destination travel as Celery tasks of their own. If more are due, drains send them in
    batches. "all": always singly; 0: never, and a commit wakes a drain, for the lowest latency."""
    nudge: bool = True
    """Wake the claim right after a commit, so that messages need not wait for beat."""

    send_timeout: Seconds = 10.0
    """The longest that one send to a destination may take."""
    statement_timeout: SecondsOrZero = 3.0
    """The longest that one statement may run; 0: the relay asks for no limit (as behind PgBouncer). It gives up a
    connection that has not answered 2 s later (if it is 0, after 10 s)."""
    queue_lease: Seconds = 60.0
    """How long a claimed message may wait in the queue before it may be claimed again."""

    backoff_base: Seconds = 1.0
    """The wait after the first failed attempt."""
    backoff_cap: Seconds = 3600.0
    """The wait before attempt n + 1 is base · 2^(n-1), at most the cap, plus up to a quarter at random."""

    breaker_failures: Count = 5
    """How many sends in a row, in the cluster, of as many different messages, must find a destination out of reach
    before its circuit opens."""
    breaker_pause: Seconds = 5.0
    """How long the circuit is open at first; then up to three messages try, one by one. If all fail, the next pause is
    twice as long, up to twelve times this."""

    _file: Path = PrivateAttr(default_factory=lambda: settings_file().absolute())
    _found: bool = PrivateAttr(default_factory=lambda: settings_file().exists())

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise first_problem(error, type(self).model_fields) from None
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
        project, its_database = read_django()
        said = [InitSettingsSource(settings_cls, values) for values in (project, read_file(), its_database)]
        return init_settings, Environment(settings_cls), *said

    def replace(self, **values: Any) -> Self:
        """A copy with other values, checked like the first."""
        return type(self)(**{**self.model_dump(exclude_unset=False), **values})

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

    def feed(self, name: str) -> FeedPlace | None:
        """A feed by its name; None: it is not here, but perhaps the query for feeds knows it."""
        found = self.feeds.get(name)
        return found if isinstance(found, FeedPlace) else None

    def of_feed(self, name: str) -> Settings:
        """These settings with the routes of a feed."""
        feed = self.feed(name)
        if feed is None or not feed.routes:
            return self
        others = {pattern: route for pattern, route in self.routes.items() if pattern not in feed.routes}
        return self.model_copy(update={"routes": {**feed.routes, **others}})

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

    def singles_of(self, destination: str) -> int | Literal["all"]:
        """How many due messages of `destination` travel as Celery tasks of their own. With a `concurrency` none do:
        only the slots of drains are counted for the whole cluster, also while several claims run."""
        configured = self.destinations[destination]
        if configured.concurrency is not None:
            return 0
        return self.singles if configured.singles is None else configured.singles

    def with_singles(self, singles: int | Literal["all"]) -> Self:
        """These settings with this number of singles for all destinations."""
        destinations = {name: each.model_copy(update={"singles": None}) for name, each in self.destinations.items()}
        return self.model_copy(update={"singles": singles, "destinations": destinations})

    def dead_blocks(self, destination: str) -> bool:
        """Whether a dead message holds up those behind it with the same key. It does not if the destination is not
        configured: the messages wait for the configuration."""
        own = self.destinations.get(destination)
        return own is not None and own.on_dead == "block"

    def send_timeout_of(self, destination: str) -> float:
        """The longest that one send to `destination` may take."""
        own = self.destinations.get(destination)
        return (own and own.send_timeout) or self.send_timeout

    def sending_time_of(self, destination: str) -> float:
        """Seconds after which a batch begins no further send. One of `send_timeout` can still be settled in time."""
        return self.soft_time_limit - self.send_timeout_of(destination) - 2 * self.statement_timeout

    def limits_of(self, destination: str) -> Self:
        """These settings with the timeout of `destination`."""
        return self.model_copy(update={"send_timeout": self.send_timeout_of(destination)})

    # What follows from the settings above. In this order, each is longer than the one before:
    # longest_send, soft_time_limit, hard_time_limit, send_lease.

    @property
    def longest_send(self) -> float:
        """Seconds that a send to the slowest destination may take, with the statements that begin and settle it."""
        slowest = max([self.send_timeout, *map(self.send_timeout_of, self.destinations)])
        return slowest + 2 * (self.statement_timeout or USUAL_STATEMENT)

    @property
    def send_lease(self) -> float:
        """The lease that a begun send has at least: 40 s (or two thirds of `queue_lease`, if that is shorter), and more
        if a send may take long."""
        return max(2.5 * self.longest_send, min(40.0, self.queue_lease * 2 / 3))

    @property
    def soft_time_limit(self) -> float:
        """Celery's soft limit for a publish task. A send that still runs is given up, and settled as a retry."""
        return 0.45 * self.send_lease

    @property
    def hard_time_limit(self) -> float:
        """Celery's hard limit: the worker process is killed, and the lease brings its messages back."""
        return 0.625 * self.send_lease

    @property
    def drain_lease(self) -> float:
        """For how long a drain has its slot, from when it was asked for, and again from its begin: until its last batch
        has been sent."""
        return DRAIN_SECONDS + self.hard_time_limit

    @property
    def unhurried(self) -> float:
        """Seconds for a statement that did not end in time before: most of what a send may take."""
        return max(self.statement_timeout, self.soft_time_limit * 2 / 3)

    @property
    def native_retry_max(self) -> float:
        """Waits up to this are Celery's own retry; longer ones go back to the table."""
        return min(60.0, self.queue_lease)

    @property
    def least_visibility_timeout(self) -> float:
        """Twice as long as a retry may wait without being acknowledged."""
        return 2 * (self.native_retry_max * 1.25 + self.queue_lease)

    @property
    def visibility_timeout(self) -> float:
        """Seconds after which workers of the relay on Redis take an unacknowledged task for lost."""
        return max(3600.0, self.least_visibility_timeout)

    @property
    def breaker_pause_max(self) -> float:
        """The longest that a circuit is open between two tries."""
        return 12 * self.breaker_pause

    def _check_contradictions(self) -> None:
        if self.backoff_cap < self.backoff_base:
            rule = f"it must be at least backoff_base ({self.backoff_base:g})"
            raise ConfigurationError(setting="backoff_cap", value=self.backoff_cap, rule=rule)
        for destination in self.destinations.values():
            destination.check_claim_check()
            destination.check_confirm()
        places: dict[tuple[str, str | None], str] = {}
        for name, feed in self.feeds.items():
            if isinstance(feed, str) is not (name == LIST):
                rule = "it must be a query" if name == LIST else "it must be a table with a url"
                raise ConfigurationError(setting=f"feeds.{name}", value=HIDDEN, rule=rule)
            if isinstance(feed, FeedPlace):
                other = places.setdefault((feed.url, feed.url_schema), name)
                if other != name:
                    rule = f"it is the source of feeds.{other} too: each would copy every row"
                    raise ConfigurationError(setting=f"feeds.{name}.url", value=HIDDEN, rule=rule)
                self._check_routes(f"feeds.{name}.", feed.routes)
        self._check_routes("", self.routes)

    def _check_routes(self, prefix: str, routes: dict[str, Route]) -> None:
        for pattern, route in routes.items():
            for name in route.to:
                if name not in self.destinations:
                    rule = f"the route names a destination that is not configured (known: {self._known})"
                    raise ConfigurationError(setting=f"{prefix}routes.{pattern!r}", value=name, rule=rule)
