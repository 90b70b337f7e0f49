"""The command line: `outbox-tasks`, also found as `celery -A outbox_tasks outbox`.

Each command is in the file of its name. A file is loaded when its command is used. `shared/` has what several use.
"""

from __future__ import annotations

import click

from outbox_tasks import __version__
from outbox_tasks.cli.shared.group import Group

SECTIONS = {
    "Run it": ["init", "up", "drain", "demo", "bench"],
    "See what is going on": ["status", "health", "doctor", "keys", "alerts", "metrics", "monitor"],
    "Keep it small": ["maintain", "export", "purge"],
    "Find and mend messages": ["list", "show", "errors", "redrive", "discard", "edit"],
    "Steer it": ["pause", "resume", "audit"],
}
"""The commands, as `--help` lists them."""


@click.group(
    cls=Group, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="outbox-tasks")
def outbox() -> None:
    """A transactional outbox for Celery and SQLAlchemy.

    Settings come from OUTBOX_<NAME> variables and outbox.toml; OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL
    say where the database and Celery's broker are.
    """


def main() -> None:
    """The entry point of `outbox-tasks`."""
    outbox(prog_name="outbox-tasks")
