"""`outbox-tasks check`: calls in source that go past the outbox, and stored tasks that this code can't run."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import click
from celery import Celery
from celery.app.utils import find_app

from outbox_tasks.cli.shared.output import answer, json_option, remark
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.guard.source import KINDS, find
from outbox_tasks.guard.stored import failing
from outbox_tasks.text import many


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH…]")
@click.option("--app", "apps", multiple=True, metavar="APP", help="A Celery app, as in celery -A; may be given again.")
@json_option
def check(paths: tuple[Path, ...], apps: tuple[str, ...]) -> None:
    """Find calls of tasks in source that go past the outbox; or, with --app, stored tasks that this code can't run.

    PATH is a file or a directory. What is inside outbox.capture or outbox.direct is meant. With --app, each stored task
    that waits, is scheduled, or is a dead letter must be a task of one of the apps, and take its arguments. Exit code 1
    if there is one that is not right.
    """
    if bool(paths) == bool(apps):
        raise click.UsageError("give either paths of source, or --app to check what is stored")
    if apps:
        _check_stored([_app(name) for name in apps])
    else:
        _check_source(paths)


def _check_source(paths: tuple[Path, ...]) -> None:
    findings = list(chain.from_iterable(map(find, paths)))
    shown = "\n".join(f"{each.path}:{each.line}: {each.call} {KINDS[each.kind]}" for each in findings)
    answer([each._asdict() for each in findings], shown or "Nothing found.")
    if findings:
        remark(
            f"{many(len(findings), 'call')} may go past the outbox. Store the task with the transaction: docs/guard.md."
        )
        raise SystemExit(1)


def _check_stored(apps: list[Celery]) -> None:
    with open_store() as store:
        groups = failing(store, store.settings, apps)
    shown = "\n".join(map(str, groups)) or "Each stored task can be run by this code."
    answer([each._asdict() for each in groups], shown)
    if groups:
        total = many(sum(each.number for each in groups), "stored task")
        remark(f"{total} would fail. Keep what they need until they have run: docs/guard.md.")
        raise SystemExit(1)


def _app(name: str) -> Celery:
    """The app, as Celery's own commands find it."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return find_app(name)
    except (ImportError, AttributeError) as error:
        raise click.ClickException(f"The Celery app {name} can't be loaded: {error}") from error
