"""The floors of the house, as pyproject.toml has them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import outbox_tasks

PACKAGE = Path(outbox_tasks.__file__).parent


LINT = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(cache_dir=None))"


def test_imports_go_down_the_floors() -> None:
    # In a process of its own: it would disable all loggers of this one.
    done = subprocess.run([sys.executable, "-c", LINT], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_database_the_migrations_and_the_sessions_execute_sql() -> None:
    """The first is the relay's only executor; the other two work inside transactions of others."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("execute", "exec_driver_sql", "scalar", "scalars")
    }
    # The last sorts the rows of files in a temporary SQLite database.
    elsewhere = ("local/", "destinations/", "testing/", "operating/archive/replay_files.py")
    assert {name for name in found if not name.startswith(elsewhere)} == {
        "database/connection.py",
        "migrations/__init__.py",
        "writing/transactions.py",
    }
