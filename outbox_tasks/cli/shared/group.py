"""The group of all commands."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from outbox_tasks.cli.shared.output import JSON, echo_json
from outbox_tasks.errors import InvalidFilter, OutboxError
from outbox_tasks.satellites import satellites
from outbox_tasks.text import printable


class Plain(click.Group):
    """The library's own errors end a command with one line on stderr and exit code 1; with --json also with an object
    on stdout."""

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # a stream that stands in for them may be unable to
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        try:
            return super().invoke(ctx)
        except click.UsageError:
            raise
        except InvalidFilter as error:
            raise click.UsageError(error.reason) from None
        except (OutboxError, click.ClickException) as error:
            message = error.message if isinstance(error, click.ClickException) else str(error)
            if ctx.meta.get(JSON):
                echo_json({"error": message})
            raise click.ClickException(printable(message)) from error


class Group(Plain):
    """Loads a command when it is used, and lists the commands by purpose."""

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, str]], files: Mapping[str, str], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._sections = {title: dict(purposes) for title, purposes in sections.items()}
        names = [name for purposes in sections.values() for name in purposes]
        self._modules = {name: f"outbox_tasks.cli.{files.get(name, name)}" for name in names}
        for satellite in satellites().values():
            for name, command in satellite.commands.items():
                self._sections.setdefault(command.section, {})[name] = command.purpose
                self._modules[name] = command.module

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in self._sections.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        members = vars(import_module(self._modules[cmd_name])).values()
        if not gc.isenabled():  # see `cli.main`
            gc.freeze()  # what is loaded stays: to look through it took a fifth of a command's start
            gc.enable()
        return next(member for member in members if isinstance(member, click.Command) and member.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", purpose) for name, purpose in commands.items()])
