"""The options that say which messages, the same for every command that takes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click

if TYPE_CHECKING:
    from outbox_tasks.operating.messages.find import Filter

F = TypeVar("F", bound=Callable[..., Any])

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
STATES = ("pending", "scheduled", "leased", "retrying", "dead", "sent", "discarded")
GROUP = re.compile("[0-9a-f]{12}")


class Duration(click.ParamType):  # type: ignore[type-arg] # generic only in newer releases of click
    """A length of time such as 90s, 15m, 2h, 3d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value)
        if found is None:
            self.fail(f"{value!r} is no length of time: write 90s, 15m, 2h, 3d or 1w", param, ctx)
        return float(found[1]) * UNITS[found[2]]


class MessageId(click.ParamType):  # type: ignore[type-arg]
    """The id of a message, whole."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UUID:
        if isinstance(value, UUID):
            return value
        try:
            return UUID(value)
        except ValueError:
            self.fail(f"{value!r} is no id of a message: give all 36 characters", param, ctx)


def filters(command: F) -> F:
    """--destination, --type, --key, --error, --older-than and --newer-than."""
    for option in reversed(
        [
            click.option("--destination", metavar="NAME", help="Only those to this destination."),
            click.option(
                "--type", "event_type", metavar="PATTERN", help="Only these event types: order.* for example."
            ),
            click.option("--key", help="Only those with this key."),
            click.option("--error", metavar="CODE", help="Only this code of the last error, or this error group."),
            click.option("--older-than", type=Duration(), metavar="TIME", help="Written before: 90s, 15m, 2h, 3d."),
            click.option("--newer-than", type=Duration(), metavar="TIME", help="Written since then."),
        ]
    ):
        command = option(command)
    return command


def as_filter(states: tuple[str, ...], error: str | None, group: str | None = None, **given: Any) -> Filter:
    """The filter that the options make."""
    from outbox_tasks.operating.messages.find import Filter

    if error is not None and group is None and GROUP.fullmatch(error):
        error, group = None, error
    if group is not None and states and "dead" not in states:
        raise click.UsageError("an error group is one of dead letters: it goes with --state dead alone")
    return Filter(states=("dead",) if group is not None else states, code=error, group=group, **given)
