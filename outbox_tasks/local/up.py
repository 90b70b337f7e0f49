"""`outbox-tasks up`: database, broker and relay on this machine, until Ctrl-C. For development."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outbox_tasks.database.connection import migrating
from outbox_tasks.local.commands import (
    FLOWER_READY,
    WEB_READY,
    WORKER_READY,
    feed_worker_argv,
    flower_argv,
    flower_env,
    web_argv,
    web_env,
)  # fmt: skip
from outbox_tasks.local.errors import ServerLost
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import signals_as_ctrl_c
from outbox_tasks.local.relay_processes import MONITOR_PORT, Program, Relay
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedServer, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings
from outbox_tasks.settings.web import WEB_PORT
from outbox_tasks.text import printable, redacted

DATABASE, BROKER, DESTINATIONS = "OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL", "OUTBOX_DESTINATIONS"
FLOWER_PASSWORD = "OUTBOX_FLOWER_PASSWORD"  # noqa: S105 - the name of a variable
FLOWER_PORT = 5555
EXAMPLE = "orders"
"""The destination of the first steps in README."""
SUPERVISE_INTERVAL = 0.2
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")

Beside = Iterator[tuple[Program, str, str]]
"""A program that runs beside the relay, its name for people, and where and for whom it answers."""


def up(
    given: Mapping[str, str], *, directory: Path | None, publishers: int, flower: bool, web: bool, console: Console
) -> None:
    """Run it all until Ctrl-C or SIGTERM.

    Database and broker are our own unless the variables `given` or outbox.toml name one. Without a `directory` their
    data are thrown away at the end.
    """
    with signals_as_ctrl_c(), suppress(KeyboardInterrupt), ExitStack() as stack:
        servers, settings = _servers(stack, given, directory, console)
        servers.offer_example(given)
        beside = [*(_web(settings, console) if web else ()), *(_flower(given, console) if flower else ())]
        log = Log(console)
        programs = [program for program, _, _ in beside]
        if settings.feeds:
            programs.append(Program("feed", feed_worker_argv(), WORKER_READY))
        relay = Relay(servers.env(given), publishers=publishers, concurrency=2, beside=programs, on_line=log)
        with console.status("Starting the relay …"):
            stack.enter_context(relay)
        stack.callback(console.print, "Stopping; Ctrl-C once more to hurry …")
        _welcome(console, servers, {name: where for _, name, where in beside})
        log.shown = True
        while True:
            servers.check()
            relay.supervise(log.say)
            time.sleep(SUPERVISE_INTERVAL)


def servers_only(given: Mapping[str, str], *, directory: Path | None, console: Console) -> None:
    """Database, broker and the outbox tables, until Ctrl-C: for an application that runs the relay itself."""
    with signals_as_ctrl_c(), suppress(KeyboardInterrupt), ExitStack() as stack:
        servers, _ = _servers(stack, given, directory, console)
        _welcome(console, servers, None)
        while True:
            servers.check()
            time.sleep(SUPERVISE_INTERVAL)


def _servers(
    stack: ExitStack, given: Mapping[str, str], directory: Path | None, console: Console
) -> tuple[Servers, Settings]:
    """Database and broker with the outbox tables, until the stack is left."""
    stack.callback(console.print, "All is stopped.")  # entered first, left last: when everything else has stopped
    with console.status("Starting database and broker …"):
        servers = Servers(stack, given, directory)
    with console.status("Creating the outbox tables …"):
        settings = Settings(database_url=servers.database_url)
        with migrating(settings) as connection:
            upgrade(connection, settings.database_schema)
    return servers, settings


class Servers:
    """Database and broker, started if the settings don't name them, and the variables with which the relay finds them.
    They stop when the stack is left."""

    def __init__(self, stack: ExitStack, given: Mapping[str, str], directory: Path | None) -> None:
        settings = Settings()
        self.destinations = sorted(settings.destinations)
        self.exports: dict[str, str] = {}
        """The variables with which an application finds what was started here."""
        self._running: list[EmbeddedServer] = []
        self.database_url = given.get(DATABASE) or settings.database_url or ""
        if not self.database_url:
            self.database_url = self._start(stack, DATABASE, EmbeddedPostgres(directory))
        self.broker_url = given.get(BROKER) or settings.broker_url or ""
        if not self.broker_url:
            self.broker_url = self._start(stack, BROKER, EmbeddedValkey(directory))
        self._monitor_port = settings.monitor_port

    def offer_example(self, given: Mapping[str, str]) -> None:
        """If nothing says where messages go, let them go to our broker: so the first can be published at once."""
        if BROKER in self.exports and not (self.destinations or given.get(DESTINATIONS)):
            stream = self.broker_url.replace("redis://", "redis+stream://").removesuffix("/0") + f"/1/{EXAMPLE}"
            self.exports[DESTINATIONS] = json.dumps({EXAMPLE: {"url": stream}})
            self.destinations = [EXAMPLE]

    def env(self, given: Mapping[str, str]) -> dict[str, str]:
        """The variables of the relay's processes."""
        ports = {} if self._monitor_port is None else {MONITOR_PORT: str(self._monitor_port)}  # also of outbox.toml
        return {**given, **self.exports, **ports}

    def _start(self, stack: ExitStack, variable: str, server: EmbeddedServer) -> str:
        self._running.append(stack.enter_context(server))
        self.exports[variable] = server.url
        return server.url

    def check(self) -> None:
        """Raises `ServerLost` if a server has ended."""
        for server in self._running:
            if not server.alive:
                raise ServerLost(server=server.name, code=server.returncode, tail="\n" + server.tail())


class Log:
    """Prints the lines of the services, each behind the coloured name of its service."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colours: dict[str, str] = {}
        self.shown = False
        """False while the services start: if one fails, the error has its last lines."""

    def __call__(self, name: str, line: str) -> None:
        if self.shown and line:
            colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
            text = Text.assemble((f"{name:<9}", colour), ("│ ", "dim"), printable(line))
            self._console.print(text, soft_wrap=True, highlight=False)

    def say(self, text: str) -> None:
        """A line of our own."""
        self._console.print(Text.assemble(("up       ", "bold red"), ("│ ", "dim"), text), soft_wrap=True)


def _web(settings: Settings, console: Console) -> Beside:
    if missing := [name for name in ("jinja2", "starlette", "uvicorn") if find_spec(name) is None]:
        text = f"Without the page, for which {' and '.join(missing)} must be installed: pip install 'outbox-tasks[web]'"
        console.print(Text(text))
        return
    port, password = free_port(WEB_PORT), None if settings.web_users else secrets.token_urlsafe(12)
    login = "with a password of web_users" if password is None else f"as outbox, password {password}"
    program = Program("web", web_argv(port), WEB_READY, web_env(password))
    yield program, "Page", f"http://{LOOPBACK}:{port}  {login}"


def _flower(given: Mapping[str, str], console: Console) -> Beside:
    if find_spec("flower") is None:
        console.print(Text("Without Flower, which is not installed: pip install 'outbox-tasks[flower]'"))
        return
    port, password = free_port(FLOWER_PORT), given.get(FLOWER_PASSWORD) or secrets.token_urlsafe(12)
    program = Program("flower", flower_argv(port), FLOWER_READY, flower_env(password))
    yield program, "Flower", f"http://{LOOPBACK}:{port}  as outbox, password {password}"


def _welcome(console: Console, servers: Servers, beside: Mapping[str, str] | None) -> None:
    """`beside`: where the programs beside the relay answer; None: there is no relay."""
    names = ", ".join(servers.destinations) or "none: add [destinations.<name>] to outbox.toml"
    shown = {"Database": redacted(servers.database_url), "Broker": redacted(servers.broker_url), **(beside or {})}
    table = Table.grid(padding=(0, 2))
    for name, text in {**shown, "Destinations": names}.items():
        table.add_row(name, Text(text))
    title = "outbox-tasks is up" if beside is not None else "The servers are up, without a relay"
    console.print(Panel(table, title=title, expand=False))
    # Outside the panel, so that people can copy them.
    if servers.exports:
        console.print("In the shell of your application:\n", style="bold")
        for variable, value in servers.exports.items():
            console.print(Text(f"export {variable}={shlex.quote(value)}"), soft_wrap=True)
    if servers.destinations and beside is not None:
        console.print("\nPublish something:\n", style="bold")
        arguments = rf"'hello', '{{\"n\": 1}}', destination => '{servers.destinations[0]}'"
        console.print(Text(f'psql "${DATABASE}" -c "SELECT outbox_publish({arguments})"'), soft_wrap=True)
    console.print("\nCtrl-C stops everything.\n")
