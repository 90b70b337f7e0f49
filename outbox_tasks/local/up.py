"""`outbox-tasks up`: database, broker and relay on this machine, until Ctrl-C. For development."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import time
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.text import Text

from outbox_tasks.database.connection import migrating
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child, signals_as_ctrl_c
from outbox_tasks.local.relay import (
    FLOWER_READY,
    WEB_READY,
    WORKER_READY,
    Program,
    Relay,
    feed_worker_argv,
    flower_argv,
    flower_env,
    relay_programs,
    web_argv,
    web_env,
)  # fmt: skip
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedServer, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings
from outbox_tasks.settings.web import WEB_PORT
from outbox_tasks.text import printable, redacted

DATABASE, BROKER, DESTINATIONS = "OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL", "OUTBOX_DESTINATIONS"
MONITOR_PORT = "OUTBOX_MONITOR_PORT"
EXAMPLE = "orders"
"""The destination of the first steps in README."""


def up(*, directory: Path | None, publishers: int, relay: bool, console: Console) -> None:
    """Run it all until Ctrl-C or SIGTERM; without `relay` database and broker alone.

    Database and broker are our own unless the settings name one. Without a `directory` their data are thrown away at
    the end. Raises `HasEnded` if a process ends by itself.
    """
    with signals_as_ctrl_c(), suppress(KeyboardInterrupt), ExitStack() as stack:
        stack.callback(console.print, "All is stopped.")  # entered first, left last: when everything else has stopped
        with console.status("Starting …"):
            servers = Servers(stack, Settings(), directory)
            settings = Settings(database_url=servers.urls[DATABASE])
            with migrating(settings) as connection:
                upgrade(connection, settings.database_schema)
            if relay:
                servers.offer_example()
            each_its_own = {} if settings.monitor_port is None else {MONITOR_PORT: "0"}
            processes = stack.enter_context(Relay({**servers.exports, **each_its_own}))
            if relay:
                processes.run(*relay_programs(publishers, concurrency=2))
                beside = [*_web(servers, settings), *_flower(servers)]
                if settings.feeds:
                    beside.append(Program("feed", feed_worker_argv(), WORKER_READY))
                processes.run(*beside)  # now: Flower asks the workers at once
        _welcome(console, servers, with_relay=relay)
        for child in processes:
            list(child.new_lines())  # of the start, which nobody needs
        while True:
            for child in processes:
                for line in filter(None, child.new_lines()):
                    console.print(Text(f"{child.name:<9}│ {printable(line)}"), soft_wrap=True, highlight=False)
            for child in (*processes, *servers.children):
                child.check()
            time.sleep(0.2)


class Servers:
    """Database and broker, started if the settings don't name them. They stop when the stack is left."""

    def __init__(self, stack: ExitStack, settings: Settings, directory: Path | None) -> None:
        self.destinations = sorted(settings.destinations)
        self.urls = {DATABASE: settings.database_url or "", BROKER: settings.broker_url or ""}
        self.exports: dict[str, str] = {}
        """The variables with which a relay and an application find what was started here."""
        self.children: list[Child] = []
        kinds: dict[str, type[EmbeddedServer]] = {DATABASE: EmbeddedPostgres, BROKER: EmbeddedValkey}
        for variable, kind in kinds.items():
            if not self.urls[variable]:
                server = stack.enter_context(kind(directory))
                self.children.append(server.child)
                self.urls[variable] = self.exports[variable] = server.url
        self.addresses = {"Database": redacted(self.urls[DATABASE]), "Broker": redacted(self.urls[BROKER])}
        """What answers, and where, for people."""

    def offer_example(self) -> None:
        """If nothing says where messages go, let them go to our broker: so the first can be published at once."""
        if BROKER in self.exports and not self.destinations:
            stream = self.urls[BROKER].replace("redis://", "redis+stream://").removesuffix("/0") + f"/1/{EXAMPLE}"
            self.exports[DESTINATIONS] = json.dumps({EXAMPLE: {"url": stream}})
            self.destinations = [EXAMPLE]


def _web(servers: Servers, settings: Settings) -> list[Program]:
    """The page, if what it needs is installed."""
    if any(find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
        servers.addresses["Page"] = "is not installed: pip install 'outbox-tasks[web]'"
        return []
    port, password = free_port(WEB_PORT), None if settings.web_users else secrets.token_urlsafe(12)
    login = "with a password of web_users" if password is None else f"as outbox, password {password}"
    servers.addresses["Page"] = f"http://{LOOPBACK}:{port}  {login}"
    return [Program("web", web_argv(port), WEB_READY, web_env(password))]


def _flower(servers: Servers) -> list[Program]:
    """Flower, if it is installed."""
    if find_spec("flower") is None:
        servers.addresses["Flower"] = "is not installed: pip install 'outbox-tasks[flower]'"
        return []
    port, password = free_port(5555), os.environ.get("OUTBOX_FLOWER_PASSWORD") or secrets.token_urlsafe(12)
    servers.addresses["Flower"] = f"http://{LOOPBACK}:{port}  as outbox, password {password}"
    return [Program("flower", flower_argv(port), FLOWER_READY, flower_env(password))]


def _welcome(console: Console, servers: Servers, *, with_relay: bool) -> None:
    """What runs here, and how an application finds it."""
    lines = ["outbox-tasks is up" if with_relay else "The servers are up, without a relay", ""]
    names = ", ".join(servers.destinations) or "none: add [destinations.<name>] to outbox.toml"
    lines += [f"{name:<14}{address}" for name, address in {**servers.addresses, "Destinations": names}.items()]
    if servers.exports:
        lines += ["", "In the shell of your application:", ""]
        lines += [f"export {variable}={shlex.quote(value)}" for variable, value in servers.exports.items()]
    if servers.destinations and with_relay:
        arguments = rf"'hello', '{{\"n\": 1}}', destination => '{servers.destinations[0]}'"
        lines += ["", "Publish something:", "", f'psql "${DATABASE}" -c "SELECT outbox_publish({arguments})"']
    console.print(Text("\n".join([*lines, "", "Ctrl-C stops everything.", ""])), soft_wrap=True)
