"""`outbox-tasks up`: database, broker and relay on this machine, until Ctrl-C. For development."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outbox_tasks.database.connection import migrating
from outbox_tasks.local.errors import ServerLost
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import signals_as_ctrl_c
from outbox_tasks.local.relay_processes import MONITOR_PORT, Flower, Relay, Web
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedServer, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.redaction import redacted
from outbox_tasks.settings import Settings
from outbox_tasks.text import printable

DATABASE, BROKER, DESTINATIONS = "OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL", "OUTBOX_DESTINATIONS"
FLOWER_PASSWORD = "OUTBOX_FLOWER_PASSWORD"  # noqa: S105 - the name of a variable
FLOWER_PORT = 5555
EXAMPLE = "orders"
"""The destination of the first steps in README."""
SUPERVISE_INTERVAL = 0.2
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


def up(
    settings_env: Mapping[str, str],
    *,
    directory: Path | None,
    publishers: int = 2,
    flower: bool = True,
    web: bool = True,
    console: Console,
) -> None:
    """Run it all until Ctrl-C or SIGTERM.

    Database and broker are our own unless `settings_env` or outbox.toml names one. Without a `directory` their data are
    thrown away at the end.
    """
    with signals_as_ctrl_c(), suppress(KeyboardInterrupt), ExitStack() as stack:
        _run(stack, settings_env, directory, publishers, flower, web, console)


def _run(
    stack: ExitStack,
    settings_env: Mapping[str, str],
    directory: Path | None,
    publishers: int,
    with_flower: bool,
    with_web: bool,
    console: Console,
) -> None:
    # Entered first, left last: it says so when everything else has stopped.
    stack.callback(console.print, "All is stopped.")
    with console.status("Starting database and broker …"):
        servers = Servers(settings_env)
        servers.start(stack, directory)
    with console.status("Creating the outbox tables …"):
        settings = Settings(database_url=servers.database_url)
        with migrating(settings) as connection:
            upgrade(connection, settings.database_schema)
    flower = _flower(settings_env, console) if with_flower else None
    web = _web(settings, console) if with_web else None
    log = Log(console)
    relay = Relay(servers.env, publishers=publishers, concurrency=2, flower=flower, web=web, on_line=log)
    with console.status("Starting the relay …"):
        stack.enter_context(relay)
    stack.callback(console.print, "Stopping; Ctrl-C once more to hurry …")
    _welcome(console, servers, flower, web)
    log.shown = True
    while True:
        servers.check()
        relay.supervise(log.say)
        time.sleep(SUPERVISE_INTERVAL)


class Servers:
    """Database and broker, and the variables with which the relay finds them."""

    def __init__(self, settings_env: Mapping[str, str]) -> None:
        settings = Settings()
        self.database_url = settings_env.get(DATABASE) or settings.database_url or ""
        self.broker_url = settings_env.get(BROKER) or settings.broker_url or ""
        self.destinations = sorted(settings.destinations)
        self.exports: dict[str, str] = {}
        """The variables with which an application finds what was started here."""
        self._given = dict(settings_env)
        if settings.monitor_port is not None:  # also if it is in outbox.toml
            self._given[MONITOR_PORT] = str(settings.monitor_port)
        self._servers: list[EmbeddedServer] = []

    @property
    def env(self) -> dict[str, str]:
        """The environment of the relay."""
        return {**self._given, **self.exports}

    def start(self, stack: ExitStack, directory: Path | None) -> None:
        """Start the servers that the settings don't name. They stop when `stack` is left."""
        if not self.database_url:
            self.database_url = self._start(stack, DATABASE, EmbeddedPostgres(directory))
        if not self.broker_url:
            broker = EmbeddedValkey(directory)
            self.broker_url = self._start(stack, BROKER, broker)
            if not (self.destinations or self._given.get(DESTINATIONS)):
                # So that the first message can be published at once.
                stream = f"redis+stream://{LOOPBACK}:{broker.port}/1/{EXAMPLE}"
                self.exports[DESTINATIONS] = json.dumps({EXAMPLE: {"url": stream}})
                self.destinations = [EXAMPLE]

    def _start(self, stack: ExitStack, variable: str, server: EmbeddedServer) -> str:
        stack.enter_context(server)
        self._servers.append(server)
        self.exports[variable] = server.url
        return server.url

    def check(self) -> None:
        """Raises `ServerLost` if a server has ended."""
        for server in self._servers:
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


def _flower(env: Mapping[str, str], console: Console) -> Flower | None:
    if find_spec("flower") is None:
        console.print(Text("Without Flower, which is not installed: pip install 'outbox-tasks[flower]'"))
        return None
    return Flower(free_port(FLOWER_PORT), env.get(FLOWER_PASSWORD) or secrets.token_urlsafe(12))


def _web(settings: Settings, console: Console) -> Web | None:
    if missing := [name for name in ("jinja2", "waitress") if find_spec(name) is None]:
        text = f"Without the page, for which {' and '.join(missing)} must be installed: pip install 'outbox-tasks[web]'"
        console.print(Text(text))
        return None
    return Web(free_port(settings.web_port), None if settings.web_users else secrets.token_urlsafe(12))


def _welcome(console: Console, servers: Servers, flower: Flower | None, web: Web | None) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_row("Database", redacted(servers.database_url))
    table.add_row("Broker", redacted(servers.broker_url))
    if web is not None:
        login = "with a password of web_users" if web.password is None else f"as outbox, password {web.password}"
        table.add_row("Page", f"http://{LOOPBACK}:{web.port}  {login}")
    if flower is not None:
        table.add_row("Flower", f"http://{LOOPBACK}:{flower.port}  as outbox, password {flower.password}")
    names = ", ".join(servers.destinations) or "none: add [destinations.<name>] to outbox.toml"
    table.add_row("Destinations", Text(names))
    console.print(Panel(table, title="outbox-tasks is up", expand=False))
    # Outside the panel, so that people can copy them.
    if servers.exports:
        console.print("In the shell of your application:\n", style="bold")
        for variable, value in servers.exports.items():
            _print_plain(console, f"export {variable}={shlex.quote(value)}")
    if servers.destinations:
        console.print("\nPublish something:\n", style="bold")
        arguments = rf"'hello', '{{\"n\": 1}}', destination => '{servers.destinations[0]}'"
        _print_plain(console, f'psql "${DATABASE}" -c "SELECT outbox_publish({arguments})"')
    console.print("\nCtrl-C stops everything.\n")


def _print_plain(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)
