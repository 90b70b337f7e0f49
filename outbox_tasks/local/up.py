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
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import signals_as_ctrl_c
from outbox_tasks.local.relay import MONITOR_PORT, Program, Relay
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedServer, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings
from outbox_tasks.settings.web import WEB_PORT
from outbox_tasks.text import printable, redacted

DATABASE, BROKER, DESTINATIONS = "OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL", "OUTBOX_DESTINATIONS"
EXAMPLE = "orders"
"""The destination of the first steps in README."""
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


def up(
    given: Mapping[str, str], *, directory: Path | None, publishers: int, relay: bool, flower: bool, web: bool,
    console: Console,
) -> None:  # fmt: skip
    """Run it all until Ctrl-C or SIGTERM; without `relay` database and broker alone.

    Database and broker are our own unless the variables `given` or outbox.toml name one. Without a `directory` their
    data are thrown away at the end. Raises `HasEnded` if a process ends by itself.
    """
    with signals_as_ctrl_c(), suppress(KeyboardInterrupt), ExitStack() as stack:
        stack.callback(console.print, "All is stopped.")  # entered first, left last: when everything else has stopped
        with console.status("Starting database and broker …"):
            servers = Servers(stack, given, directory)
        settings = Settings(database_url=servers.database_url)
        with migrating(settings) as connection:
            upgrade(connection, settings.database_schema)
        processes = Relay({})
        if relay:
            servers.offer_example(given)
            beside = [*(_web(servers, settings) if web else ()), *(_flower(servers, given) if flower else ())]
            if settings.feeds:
                beside.append(Program("feed", feed_worker_argv(), WORKER_READY))
            with console.status("Starting the relay …"):
                env = servers.env(given)
                processes = stack.enter_context(Relay(env, publishers=publishers, concurrency=2, beside=beside))
            stack.callback(console.print, "Stopping; Ctrl-C once more to hurry …")
        _welcome(console, servers, with_relay=relay)
        for child in processes:
            for _ in child.new_lines():  # of the start, which nobody needs
                pass
        while True:
            for number, child in enumerate(processes):
                for line in filter(None, child.new_lines()):
                    name = (f"{child.name:<9}", COLOURS[number % len(COLOURS)])
                    console.print(Text.assemble(name, ("│ ", "dim"), printable(line)), soft_wrap=True, highlight=False)
            processes.check()
            servers.check()
            time.sleep(0.2)


class Servers:
    """Database and broker, started if the settings don't name them, and the variables with which the relay finds them.
    They stop when the stack is left."""

    def __init__(self, stack: ExitStack, given: Mapping[str, str], directory: Path | None) -> None:
        settings = Settings()
        self.destinations = sorted(settings.destinations)
        self.exports: dict[str, str] = {}
        """The variables with which an application finds what was started here."""
        self.addresses: dict[str, str] = {}
        """What answers, and where, for people."""
        self._running: list[EmbeddedServer] = []
        self._monitor_port = settings.monitor_port
        self.database_url = given.get(DATABASE) or settings.database_url or ""
        if not self.database_url:
            self.database_url = self._start(stack, DATABASE, EmbeddedPostgres(directory))
        self.broker_url = given.get(BROKER) or settings.broker_url or ""
        if not self.broker_url:
            self.broker_url = self._start(stack, BROKER, EmbeddedValkey(directory))
        self.addresses = {"Database": redacted(self.database_url), "Broker": redacted(self.broker_url)}

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

    def check(self) -> None:
        """Raises `HasEnded` if a server has ended."""
        for server in self._running:
            server.child.check()

    def _start(self, stack: ExitStack, variable: str, server: EmbeddedServer) -> str:
        self._running.append(stack.enter_context(server))
        self.exports[variable] = server.url
        return server.url


def _web(servers: Servers, settings: Settings) -> list[Program]:
    """The page, if what it needs is installed."""
    if missing := [name for name in ("jinja2", "starlette", "uvicorn") if find_spec(name) is None]:
        servers.addresses["Page"] = f"needs {' and '.join(missing)}: pip install 'outbox-tasks[web]'"
        return []
    port, password = free_port(WEB_PORT), None if settings.web_users else secrets.token_urlsafe(12)
    login = "with a password of web_users" if password is None else f"as outbox, password {password}"
    servers.addresses["Page"] = f"http://{LOOPBACK}:{port}  {login}"
    return [Program("web", web_argv(port), WEB_READY, web_env(password))]


def _flower(servers: Servers, given: Mapping[str, str]) -> list[Program]:
    """Flower, if it is installed."""
    if find_spec("flower") is None:
        servers.addresses["Flower"] = "is not installed: pip install 'outbox-tasks[flower]'"
        return []
    port, password = free_port(5555), given.get("OUTBOX_FLOWER_PASSWORD") or secrets.token_urlsafe(12)
    servers.addresses["Flower"] = f"http://{LOOPBACK}:{port}  as outbox, password {password}"
    return [Program("flower", flower_argv(port), FLOWER_READY, flower_env(password))]


def _welcome(console: Console, servers: Servers, *, with_relay: bool) -> None:
    """What runs here, and how an application finds it."""
    names = ", ".join(servers.destinations) or "none: add [destinations.<name>] to outbox.toml"
    table = Table.grid(padding=(0, 2))
    for name, address in {**servers.addresses, "Destinations": names}.items():
        table.add_row(name, Text(address))
    title = "outbox-tasks is up" if with_relay else "The servers are up, without a relay"
    console.print(Panel(table, title=title, expand=False))
    # Outside the panel, so that people can copy them.
    if servers.exports:
        console.print("In the shell of your application:\n", style="bold")
        for variable, value in servers.exports.items():
            console.print(Text(f"export {variable}={shlex.quote(value)}"), soft_wrap=True)
    if servers.destinations and with_relay:
        console.print("\nPublish something:\n", style="bold")
        arguments = rf"'hello', '{{\"n\": 1}}', destination => '{servers.destinations[0]}'"
        console.print(Text(f'psql "${DATABASE}" -c "SELECT outbox_publish({arguments})"'), soft_wrap=True)
    console.print("\nCtrl-C stops everything.\n")
