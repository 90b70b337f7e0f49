"""Start a bench: `python -m bench NAME`, or `make bench ARGS=NAME`."""

from __future__ import annotations

from importlib import import_module

import click

from bench.report import NAMES

QUICK = {
    "yardsticks": ["--rounds", "1", "--messages", "4000", "--seconds", "3"],
    "latency": ["--rounds", "1", "--seconds", "1"],
    "order": ["--messages", "4000", "--rounds", "1"],
    "snapshot": ["--messages", "20000"],
    "fairness": ["--seconds", "5"],
    "write": ["--rounds", "100"],
    "supervised": ["--rounds", "1", "--messages", "500"],
    "feeds": ["--rows", "500", "--rounds", "1", "--seconds", "2", "--feeds", "4"],
}
"""Small sizes, to try whether the benches run. The figures of such a trial say nothing."""


class Benches(click.Group):
    """Loads a bench when it is used: some need more packages than others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*NAMES, "all"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in NAMES:
            bench: click.Command = import_module(f"bench.{cmd_name}").main
            return bench
        return super().get_command(ctx, cmd_name)


@click.group(cls=Benches, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """What the relay costs. Servers are embedded ones, so nothing else is needed."""


@main.command("all")
@click.option("--quick", is_flag=True, help="Small sizes, to try whether they run.")
def run_all(quick: bool) -> None:
    """Run all benches, one after the other."""
    for name in NAMES:
        click.echo(f"\n{name}", err=True)
        bench = main.get_command(click.get_current_context(), name)
        assert bench is not None
        bench.main(QUICK[name] if quick else [], prog_name=name, standalone_mode=False)


if __name__ == "__main__":
    main(prog_name="python -m bench")
