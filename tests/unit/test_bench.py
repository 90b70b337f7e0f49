"""The benches can be started."""

from __future__ import annotations

import click
import pytest

from bench.__main__ import QUICK, main
from bench.report import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_bench_has_the_options_of_its_trial(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    command.make_context(name, [*QUICK[name], "--json"])
