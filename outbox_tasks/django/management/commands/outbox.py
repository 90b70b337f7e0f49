"""`manage.py outbox …`: the commands of `outbox-tasks`, with the settings of the project."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from pathlib import Path
from typing import Any

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
        outbox(ours.parse_known_args(argv[2:])[1], prog_name=f"{Path(argv[0]).name} {argv[1]}")

    def print_help(self, prog_name: str, subcommand: str) -> None:
        outbox(["--help"], prog_name=f"{prog_name} {subcommand}")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs=REMAINDER)

    def handle(self, *args: str, **options: Any) -> None:
        """For `call_command("outbox", "status")`. Raises `SystemExit` if the command fails."""
        try:
            outbox(list(args), prog_name="manage.py outbox")
        except SystemExit as end:
            if end.code:
                raise
