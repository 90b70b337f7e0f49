"""The pages say what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", [*Settings.model_fields, *sorted(set(Destination.model_fields) - {"name"})])
def test_every_setting_is_on_the_settings_page(name: str) -> None:
    assert f"| `{name}` |" in (DOCS / "settings.md").read_text(encoding="utf-8")


def test_every_setting_on_the_page_exists() -> None:
    rows = [line for line in (DOCS / "settings.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {row.split("`")[1] for row in rows}
    assert named == (set(Settings.model_fields) | set(Destination.model_fields)) - {"name"}


def test_every_worker_that_is_shown_has_a_name_of_its_own() -> None:
    """Two of one name on a host answer for each other, and make `status`, `health` and `doctor` raise false alarms."""
    root = DOCS.parent
    kinds = ("docs", "examples", "workers", "outbox_tasks/operating/doctor")
    found = [path for kind in kinds for path in (root / kind).rglob("*.*")] + [root / "README.md"]
    shown = [
        line
        for path in found
        if path.suffix in {".md", ".py", ".toml"}
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"celery -A \S+ worker", line)
    ]
    assert len(shown) > 20
    assert [line for line in shown if " -n " not in line] == []
