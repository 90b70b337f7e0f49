"""Start a bench: `python -m bench NAME`, or `make bench ARGS=NAME`."""

from __future__ import annotations

import json
from importlib import import_module

import click

from bench.report import NAMES

QUICK = {
    "yardsticks": ["--rounds", "1", "--messages", "4000", "--seconds", "3"],
    "latency": ["--rounds", "1", "--seconds", "1"],
    "order": ["--messages", "4000", "--rounds", "1"],
    "snapshot": ["--messages", "20000"],
    "fairness": ["--seconds", "5"],
    "claim": ["--turns", "5", "--rows", "5000"],
    "webhook": ["--rounds", "1", "--messages", "1000"],
    "recovery": ["--rounds", "1", "--messages", "1000"],
    "idle": ["--seconds", "10"],
    "write": ["--rounds", "100"],
    "supervised": ["--rounds", "1", "--messages", "500", "--tasks", "60"],
    "feeds": ["--rows", "500", "--rounds", "1", "--seconds", "2", "--feeds", "4"],
}
"""The options of a trial of all benches: its figures say nothing."""


class Benches(click.Group):
    """Loads a bench when it is used: some need more packages than others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*NAMES, "all", "page"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in NAMES:
            found: click.Command = import_module(f"bench.{cmd_name}").main
            return found
        return super().get_command(ctx, cmd_name)


@click.group(cls=Benches, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """What the relay costs. Servers are embedded ones, so nothing else is needed."""


@main.command("all")
@click.option("--quick", is_flag=True, help="Small sizes, to try whether they run; nothing is kept.")
def run_all(quick: bool) -> None:
    """Run all benches, keep their figures, and write the page anew."""
    for name in NAMES:
        click.echo(f"\n{name}", err=True)
        bench = main.get_command(click.get_current_context(), name)
        assert bench is not None
        bench.main(QUICK[name] if quick else ["--keep"], prog_name=name, standalone_mode=False)
    if not quick:
        import_module("bench.page").write()


@main.command()
def page() -> None:
    """Write docs/performance.md anew, with the figures that were kept."""
    click.echo(json.dumps(import_module("bench.page").write()))


if __name__ == "__main__":
    main(prog_name="python -m bench")
