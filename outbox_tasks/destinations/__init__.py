"""Publishers: the code that sends to one kind of destination, found by the URL's scheme.

A publisher is a class with this shape, registered under its scheme in the entry point group
`outbox_tasks.publishers`; built-in ones and those of other packages load alike, when first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Protocol

from outbox_tasks.errors import (
    ConfigurationError,
    NotInstalled,
    OutageError,
    OutboxError,
    PermanentError,
    TransientError,
    UnknownPublisher,
)
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import logger, redacted, said

GROUP = "outbox_tasks.publishers"

CLAIM_CHECK = "claim_check"
"""The entry point of the publisher that stores large payloads and hands the messages on. It is no scheme."""

log = logger("outbox_tasks.publish")

BATCH_SIZE = 100
"""Most messages of one call of `publish`, for a publisher that does not say."""

EXTRAS = {
    "azureservicebus": "azure",
    "azurestoragequeues": "azure",
    "grpcs": "grpc",
    "https": "http",
    "mqtts": "mqtt",
    "pubsub": "gcp",
    "sns": "aws",
    "sqs": "aws",
}
"""The extra that brings the client, where it is not called like the scheme."""


class Publisher(Protocol):
    """Sends messages to one destination. Made in the process that uses it, after any fork; there, it is used by one
    thread at a time. One whose client cooperates with gevent says so: `green = True`.

    `batch_size`: most messages of one call of `publish`, 100 if the class does not say.

    One that says `keeps_order = True` may be given several messages with the same key at once. It sends these one after
    the other, and after one that was not sent no more of its key: they are `Outcome.behind()`.

    One that asks `destination.password` for its password, with each new connection, says so: `asks_password = True`. If
    it reports an outage with the code `unauthorized`, it is given the messages once more."""

    def __init__(self, destination: Destination, settings: Settings) -> None:
        """Read the URL; connect when first used. Raises `ConfigurationError` for a URL that can't work."""

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Send, and return one outcome per message, in their order, once the destination has confirmed.

        No two of the messages have the same key, unless the publisher keeps the order: the relay sends those one after
        the other. Takes at most `settings.send_timeout` for all of them, whatever the other side does: nothing else
        ends it. If a key has several messages, it may go on to begin sends for `settings.sending_time_of(destination)`.
        A message for which there was no time is `Outcome.behind()`, and loses no attempt. May raise
        `TransientError`, `OutageError` or `PermanentError` when one outcome holds for all; any other exception counts
        as transient.
        """

    def close(self) -> None:
        """Close what is open; the publisher may be used again afterwards."""


def load(destination: Destination, settings: Settings) -> Publisher:
    """The publisher for a destination; with a claim check, the one that stores large payloads before it sends. Raises
    `UnknownPublisher` or `NotInstalled`."""
    try:
        kind = kind_of(destination) if destination.claim_check is None else _class_of(CLAIM_CHECK, destination)
        if destination.password is not None and not getattr(kind_of(destination), "asks_password", False):
            setting = f"destinations.{destination.name}.password"
            rule = f"a {destination.scheme}:// destination has its login in its URL, or its client finds it by itself"
            raise ConfigurationError(setting=setting, value=destination.password.source, rule=rule)
        publisher: Publisher = kind(destination, settings)
    except ModuleNotFoundError as error:  # of several schemes of a class, one may need a client of its own
        raise _not_installed(destination.scheme, destination, error) from error
    except ValueError:
        # Not with the client's own words: they may quote a part of the URL that is a password.
        setting, shown = f"destinations.{destination.name}.url", redacted(destination.url)
        rule = "it is not a URL that the destination's client understands"
        raise ConfigurationError(setting=setting, value=shown, rule=rule) from None
    return publisher


def kind_of(destination: Destination) -> Any:
    """The class of the publisher of a destination's URL. Raises `UnknownPublisher` or `NotInstalled`."""
    return _class_of(destination.scheme, destination)


def _class_of(scheme: str, destination: Destination) -> Any:
    registered = _registered(tuple(sys.path))
    if scheme not in registered.names:
        known = ", ".join(sorted(registered.names - {CLAIM_CHECK}))
        raise UnknownPublisher(destination=destination.name, scheme=scheme, known=known)
    try:
        return registered[scheme].load()
    except ModuleNotFoundError as error:
        raise _not_installed(scheme, destination, error) from error


def _not_installed(scheme: str, destination: Destination, error: ModuleNotFoundError) -> NotInstalled:
    what, extra = f"Destination {destination.name!r}", EXTRAS.get(scheme, scheme.partition("+")[0])
    return NotInstalled(what=what, missing=error.name, packages=f"'outbox-tasks[{extra}]'")


@cache
def _registered(path: tuple[str, ...]) -> EntryPoints:
    """The publishers of the packages on Python's path. To find them takes 10 ms."""
    return entry_points(group=GROUP)


def is_green(destination: Destination) -> bool:
    """Whether the client of a destination's publisher cooperates with gevent."""
    return bool(getattr(kind_of(destination), "green", False))


def batch_size_of(destination: Destination) -> int:
    """Most messages that one call of `publish` to a destination gets."""
    return int(_says(destination, "batch_size", BATCH_SIZE))


def keeps_order(destination: Destination) -> bool:
    """Whether one call of `publish` to a destination may get several messages of a key."""
    return destination.claim_check is None and bool(_says(destination, "keeps_order", False))


def _says(destination: Destination, name: str, default: Any) -> Any:
    """What the class of a destination's publisher says of itself."""
    try:
        return getattr(kind_of(destination), name, default)
    except OutboxError:  # nothing can be sent: the outcomes will say so
        return default


def outcomes_of(
    publish: Callable[[Sequence[LeasedMessage]], list[Outcome]], destination: str, messages: Sequence[LeasedMessage]
) -> list[Outcome]:
    """One outcome per message, whatever `publish` raises or returns."""
    try:
        outcomes = list(publish(messages))
    except PermanentError as error:
        return [Outcome.dead(error.code, str(error))] * len(messages)
    except TransientError as error:
        return [Outcome.retry(error.code, str(error))] * len(messages)
    except OutageError as error:
        return [Outcome.outage(error.code, str(error))] * len(messages)
    except Exception as error:  # a publisher may raise anything, and a time limit may strike anywhere
        which = f", with message {messages[0].id}" + (f" and {len(messages) - 1} more" if len(messages) > 1 else "")
        log.exception("the publisher of %s failed%s", destination, which, extra={"destination": destination})
        return _unforeseen(said(error, repr), messages)
    if [type(outcome) for outcome in outcomes] != [Outcome] * len(messages):
        kinds = ", ".join(sorted({type(outcome).__name__ for outcome in outcomes} - {"Outcome"}))
        reason = f"the publisher of {destination!r} returned {len(outcomes)} outcomes for {len(messages)} messages"
        reason += f", among them {kinds}" if kinds else ""
        return _unforeseen(reason, messages)
    return outcomes


def _unforeseen(error: str, messages: Sequence[LeasedMessage]) -> list[Outcome]:
    return [Outcome.unforeseen(error, together=len(messages) > 1)] * len(messages)
