"""A destination as it is configured: where messages can go, and how."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, parse_qsl

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.model import MAX_PAYLOAD_BYTES
from outbox_tasks.settings.password import Password
from outbox_tasks.text import redacted

LARGEST_CLAIM_CHECK_BYTES = 64 * 1024 * 1024
"""The largest payload with a `claim_check`. It is in the database and in memory too."""

STORAGE = re.compile(r"(?:(?:file|local):///|(?!file:|local:)[a-z][a-z0-9+.-]*://(?:[^\s?#/@]*@)?)[^\s?#%@]*")
"""What `claim_check` may be. With a message's id at its end, it must be a URL that any consumer can read."""

HIDDEN = "…"
"""Errors show this for a value that may hold credentials."""


URL = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)
"""The parts of a URL: RFC 3986, appendix B."""


@lru_cache
def split(url: str) -> SplitResult:
    """The parts of a URL that may name several hosts. `urlsplit` may refuse an IPv6 address behind another host."""
    scheme, *rest = URL.findall(url)[0]
    return SplitResult(scheme.lower(), *rest)


PLAIN_URL = re.compile("(?<==)[^&=]*://[^&]*")
"""The value of an option that is a URL, and not encoded as a whole: broker=redis://…"""


@lru_cache
def options_of(url: str) -> tuple[tuple[str, str], ...]:
    """The options behind the question mark, decoded. A plus is a plus, as in base64; a space is %20. A plain URL is not
    decoded: its reader does that, and its password may have a %23."""
    query = PLAIN_URL.sub(lambda match: match[0].replace("%", "%25"), split(url).query)
    return tuple(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))


EXAMPLES = {
    "database_url": "postgresql://user@host:5432/database",
    "broker_url": "redis://localhost:6379/0",
}
"""URLs by setting. All others are those of destinations."""


def _has_scheme(url: str, info: ValidationInfo) -> str:
    if "://" not in url[1:]:
        example = EXAMPLES.get(info.field_name or "", "redis+stream://localhost:6379/1/orders")
        raise ValueError(f"it must be a URL such as {example}")
    return url


def _is_storage(url: str) -> str:
    if not STORAGE.fullmatch(url):
        rule = "it must be a URL such as s3://bucket/prefix or file:///srv/outbox, without spaces, ?, #, % and @"
        raise ValueError(rule)
    return url


Url = Annotated[str, AfterValidator(_has_scheme)]
StorageUrl = Annotated[str, AfterValidator(_is_storage)]
WebUrl = Annotated[str, Field(pattern="^https?://[^/?#]")]

WEEK_SECONDS, CENTURY_SECONDS = 7 * 86_400.0, 100 * 365 * 86_400.0
SHORTEST_SECONDS = 0.001
"""Less would become 0 on its way to the database, and 0 means no limit there."""


def _none_or_enough(seconds: float) -> float:
    if 0 < seconds < SHORTEST_SECONDS:
        raise ValueError(f"it must be 0, or at least {SHORTEST_SECONDS:g}")
    return seconds


def _number_or_all(value: object, check: ValidatorFunctionWrapHandler) -> object:
    try:
        return check(value)
    except ValidationError:  # of two alternatives, and it would name only the first one
        raise ValueError('it must be a number from 0 to 200, or "all"') from None


# The types of the numbers. Their bounds are within what the database, Celery and the system's clocks can take, also
# when several are added up.
Seconds = Annotated[float, Field(ge=SHORTEST_SECONDS, le=WEEK_SECONDS)]
"""For which a process waits. In milliseconds it is an int32."""
SecondsOrZero = Annotated[float, Field(ge=0, le=WEEK_SECONDS), AfterValidator(_none_or_enough)]
Span = Annotated[float, Field(ge=SHORTEST_SECONDS, le=CENTURY_SECONDS)]
"""An age. So long ago, or so far ahead, is still a date."""
SpanOrZero = Annotated[float, Field(ge=0, le=CENTURY_SECONDS), AfterValidator(_none_or_enough)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Attempts = Annotated[int, Field(ge=1, le=30_000)]
"""The tables count them in a smallint."""
Singles = Annotated[Literal["all"] | Annotated[int, Field(ge=0, le=200)], WrapValidator(_number_or_all)]
"""How many due messages travel as Celery tasks of their own."""
Processes = Annotated[int, Field(ge=1, le=10_000)]
Bytes = Annotated[int, Field(ge=1, le=MAX_PAYLOAD_BYTES)]
"""Of one payload, which is in memory several times while it is sent."""
PerSecond = Annotated[float, Field(ge=0.0001, le=1_000_000)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class Route(BaseModel):
    """Where messages of some event types go: a list of destinations in `outbox.toml`, or a table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: list[str]
    """Destinations: each gets a row of its own."""
    latest: bool = False
    """Only the newest message of a key matters. If a message fails and there is a newer one, it is discarded instead of
    tried again."""

    @model_validator(mode="before")
    @classmethod
    def _of_list(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f'it must be a list: ["{value}"]')
        return {"to": value} if isinstance(value, list) else value


class Destination(BaseModel):
    """Where messages can go, and how: one `[destinations.<name>]` table of `outbox.toml`, or just its URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    url: Url = Field(repr=False)
    """Where; its scheme says how: see destinations.md."""
    password: Password | None = Field(default=None, repr=False)
    """Where its password or token comes from, if that changes: see passwords.md."""
    max_bytes: Bytes = 1_048_576
    """Larger payloads are refused at the write, or go by `claim_check`."""
    claim_check: StorageUrl | None = Field(default=None, repr=False)
    """A storage that fsspec knows, such as s3://bucket/prefix. It gets payloads over `max_bytes`, up to 64 MiB; the
    message says where they are."""
    max_attempts: Attempts = 20
    """Begun sends before a message is dead; about half a day with the default backoff."""
    max_age: Span | None = None
    """A message that was not delivered after this time is dead, even if it has attempts left. The time counts from the
    write, or from a later `deliver_at`."""
    on_dead: Literal["block", "skip"] = "block"
    """block: a dead message holds up the later ones of its key until a person acts; skip: they pass it."""
    singles: Singles | None = None
    """Overrides the general `singles`."""
    concurrency: Processes | None = None
    """Sends at once, over the whole cluster; none: one in each process that drains, but one for other destinations."""
    rate_limit: PerSecond | None = None
    """Messages a second at most, over the whole cluster, in bursts of what a second allows."""
    send_timeout: Seconds | None = None
    """Overrides the general `send_timeout`."""
    confirm: Literal["sent", "run"] | None = None
    """run: a task is done when it has run; sent: when the broker has it. None: when it has run, if it was stored by an
    app with `install` or `supervise`, and goes to this app's own workers. Only for celery://."""
    confirm_within: Span = 3600.0
    """A task that no worker has begun this long after the broker took it is sent again."""
    run_lease: Seconds = 30.0
    """A running task whose worker has been silent this long is sent again."""
    transport_options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """kombu's transport options, such as `global_keyprefix`, where the destination goes through kombu."""

    @model_validator(mode="before")
    @classmethod
    def _of_url(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @property
    def scheme(self) -> str:
        return split(self.url).scheme

    @property
    def takes_the_relays_broker(self) -> bool:
        """Whether it sends tasks to the relay's own broker, because its URL names none."""
        return self.scheme == "celery" and not self.option("broker")

    @property
    def queue(self) -> str:
        """The queue of the tasks that a celery:// destination makes of messages."""
        return self.queues[0] if self.queues else "celery"

    @property
    def queues(self) -> list[str]:
        """The queues that a celery:// destination sends to, if its URL names them."""
        return [name for name in (self.option("queue") or "").split(",") if name]

    @property
    def supervised(self) -> bool:
        """Whether all its tasks are supervised; if not, single ones may be."""
        return self.confirm == "run"

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The options of the URL, as they are written."""
        return options_of(self.url)

    def option(self, name: str) -> str | None:
        """One option of the URL."""
        return dict(self.options).get(name)

    def unusable(self, rule: str) -> ConfigurationError:
        """The error that the URL breaks a rule. It does not show the URL, which may hold credentials."""
        return ConfigurationError(setting=f"destinations.{self.name}.url", value=HIDDEN, rule=rule)

    def check_confirm(self) -> None:
        """Raises `ConfigurationError` if it can't say whether a task has run."""
        if self.supervised and self.scheme != "celery":
            rule = f"only a celery:// destination knows when a task has run, and this is {self.scheme}://"
            raise ConfigurationError(setting=f"destinations.{self.name}.confirm", value=self.confirm, rule=rule)

    @property
    def largest(self) -> int:
        """Bytes of the largest payload that may be written."""
        return self.max_bytes if self.claim_check is None else LARGEST_CLAIM_CHECK_BYTES

    def check_claim_check(self) -> None:
        """Raises `ConfigurationError` if it can't work with this destination."""
        if self.claim_check is None:
            return
        setting, value, rule = "claim_check", redacted(self.claim_check), None
        if self.scheme == "celery":
            rule = (
                "a celery:// destination can't say where a payload is, because a task is called with the payload. "
                "Remove claim_check, and raise max_bytes if the broker can take more"
            )
        elif self.max_bytes >= LARGEST_CLAIM_CHECK_BYTES:
            setting, value = "max_bytes", str(self.max_bytes)
            rule = f"with claim_check it must be below {LARGEST_CLAIM_CHECK_BYTES}, the most that may be written"
        if rule:
            raise ConfigurationError(setting=f"destinations.{self.name}.{setting}", value=value, rule=rule)
