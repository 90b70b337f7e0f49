"""The documentation site, as `make docs` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from outbox_tasks.cli import outbox

pytest.importorskip("sphinx", reason="Sphinx is not installed: make docs installs it")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]

LOADED_FROM_ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]* src="(?:https?:)?//[^"]*'
    r'|<link\b[^>]* rel="(?:stylesheet|icon|preload)"[^>]* href="(?:https?:)?//[^"]*'
    r"""|(?:url\(|@import |from |import\()["'](?:https?:)?//[^"')]*"""
)
"""Scripts, pictures and frames; styles and icons; what styles and scripts load themselves."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning is an error."""
    made = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", made / "doctrees", DOCS, made / "html"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return made / "html"


def test_every_page_is_built_and_can_be_searched(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        assert (site / f"{name}.html").exists(), name
        assert f'"{name}"' in index, name


def test_a_link_that_leaves_the_docs_leads_to_the_home_of_the_project(site: Path) -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert f'href="{HOME}/blob/main/lab/moves.py"' in pages["storage"]
    assert f'href="{HOME}/tree/main/examples/kubernetes"' in pages["kubernetes"]
    assert [name for name, text in pages.items() if 'href="../outbox_tasks' in text] == []


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    """A reader without a network sees all, and no other site sees the reader."""
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    found = {
        str(path.relative_to(site)): LOADED_FROM_ELSEWHERE.findall(path.read_text(encoding="utf-8")) for path in files
    }
    assert len(files) > 40
    assert {name: places for name, places in found.items() if places} == {}


def test_the_reference_says_what_the_code_says(site: Path) -> None:
    said = {page: (site / f"reference/{page}.html").read_text(encoding="utf-8") for page in ("python", "cli", "errors")}
    for name in ("publish", "publish_many", "cancel", "delay", "apply_async", "capture", "complete"):
        assert f'id="outbox_tasks.Outbox.{name}"' in said["python"], name
    assert [
        name for name in outbox.list_commands(click.Context(outbox)) if f'id="outbox-tasks-{name}"' not in said["cli"]
    ] == []
    assert ">NotInTransaction<" in said["errors"]
    assert "the session is not inside a transaction" in said["errors"]


def test_programs_find_all_pages_as_text(site: Path) -> None:
    listed, full = ((site / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        assert f"/{name}.html)" in listed or page.stem == "index", name
    assert "<!--" not in full
    assert "Insert a message into the session" in full
