"""The command line: `outbox-tasks`, also found as `celery -A outbox_tasks outbox`.

A command is in the file of its name, or see `FILES`. A file is loaded when its command is used. `shared/` has what
several use.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click

from outbox_tasks import __version__
from outbox_tasks.cli.shared.group import Group

SECTIONS = {
    "Run it": {
        "init": "Create the outbox tables, or upgrade them to this release.",
        "drain": "Send due messages from this process, without workers, then end.",
    },
    "See what is going on": {
        "status": "Show what is wrong, what waits, and who is at work.",
        "health": "Say whether all is in order, once or over HTTP.",
        "doctor": "Say what is wrong, why it matters, and what people were told.",
    },
    "Keep it small": {
        "maintain": "Do the housekeeping that beat asks for every hour.",
    },
    "Find and mend messages": {
        "list": "List messages, the errors of dead letters, or the keys that are held up.",
        "show": "Show everything about one message, its history and its payload.",
        "redrive": "Send dead letters again.",
        "try": "Try messages at once that wait for another attempt.",
        "discard": "Give messages up.",
        "edit": "Mend the payload of a dead letter, in $EDITOR or from a file.",
    },
    "Steer it": {
        "pause": "Send nothing to a destination until it is resumed.",
        "resume": "Send to a paused or failing destination again.",
        "limit": "Limit how much a destination gets, without a restart.",
        "audit": "List who did what, and why, or end an act that is under way.",
    },
}
"""The commands, as `--help` lists them: that loads none of them. Satellites add theirs to these sections."""

FILES = {
    **dict.fromkeys(("pause", "resume", "limit"), "steer"),
    **dict.fromkeys(("redrive", "try", "discard"), "mend"),
}
"""The files of the commands that are not in a file of their own name."""


@click.group(
    cls=Group,
    sections=SECTIONS,
    files=FILES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="outbox-tasks")
def outbox() -> None:
    """A transactional outbox for Celery and SQLAlchemy.

    Settings come from OUTBOX_<NAME> variables and outbox.toml; OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL
    say where the database and Celery's broker are.
    """


def main() -> None:
    # Imports leave nothing behind to collect: looking for it took a quarter of a command's start.
    gc.disable()
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        sys.path.append(str(Path.cwd()))  # where manage.py finds the project
    outbox(prog_name="outbox-tasks")
