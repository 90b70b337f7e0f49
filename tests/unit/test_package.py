"""What the package itself gives: its public names, each loaded when first asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import outbox_tasks
import outbox_tasks.cli

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
