"""`python -m lab soak`, in a checkout."""

from __future__ import annotations

import click

from lab.soak.command import soak
from outbox_tasks.cli.shared.group import Plain


@click.group(cls=Plain, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Try to break the relay of this checkout."""


main.add_command(soak)

if __name__ == "__main__":
    main(prog_name="python -m lab")
