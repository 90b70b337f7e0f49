"""What the package itself gives: its public names, each loaded when first asked for. And the floors of the house, as
pyproject.toml has them."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from click.testing import CliRunner
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

import outbox_tasks
import outbox_tasks.cli

PACKAGE = Path(outbox_tasks.__file__).parent

LOADED = """
import gc, sys
import click
from outbox_tasks.cli import outbox
gc.disable()
for name in sys.argv[1].split():
    outbox.get_command(click.Context(outbox), name)
print(*sorted({*sys.argv[2].split()} & sys.modules.keys()))
assert gc.isenabled() and gc.get_freeze_count() > 10_000  # nothing looks through what was loaded
"""


def test_every_public_name_is_there_and_no_other() -> None:
    assert [name for name in outbox_tasks.__all__ if getattr(outbox_tasks, name) is None] == []
    assert {*outbox_tasks.__all__} <= {*dir(outbox_tasks)}
    with pytest.raises(AttributeError, match="has no attribute 'Queue'"):
        outbox_tasks.Queue  # noqa: B018


def test_each_command_is_in_the_file_of_its_name_and_listed_in_the_help() -> None:
    files = sorted(path.stem for path in Path(outbox_tasks.cli.__file__).parent.glob("*.py"))
    listed = [name for names in outbox_tasks.cli.SECTIONS.values() for name in names]
    assert sorted({"__init__", *(outbox_tasks.cli.FILES.get(name, name) for name in listed)}) == files
    shown = CliRunner().invoke(outbox_tasks.cli.outbox, ["--help"]).stdout
    assert [name for name in listed if f"\n  {name} " not in shown] == []


@pytest.mark.parametrize(
    ("commands", "unwanted"),
    [("health pause", "rich"), ("list show pause", "celery kombu redis sqlalchemy.orm prometheus_client")],
)
def test_a_command_loads_only_what_it_needs(commands: str, unwanted: str) -> None:
    argv = [sys.executable, "-c", LOADED, commands, unwanted]
    assert subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.split() == []


@pytest.fixture
def loggers() -> Iterator[None]:
    """import-linter switches off all that it does not know."""
    yield
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.mark.usefixtures("loggers")
def test_imports_go_down_the_floors(capsys: pytest.CaptureFixture[str]) -> None:
    config = PACKAGE.parent / "pyproject.toml"
    status = lint_imports(config_filename=str(config), cache_dir=None)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not for types or inside a function either. import-linter sees only circles of siblings."""
    graph = grimp.build_graph("outbox_tasks", cache_dir=None)
    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


def test_only_the_database_the_feeds_the_migrations_and_the_sessions_execute_sql() -> None:
    """The first is the relay's only executor, feeds are elsewhere; the others work inside transactions of others."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("execute", "exec_driver_sql", "scalar", "scalars")
    }
    elsewhere = ("feeds/", "local/", "destinations/", "testing/")
    assert {name for name in found if not name.startswith(elsewhere)} == {
        "database/connection.py",
        "migrations/__init__.py",
        "migrations/connections.py",
        "writing/execution.py",
    }


def test_what_people_install_or_copy_is_without_what_is_in_a_checkout_only() -> None:
    """Of the package itself, the floors say so."""
    config = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["outbox_tasks"]
    imports = re.compile(r"^\s*(?:from|import) (?:bench|lab|tests)\b", re.MULTILINE)
    examples = list((PACKAGE.parent / "examples").rglob("*.py"))
    assert examples
    assert [str(path) for path in examples if imports.search(path.read_text(encoding="utf-8"))] == []
