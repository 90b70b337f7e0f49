"""What the commands share: their group, the options and the output that are the same everywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from outbox_tasks import __version__
from outbox_tasks.errors import OutboxError
from outbox_tasks.text import printable

if TYPE_CHECKING:
    from celery import Celery
    from rich.console import Console

    from outbox_tasks.relay.store import Store
    from outbox_tasks.settings import Settings

JSON = f"{__name__}.json"


def _noted(context: click.Context, _: click.Parameter, value: bool) -> bool:
    context.meta[JSON] = value
    return value


json_option = click.option("--json", "as_json", is_flag=True, callback=_noted, help="Print one JSON object.")


class Group(click.Group):
    """Ends with one line on stderr and exit code 1 for errors of the library's own, with --json also with an object on
    stdout; lists its commands by purpose."""

    sections: Mapping[str, Sequence[click.Command]] = MappingProxyType({})

    def show(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Take these commands, under these titles."""
        self.sections = sections
        for commands in sections.values():
            for command in commands:
                self.add_command(command)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # some that stand in for them can't
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        try:
            return super().invoke(ctx)
        except click.UsageError:
            raise
        except (OutboxError, click.ClickException) as error:
            said = error.message if isinstance(error, click.ClickException) else str(error)
            if ctx.meta.get(JSON):
                echo_json({"error": said})
            raise click.ClickException(printable(said)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(command.name or "") for commands in self.sections.values() for command in commands)
        limit = formatter.width - 6 - width
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{c.name:<{width}}", c.get_short_help_str(limit)) for c in commands])


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="outbox-tasks")
def outbox() -> None:
    """A transactional outbox for Celery and SQLAlchemy.

    Settings come from OUTBOX_<NAME> variables and outbox.toml; OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL
    say where the database and Celery's broker are.
    """


def installed() -> tuple[Celery, Settings] | None:
    """The app that the relay is installed in, with the relay's settings, under `celery -A <app> outbox`."""
    app = getattr(click.get_current_context().obj, "app", None)
    relay = None if app is None else vars(app).get("outbox_relay")
    return None if relay is None else (app, relay.settings)


@contextmanager
def open_store(destination: str | None = None, settings: Settings | None = None) -> Iterator[Store]:
    """The store of the settings, whose tables are of this release and which know the destination."""
    from outbox_tasks.relay.store import Store
    from outbox_tasks.settings import Settings

    settings = settings or Settings()
    if destination is not None and destination not in settings.destinations:
        known = ", ".join(sorted(settings.destinations)) or "none"
        raise click.BadParameter(f"{destination!r} is not configured; known: {known}", param_hint="DESTINATION")
    store = Store.connect(settings)
    try:
        store.check_version()
        yield store
    finally:
        store.close()


def say(text: str, *, err: bool = False) -> None:
    """For people: a line, in which nothing is left that a terminal would obey."""
    click.echo(printable(text), err=err)


def echo_json(value: Any) -> None:
    """For programs: one JSON object on a line; times as ISO 8601, ids as texts."""
    click.echo(json.dumps(value, default=_plain))


def _plain(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def console() -> Console:
    """For people, on standard output."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def progress_console() -> Console:
    """For what moves while something takes long, on standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)
