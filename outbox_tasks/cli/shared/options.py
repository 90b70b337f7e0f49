"""Options and arguments that several commands take."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import click

from outbox_tasks.cli.shared.output import json_option
from outbox_tasks.errors import InvalidFilter
from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import Filter

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType):  # type: ignore[type-arg] # generic only in newer releases of click
    """A length of time such as 90s, 15m, 2h, 3d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return filters.seconds_of(value)
        except InvalidFilter as error:
            self.fail(error.reason, param, ctx)


def filter_options(command: F) -> F:
    """--destination, --type, --key, --error, --older-than and --newer-than."""
    for option in reversed(
        [
            click.option("--destination", metavar="NAME", help="Only messages to this destination."),
            click.option("--type", "event_type", metavar="PATTERN", help="Only these event types, such as order.*."),
            click.option("--key", help="Only messages with this key."),
            click.option("--error", metavar="CODE", help="Only this last error code, or this error group."),
            click.option(
                "--older-than", type=Duration(), metavar="TIME", help="Written more than 90s, 15m, 2h, 3d ago."
            ),
            click.option("--newer-than", type=Duration(), metavar="TIME", help="Written less than that ago."),
        ]
    ):
        command = option(command)
    return command


def as_filter(states: tuple[str, ...], error: str | None, group: str | None = None, **given: Any) -> Filter:
    """The filter that the options make."""
    try:
        return filters.as_filter(states, error, group, **given)
    except InvalidFilter as refused:
        raise click.UsageError(refused.reason) from None


def limit_option(default: int, most: int | None = None) -> Callable[[F], F]:
    """--limit."""
    return click.option(
        "--limit", default=default, show_default=True, type=click.IntRange(1, most), help="At most this many."
    )


def who_and_why(command: F) -> F:
    """--why and --who, for the audit."""
    why = click.option("--why", help="Why it is done, for the audit.")
    who = click.option("--who", default=getpass.getuser, metavar="NAME", help="Who does it, if not you, for the audit.")
    return why(who(command))


@dataclass(frozen=True)
class ActOptions:
    """How it is done."""

    yes: bool
    dry_run: bool
    as_json: bool
    who: str
    why: str | None
    limit: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.as_json and not (self.yes or self.dry_run):
            raise click.UsageError("with --json nobody is asked: add --yes or --dry-run")


def act_options(command: F) -> F:
    """--dry-run, --yes, --why, --who and --json; the command takes them as `options`."""

    @wraps(command)
    def with_options(yes: bool, dry_run: bool, as_json: bool, who: str, why: str | None, **given: Any) -> Any:
        return command(options=ActOptions(yes, dry_run, as_json, who, why), **given)

    made = click.option("--yes", is_flag=True, help="Do it without asking.")(who_and_why(json_option(with_options)))
    return cast(F, click.option("--dry-run", is_flag=True, help="Only show what would be done.")(made))
