"""Options and arguments that several commands take."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any, TypeVar, cast

import click

from outbox_tasks.cli.shared.output import answer, json_option, wants_json
from outbox_tasks.errors import InvalidFilter
from outbox_tasks.operating.messages import filters

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType):  # type: ignore[type-arg] # generic only in newer releases of click
    """A length of time such as 90s, 15m, 2h, 3d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return filters.seconds_of(value)
        except InvalidFilter as error:
            self.fail(error.reason, param, ctx)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Options that several commands have, as one decorator. Help lists them in this order."""
    return lambda command: reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


filter_options = together(
    click.option("--destination", metavar="NAME", help="Only messages to this destination."),
    click.option("--type", "event_type", metavar="PATTERN", help="Only these event types, such as order.*."),
    click.option("--key", help="Only messages with this key."),
    click.option("--error", metavar="CODE", help="Only this last error code, or this error group."),
    click.option("--older-than", type=Duration(), metavar="TIME", help="Written more than 90s, 15m, 2h, 3d ago."),
    click.option("--newer-than", type=Duration(), metavar="TIME", help="Written less than that ago."),
)

limit_and_rate = together(
    click.option("--limit", type=click.IntRange(1), help="At most this many."),
    click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="This many a second."),
)

who_option = click.option(
    "--who", default=getpass.getuser, metavar="NAME", help="Who does it, if not you, for the audit."
)

who_and_why = together(click.option("--why", help="Why it is done, for the audit."), who_option)


def limit_option(default: int, most: int | None = None) -> Callable[[F], F]:
    """--limit."""
    return click.option(
        "--limit", default=default, show_default=True, type=click.IntRange(1, most), help="At most this many."
    )


@dataclass(frozen=True)
class ActOptions:
    """How it is done."""

    yes: bool
    dry_run: bool
    who: str
    why: str | None
    limit: int | None = None
    rate: float | None = None

    def agreed(self, plan: Mapping[str, Any], question: str, *, empty: bool = False) -> bool:
        """Whether to do it. People have seen the plan and are asked; programs get it, if nothing is to be done."""
        if self.dry_run or empty:
            answer({"dry_run": self.dry_run, **plan})
            return False
        return self.yes or click.confirm(question, abort=True)


def act_options(command: F) -> F:
    """--dry-run, --yes, --why, --who and --json; the command takes them as `options`."""

    @wraps(command)
    def with_options(yes: bool, dry_run: bool, who: str, why: str | None, **values: Any) -> Any:
        if wants_json() and not (yes or dry_run):
            raise click.UsageError("with --json nobody is asked: add --yes or --dry-run")
        return command(options=ActOptions(yes, dry_run, who, why), **values)

    return together(
        click.option("--dry-run", is_flag=True, help="Only show what would be done."),
        click.option("--yes", is_flag=True, help="Do it without asking."),
        who_and_why,
        json_option,
    )(cast(F, with_options))
