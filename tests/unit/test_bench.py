"""The benches can be started, and show figures as people read them."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from bench.__main__ import QUICK, main
from bench.report import NAMES, shown


@pytest.mark.parametrize("name", NAMES)
def test_each_bench_has_the_options_of_its_trial(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    command.make_context(name, [*QUICK[name], "--json"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567, "1,234,567"), (0.126, "0.126"), (12.34, "12.3"), (5120.7, "5,121"), ([3, 1, 2], "1 to 3"), (None, "")],
)
def test_figures_are_short(value: object, text: str) -> None:
    assert shown(value) == text


def test_help_lists_the_benches() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    assert [name for name in NAMES if name not in output] == []
