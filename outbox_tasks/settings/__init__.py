"""Settings: from keywords, the environment (`OUTBOX_<NAME>`) and `outbox.toml`, in that order of precedence.

Everything is checked when the settings are made, so that a contradiction stops the program at its start
and names the setting, its value and the rule that it breaks.
"""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, ImportString, PrivateAttr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from outbox_tasks.errors import (
    ConfigurationError,
    NoDestinations,
    NoRoute,
    NoTaskDestination,
    SettingsFileError,
    UnknownDestination,
)
from outbox_tasks.settings.destination import (
    HIDDEN,
    BatchSize,
    BundleSize,
    Count,
    Destination,
    ProcessesOrNone,
    Route,
    Seconds,
    SecondsOrZero,
    Span,
    Url,
)
from outbox_tasks.settings.operation import Upkeep

log = logging.getLogger(__name__)

PREFIX = "OUTBOX_"
CONFIG_VARIABLE = "OUTBOX_CONFIG"
DEFAULT_FILE = "outbox.toml"
NOT_SETTINGS = {CONFIG_VARIABLE, "OUTBOX_FLOWER_PASSWORD"}
"""Variables with our prefix that are read elsewhere: the settings file's place, and Flower's password."""

CLAIM_QUEUE, PUBLISH_QUEUE, MAINTAIN_QUEUE = "outbox.claim", "outbox.publish", "outbox.maintain"
"""The queues' names are a contract: routing, dashboards and other people's workers rely on them."""


SLOW = 0.25
"""Seconds after which a send under way counts as slow: whoever waited for it would hold up others."""


class Settings(Upkeep, BaseSettings):
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

    serializer: ImportString[Callable[[Any], tuple[bytes, str]]] | None = None
    """`module.function`, for payloads that are neither str nor bytes: payload → (bytes, content type). None: JSON."""

    claim_interval: Seconds = 1.0
    """How often beat wakes the claim; what the nudge missed waits this long at most."""
    claim_expires: Seconds = 5.0
    """How long one run of the claim goes on at most; then the next one takes over."""
    claim_batch: BatchSize = 1000
    """Rows leased by one statement, shared among the destinations."""
    bundle_size: BundleSize = 100
    """Most messages in one bundle; 1: one Celery message for each outbox message."""
    max_in_flight: Count = 10_000
    """Back-pressure: no more is leased while this many messages wait for publish workers. At most half
    of what the workers can publish within `queue_lease`, or leases run out in the queue."""
    await_writers: bool = True
    """Leave messages with a key alone while a transaction that has written such messages before them has not ended. If
    not, it may be overtaken: what overlapping transactions write under one key is sent as they commit."""
    reserve: ProcessesOrNone = 1
    """Publish processes that one destination always leaves to the others, if there are others: however slow it is, it
    can't hold them all."""
    nudge: bool = True
    """Wake the claim right after a commit, so that messages need not wait for beat."""

    queue_lease: Seconds = 60.0
    """How long a claimed message may wait in the queue before it may be claimed again."""
    run_lease: Seconds = 40.0
    """What a begun send is granted at least."""
    send_timeout: Seconds = 10.0
    """The longest that one send to a destination may take."""
    statement_timeout: SecondsOrZero = 3.0
    """The longest that one statement may run; 0: no limit is asked for (as behind PgBouncer). A connection on which
    no answer has come 2 s later (if it is 0, after 10 s) is given up."""
    soft_time_limit: Seconds = 18.0
    """Celery's soft limit for a publish task: what is still being sent is given up, and settled as a retry."""
    hard_time_limit: Seconds = 25.0
    """Celery's hard limit: the worker process is killed, and the lease brings its messages back."""
    soft_shutdown_timeout: Seconds = 25.0
    """How long a stopping worker lets running tasks end."""
    visibility_timeout: Span = 3600.0
    """When an application's workers that run the relay on Redis take an unacknowledged task for lost."""

    backoff_base: Seconds = 1.0
    """The wait after the first failed attempt."""
    backoff_cap: Seconds = 3600.0
    """The wait before attempt n + 1 is base · 2^(n-1), at most the cap, plus up to a quarter at random."""
    native_retry_max: SecondsOrZero = 60.0
    """Waits up to this are Celery's own retry; longer ones go back to the table."""

    breaker_failures: Count = 5
    """Sends in a row, over the whole cluster, that find a destination out of reach before it is left alone."""
    breaker_pause: Seconds = 5.0
    """How long it is left alone at first; then one message is tried. Doubles with each that fails."""
    breaker_pause_max: Seconds = 60.0
    """The longest that a destination is left alone between two tries."""

    _file: Path = PrivateAttr(default_factory=lambda: _file_path().absolute())
    _found: bool = PrivateAttr(default_factory=lambda: _file_path().exists())

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _first_problem(error) from None
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
        return init_settings, _Environment(settings_cls), InitSettingsSource(settings_cls, _read_file())

    def replace(self, **values: Any) -> Self:
        """A copy with other values, checked like the first."""
        return type(self)(**{**self.model_dump(exclude_unset=False), **values})

    @property
    def origin(self) -> str:
        """Which file was read, or looked for in vain; for people."""
        return f"the settings file is {self._file}" if self._found else f"there is no settings file {self._file}"

    def check_destinations(self) -> None:
        """Raises `NoDestinations` if there are none: a relay without any could only make dead letters."""
        if not self.destinations:
            raise NoDestinations(origin=self.origin)

    def destination(self, name: str, event_type: str) -> Destination:
        """The destination called `name`. Raises `UnknownDestination`."""
        try:
            return self.destinations[name]
        except KeyError:
            known = ", ".join(sorted(self.destinations)) or "none"
            raise UnknownDestination(event_type=event_type, destination=name, known=known) from None

    def route(self, event_type: str) -> Route | None:
        """The first route whose pattern matches an event type."""
        return next((route for pattern, route in self.routes.items() if fnmatchcase(event_type, pattern)), None)

    def routed(self, event_type: str) -> list[str]:
        """The destinations of an event type: by route, else the only destination there is. Raises `NoRoute`."""
        if (route := self.route(event_type)) is not None:
            return route.to
        if len(self.destinations) == 1:
            return list(self.destinations)
        raise NoRoute(event_type=event_type, known=", ".join(sorted(self.destinations)) or "none")

    def task_destination(self, task: str) -> str:
        """Where a stored Celery task goes: by the first route to a `celery://` destination, else to the only one
        that does not make tasks of events. Raises `NoTaskDestination`."""
        celery = [name for name, destination in self.destinations.items() if destination.scheme == "celery"]
        for pattern, route in self.routes.items():
            if fnmatchcase(task, pattern) and (routed := [name for name in route.to if name in celery]):
                return routed[0]
        free = [name for name in celery if "task" not in parse_qs(urlsplit(self.destinations[name].url).query)]
        if len(free or celery) != 1:
            several = f"there are several celery:// destinations ({', '.join(free or celery)})"
            raise NoTaskDestination(task=task, found=several if celery else "there is no celery:// destination")
        return (free or celery)[0]

    def bundle_size_of(self, destination: str) -> int:
        """Most messages in one bundle to `destination`."""
        return self.destinations[destination].bundle_size or self.bundle_size

    def room_of(self, destination: str, processes: int) -> int | None:
        """How many sends to `destination` may run at once while so many processes publish; None: any number."""
        own = self.destinations[destination].concurrency
        if own is not None or not self.reserve or len(self.destinations) == 1:
            return own
        return max(1, processes - self.reserve)

    def dead_blocks(self, destination: str) -> bool:
        """Whether a dead message holds up those behind it with the same key. Not where the destination isn't
        configured: its messages wait for the configuration."""
        own = self.destinations.get(destination)
        return own is not None and own.on_dead == "block"

    def waves_of(self, destination: str) -> float:
        """Seconds after which a bundle begins no further send: one of `send_timeout` is still settled in time."""
        own = self.destinations.get(destination)
        timeout = (own and own.send_timeout) or self.send_timeout
        return self.soft_time_limit - timeout - 2 * self.statement_timeout

    def patience_of(self, destination: str) -> float:
        """Seconds after which a send holds its slot for long enough that nobody waits for it."""
        return 0.0 if self.destinations[destination].concurrency else SLOW

    def limits_of(self, destination: str) -> Self:
        """These settings with what `destination` overrides: its timeout and its backoff."""
        own = self.destinations[destination]
        names = ("send_timeout", "backoff_base", "backoff_cap")
        return self.model_copy(update={name: value for name in names if (value := getattr(own, name)) is not None})

    @property
    def least_visibility_timeout(self) -> float:
        """Twice as long as a retry may wait without being acknowledged."""
        return 2 * (self.native_retry_max * 1.25 + self.queue_lease)

    def _check_limits(self, prefix: str) -> None:
        """What a destination can override: `prefix` tells whose it is."""
        publish_statements = 2 * self.statement_timeout
        rules = [
            ("send_timeout", self.send_timeout + publish_statements < self.soft_time_limit,
             f"with begin and settle ({publish_statements:g}) it must stay below soft_time_limit "
             f"({self.soft_time_limit:g}), or a slow send is cut before it is settled"),
            ("backoff_cap", self.backoff_cap >= self.backoff_base,
             f"it must be at least backoff_base ({self.backoff_base:g})"),
        ]  # fmt: skip
        for setting, holds, rule in rules:
            if not holds:
                raise ConfigurationError(setting=prefix + setting, value=getattr(self, setting), rule=rule)

    def _check_contradictions(self) -> None:
        least = self.least_visibility_timeout
        rules = [
            ("claim_interval", self.claim_interval < self.claim_expires,
             f"it must be below claim_expires ({self.claim_expires:g}), after which the next claim takes over"),
            ("claim_expires", self.claim_expires < self.queue_lease,
             f"it must be below queue_lease ({self.queue_lease:g})"),
            ("soft_time_limit", self.soft_time_limit < self.hard_time_limit,
             f"it must be below hard_time_limit ({self.hard_time_limit:g})"),
            ("hard_time_limit", self.hard_time_limit < self.run_lease,
             f"it must be below run_lease ({self.run_lease:g}), or a message is claimed again while it is sent"),
            ("visibility_timeout", least <= self.visibility_timeout,
             f"it must be at least twice native_retry_max with jitter plus queue_lease ({least:g}), "
             "or Redis repeats tasks that are only waiting"),
            ("soft_shutdown_timeout", self.soft_shutdown_timeout >= self.hard_time_limit,
             f"it must be at least hard_time_limit ({self.hard_time_limit:g}), or a stop cuts sends short"),
            ("breaker_pause_max", self.breaker_pause_max >= self.breaker_pause,
             f"it must be at least breaker_pause ({self.breaker_pause:g})"),
        ]  # fmt: skip
        for setting, holds, rule in rules:
            if not holds:
                raise ConfigurationError(setting=setting, value=getattr(self, setting), rule=rule)
        self._check_limits("")
        for name in self.destinations:
            self.limits_of(name)._check_limits(f"destinations.{name}.")
        for destination in self.destinations.values():
            destination.check_claim_check()
        for pattern, route in self.routes.items():
            for name in route.to:
                if name not in self.destinations:
                    known = ", ".join(sorted(self.destinations)) or "none"
                    rule = f"the route names a destination that is not configured (known: {known})"
                    raise ConfigurationError(setting=f"routes.{pattern!r}", value=name, rule=rule)


class _Environment(EnvSettingsSource):
    """The environment. It is not ours alone: a variable with our prefix that is no setting is told once, and left."""

    told: ClassVar[set[str]] = set()
    """The variables that this process has told of."""

    def __call__(self) -> dict[str, Any]:
        known = {PREFIX + name.upper() for name in self.settings_cls.model_fields} | NOT_SETTINGS
        for variable in sorted(os.environ.keys() - known - self.told):
            if variable.startswith(PREFIX):
                self.told.add(variable)
                names = [name.removeprefix(PREFIX) for name in known]
                near = difflib.get_close_matches(variable.removeprefix(PREFIX), names, n=1)
                hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
                log.warning("%s is ignored: there is no such setting%s", variable, hint)
        return super().__call__()


def _file_path() -> Path:
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_FILE)


def _read_file() -> dict[str, Any]:
    path = _file_path()
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if os.environ.get(CONFIG_VARIABLE):
            raise SettingsFileError(path=path, reason="there is no such file") from None
        return {}
    except (OSError, ValueError) as error:
        raise SettingsFileError(path=path, reason=error) from None


def _first_problem(error: ValidationError) -> ConfigurationError:
    problem = error.errors()[0]
    setting = ".".join(str(part) for part in problem["loc"]) or "settings"
    value = problem["input"]
    secret = "url" in setting or "claim_check" in setting or problem["type"] == "extra_forbidden" or "://" in str(value)
    if isinstance(value, dict | list) or (isinstance(value, str) and secret):
        value = HIDDEN
    rule = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        fields = Destination.model_fields if setting.startswith("destinations.") else Settings.model_fields
        near = difflib.get_close_matches(setting.rpartition(".")[2], fields, n=1)
        rule = "there is no such setting" + (f"; did you mean {near[0]}?" if near else "")
    return ConfigurationError(setting=setting, value=value, rule=rule)
