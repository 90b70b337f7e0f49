"""`manage.py outbox …`: the commands of `outbox-tasks`, with the settings and the Celery app of the project."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace

from celery.app import app_or_default
from django.core.management.base import BaseCommand

from outbox_tasks.cli import outbox


class Command(BaseCommand):  # type: ignore[misc]
    """Passes its arguments on as they are: options and exit codes are those of `outbox-tasks`."""

    help = "The commands of outbox-tasks: see `manage.py outbox --help`."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        ours = ArgumentParser(add_help=False, allow_abbrev=False)
        for name in ("--settings", "--pythonpath"):  # Django has read them
            ours.add_argument(name)
        arguments = ours.parse_known_args(argv[2:])[1]
        project = SimpleNamespace(app=app_or_default())  # as `celery -A <project>` gives it to its commands
        outbox(arguments, prog_name=f"{Path(argv[0]).name} {argv[1]}", obj=project)
