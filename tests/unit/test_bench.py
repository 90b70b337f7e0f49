"""The benches can be started, and docs/performance.md has the figures that were kept."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from bench import page
from bench.__main__ import QUICK, main
from bench.harness import __main__ as harness
from bench.harness.adapter import MANIFEST
from bench.report import KEPT, NAMES, Figures, Report, shown
from outbox_tasks import sql


def test_the_page_has_the_explanations_and_the_figures_that_were_kept() -> None:
    written = page.PAGE.read_text(encoding="utf-8")
    assert page.page(written) == written, "run python -m bench page"


@pytest.mark.parametrize("name", NAMES)
def test_each_bench_has_the_options_of_its_trial(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    command.make_context(name, [*QUICK[name], "--json", "--keep"])


def test_the_plot_has_a_bar_and_a_line_for_each_row() -> None:
    rows = {
        name: {"messages/s": 2 * number, "rounds": [number, 3 * number], "CPU µs each": 7}
        for number, name in enumerate(("relay, drain", "raw & plain"), 1)
    }
    drawn = ElementTree.fromstring(page.plot(Figures("", rows)))
    kinds = [element.tag.rpartition("}")[2] for element in drawn]
    assert (kinds.count("rect"), kinds.count("path")) == (1 + 2, 2)
    assert "raw & plain" in [element.text for element in drawn]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567, "1,234,567"), (0.126, "0.126"), (12.34, "12.3"), (5120.7, "5,121"), ([3, 1, 2], "1 to 3"), (None, "")],
)
def test_figures_are_short(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_kept_report_is_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.report.KEPT", tmp_path / "results")
    report = Report("claim", "2026-01-01", "1", {"rows": 1}, {"cores": 2}, [Figures("t", {"a": {"ms": 1.5}})])
    report.keep()
    assert Report.read("claim") == report
    assert Report.read("write") is None


def test_help_lists_the_benches() -> None:
    told = CliRunner().invoke(main, ["--help"]).output
    assert all(name in told for name in NAMES), json.dumps(told)


def test_the_harness_of_others_looks_at_tables_that_there_are() -> None:
    schema = (Path(sql.__file__).parent / "schema.sql").read_text()
    for kind, names in (("TABLE", MANIFEST["event_tables"]), ("INDEX", MANIFEST["event_indexes"])):
        for name in names:
            assert f"CREATE {kind} {name.removeprefix('public.')} " in schema


def test_the_cells_of_the_harness_are_kept_and_shown() -> None:
    [figures] = harness.report(KEPT / "harness").figures
    assert [*figures.rows] == [*harness.CHAOS, *harness.PRESSURE]
    assert len(figures.columns) == 11


def test_its_configuration_of_postgresql_is_read_but_for_where_it_listens(tmp_path: Path) -> None:
    file = tmp_path / "postgres.conf"
    file.write_text("# a server\nlisten_addresses = '*'\nwork_mem = 8MB  # much\n\nwal_level = 'replica'\n")
    assert harness.configuration(file) == {"work_mem": "8MB", "wal_level": "replica"}
