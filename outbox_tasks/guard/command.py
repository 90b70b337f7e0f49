"""`outbox-tasks check`: calls in source that go past the outbox."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import click

from outbox_tasks.cli.shared.output import answer, json_option, remark
from outbox_tasks.guard.source import KINDS, find
from outbox_tasks.text import many


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="PATH…")
@json_option
def check(paths: tuple[Path, ...]) -> None:
    """Find calls of tasks in source that go past the outbox: in a transaction, around a commit, and on commit.

    PATH is a file or a directory. What is inside outbox.capture or outbox.direct is meant. Exit code 1 if it finds one.
    """
    findings = list(chain.from_iterable(map(find, paths)))
    shown = "\n".join(f"{each.path}:{each.line}: {each.call} {KINDS[each.kind]}" for each in findings)
    answer([each._asdict() for each in findings], shown or "Nothing found.")
    if findings:
        remark(
            f"{many(len(findings), 'call')} may go past the outbox. Store the task with the transaction: docs/guard.md."
        )
        raise SystemExit(1)
