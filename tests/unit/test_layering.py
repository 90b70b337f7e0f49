"""The floors of the house, as pyproject.toml has them."""

from __future__ import annotations

import ast
import logging
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

import outbox_tasks

PACKAGE = Path(outbox_tasks.__file__).parent


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
