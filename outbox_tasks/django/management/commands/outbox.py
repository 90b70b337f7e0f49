"""`manage.py outbox …`: the commands of `outbox-tasks`, with the settings and the Celery app of the project."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
        outbox(arguments, prog_name=f"{Path(argv[0]).name} {argv[1]}", obj=_project())

    def print_help(self, prog_name: str, subcommand: str) -> None:
        outbox(["--help"], prog_name=f"{prog_name} {subcommand}")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs=REMAINDER)

    def handle(self, *args: str, **options: Any) -> None:
        """For `call_command("outbox", "status")`. Raises `SystemExit` if the command fails."""
        try:
            outbox(list(args), prog_name="manage.py outbox", obj=_project())
        except SystemExit as end:
            if end.code:
                raise


def _project() -> Any:
    """What `celery -A <project>` gives its commands."""
    return SimpleNamespace(app=app_or_default())
