"""Runs the blocks of a page from top to bottom, as a reader would: in a fresh directory, with servers of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import yaml
from psycopg import sql

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.settings import Settings
from tests.acceptance.nodes import warm
from tests.conftest import eventually
from tests.docs.blocks import ROOT, Block
from tests.docs.interpreter import BlockFailed, Interpreter, compiled

SECONDS = 120.0
"""No block takes so long, on a machine that is overloaded."""

SERVER = re.compile(
    r"\bcelery\b.* (worker|beat|flower)\b|\boutbox-tasks (up|web|monitor)\b|\bmanage\.py runserver\b"
    r"|\b(uvicorn|gunicorn) |\bfastapi (run|dev)\b|\bflask\b.* run\b|Ctrl-C"
)
"""A line of a shell that runs until somebody stops it."""

WARM = re.compile(r"celery (?!.*(gevent|\$|&))")
"""A server that is forked from a process that has imported Celery: no shell need look at its line."""

READY = (
    " ready.", "beat: Starting...", "Visit me at", "The page is at", "answers at", "outbox-tasks is up",
    "Uvicorn running", "Running on", "Starting development server", "Listening at",
)  # fmt: skip

DATABASE = re.compile(r"(postgresql|postgres)(\+\w+)?://([^@/\s\"']*@)?localhost(:5432)?/(\w+)")
REDIS = re.compile(r"(?<=://)localhost:6379\b")
PORT = re.compile(r"(?:localhost:|127\.0\.0\.1:|--port[ =]|PORT=|-p )(\d{4,5})\b")
USUAL = {"FLOWER_PORT": "5555", "FLASK_RUN_PORT": "5000", "UVICORN_PORT": "8000"}
"""The ports of programs that are told no port."""


class Page:
    """A page that is being run. PostgreSQL is at localhost:5432 there, Redis at localhost:6379: what names them or
    another port of localhost gets a database, a server or a port of its own."""

    def __init__(self, name: str, directory: Path, postgres_url: str, redis_port: int) -> None:
        self.name = name
        self.directory = directory
        self.skipped: list[Block] = []
        self._postgres_url = postgres_url
        self._redis = f"{LOOPBACK}:{redis_port}"
        self._given = {str(redis_port), str(urlsplit(postgres_url).port)}
        self._ports: dict[str, str] = {}
        self._databases: dict[str, str] = {}
        self._servers: list[Child] = []
        self._state = directory / ".shell"
        self._python: Interpreter | None = None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self.env = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([str(self.directory), str(ROOT)]),
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            "CELERY_WORKER_LOGLEVEL": "INFO",  # without it, neither says that it is ready
            "CELERY_BEAT_LOGLEVEL": "INFO",
            "CELERY_WORKER_WITHOUT_MINGLE": "1",
            "CELERY_WORKER_CONCURRENCY": "1",  # a page that needs more says so
            "OUTBOX_DATABASE_URL": self.database("shop"),
            "OUTBOX_BROKER_URL": f"redis://{self._redis}/0",
            **{variable: self.port(number) for variable, number in USUAL.items()},
        }
        return self

    def __exit__(self, *_: object) -> None:
        with self._closing:
            for server in self._servers:
                server.ask_to_stop()
            for server in self._servers:
                self._closing.callback(server.stop)
            if self._python is not None:
                self._python.__exit__()

    def run(self, block: Block) -> None:
        """Raises `BlockFailed`."""
        place = f"{self.name}:{block.line}"
        if block.not_run:
            self.skipped.append(block)
            parse(block, place, self.env["OUTBOX_DATABASE_URL"])
            return
        text = self.real(block.text)
        if block.file:
            parse(block, place, self.env["OUTBOX_DATABASE_URL"])
            target = self.directory / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        elif block.language == "python":
            if self._python is None:
                self._python = Interpreter(self.directory, self._environment())
            self._python.run(text, self.name, block.line, SECONDS)
        elif block.language in {"sh", "bash"}:
            self._shell(text, place)
        elif block.language == "console":
            for command in re.findall(r"^\$ (.*(?:\\\n.*)*)", text, re.MULTILINE):
                self._command(f"{{ {command}\n}} <<< $'y\\ny\\ny'", place, codes=(0, 1))
        elif block.language == "sql":
            with psycopg.connect(self._environment()["OUTBOX_DATABASE_URL"], autocommit=True) as connection:
                connection.execute(text.encode())
        else:
            parse(block, place, self.env["OUTBOX_DATABASE_URL"])
            if block.language == "toml":
                (self.directory / "outbox.toml").write_text(text, encoding="utf-8")
                check_settings(text, place, self.env)

    def real(self, text: str) -> str:
        """The text with the addresses of the servers that are really there."""
        text = text.replace("0.0.0.0", LOOPBACK)
        text = DATABASE.sub(lambda found: self.database(found[5], found[2] or ""), text)
        text = REDIS.sub(self._redis, text)
        for number in set(PORT.findall(text)) - self._given:
            if number not in self._ports.values():
                text = re.sub(rf"\b{number}\b", self.port(number), text)
        return text

    def port(self, number: str) -> str:
        """A free port that stands for this one."""
        if number not in self._ports:
            self._ports[number] = str(free_port())
        return self._ports[number]

    def database(self, name: str, driver: str = "") -> str:
        """The URL of a database that stands for the one of this name."""
        if name not in self._databases:
            self._databases[name] = made = f"outbox_docs_{uuid4().hex[:12]}"
            connection = self._closing.enter_context(psycopg.connect(self._postgres_url, autocommit=True))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(made)))
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(made))
            self._closing.callback(partial(connection.execute, drop))
        url = urlsplit(self._postgres_url)
        return url._replace(scheme=f"postgresql{driver}", path=f"/{self._databases[name]}").geturl()

    def _shell(self, text: str, place: str) -> None:
        """Servers go into the background, the other lines run one after the other."""
        lines: list[str] = []
        for line in text.replace("\\\n", " ").splitlines():
            if SERVER.search(line) and not line.startswith("#"):
                self._command("\n".join(lines), place)
                lines.clear()
                self._serve(line, place)
            else:
                lines.append(line)
        self._command("\n".join(lines), place)

    def _command(self, text: str, place: str, codes: tuple[int, ...] = (0,)) -> None:
        """What it exports and where it goes holds for the next one too."""
        if not text.strip():
            return
        keep = f"{{ export -p; echo cd $(printf %q \"$PWD\"); }} > '{self._state}'"
        strict = "set -eu" if codes == (0,) else ""
        script = f"set -o pipefail; {self._resumed} {strict}\n{text}\nstatus=$?\n{keep}\nexit $status"
        done = self._bash(script, place)
        if done.returncode not in codes or (
            done.returncode and re.search("^(Error|Usage|Aborted)", done.stdout, re.MULTILINE)
        ):
            raise BlockFailed(f"{place}: exit code {done.returncode} of\n{text}\n{done.stdout}{self._tails()}")

    @property
    def _resumed(self) -> str:
        return f"[ ! -e '{self._state}' ] || . '{self._state}';"

    def _bash(self, script: str, place: str) -> subprocess.CompletedProcess[str]:
        """What it leaves running ends with it."""
        out = self.directory / ".out"
        out.unlink(missing_ok=True)
        argv = ["bash", "-c", script]
        with Child.start(place, argv, env=self.env, cwd=self.directory, log=out) as child:
            try:
                code = child.wait(SECONDS)
            except subprocess.TimeoutExpired:
                raise BlockFailed(f"{place}: not over in {SECONDS} s\n{child.tail(40)}") from None
        return subprocess.CompletedProcess(argv, code, out.read_text(errors="replace"))

    def _environment(self) -> dict[str, str]:
        """What the shell has exported by now."""
        if not self._state.exists():
            return self.env
        said = self._bash(f"{self._resumed} env -0", self.name).stdout
        return dict(pair.split("=", 1) for pair in said.split("\0") if "=" in pair)

    def _serve(self, line: str, place: str) -> None:
        """Start a server, and wait until it says that it is ready."""
        if WARM.match(line):
            env, words = self._environment(), shlex.split(line, comments=True)
            log = self.directory / f".server{len(self._servers)}"
            server = warm().start(place, words[1:], env, Path(env.get("PWD", self.directory)), log, 60)
        else:
            variables = re.match(r"(?:\w+=\S+ )*", line)
            assert variables
            line = f"exec env {variables[0]}{line[variables.end() :]}"
            argv = ["bash", "-c", f"{self._resumed} {line.removesuffix('&')}"]
            server = Child.start(place, argv, env=self.env, cwd=self.directory, stop_timeout=60)
        self._servers.append(server)

        def is_ready() -> bool:
            if not server.alive:
                raise BlockFailed(f"{place}: {line} has ended with {server.returncode}\n{server.tail(40)}")
            return any(text in server.tail(500) for text in READY)

        if "Ctrl-C" not in line:
            try:
                eventually(is_ready, SECONDS)
            except AssertionError as error:
                raise BlockFailed(f"{place}: {line}: {error}\n{server.tail(40)}") from None

    def _tails(self) -> str:
        return "".join(f"\n--- {server.argv[-1]}\n{server.tail(15)}" for server in self._servers)


def parse(block: Block, place: str, database: str) -> None:
    """Raises `BlockFailed` if it can't be read in its language. What is no code is text."""
    try:
        match block.language:
            case "python":
                compiled(block.text, place, block.line)
            case "toml":
                tomllib.loads(block.text)
            case "json":
                json.loads(block.text)
            case "yaml":
                list(yaml.safe_load_all(block.text))
            case "sh" | "bash":
                done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True, check=False)
                if done.returncode:
                    raise BlockFailed(f"{place}: {done.stderr}")
            case "sql":
                if "DuckDB" not in block.not_run:
                    with psycopg.connect(database) as connection:
                        connection.execute(b"PREPARE block AS " + block.text.encode())
    except (SyntaxError, ValueError, yaml.YAMLError, psycopg.Error) as error:
        raise BlockFailed(f"{place}: {error}") from error


def check_settings(text: str, place: str, env: dict[str, str]) -> None:
    """The settings file is one that the relay takes."""
    try:
        Settings(database_url=env["OUTBOX_DATABASE_URL"], **tomllib.loads(text))
    except Exception as error:
        raise BlockFailed(f"{place}: {error}") from error
