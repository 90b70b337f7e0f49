"""The pages say what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]


def test_the_page_has_every_setting_and_no_other() -> None:
    rows = [line for line in (DOCS / "settings.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {row.split("`")[1] for row in rows}
    assert named == (set(Settings.model_fields) | set(Destination.model_fields)) - {"name"}


def test_the_page_has_the_defaults_of_the_code() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text.partition("## A destination: ")[0], re.MULTILINE)
    parts = text.partition("## A destination: ")[2].partition("## Seldom set")
    shown += re.findall(r"^\| `(\w+)` \| ([^|]+) \|", parts[2], re.MULTILINE)
    of_a_destination = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", parts[0], re.MULTILINE)
    for fields, rows in ((Settings.model_fields, shown), (Destination.model_fields, of_a_destination)):
        assert len(rows) > 10
        for name, said in rows:
            default = fields[name].get_default(call_default_factory=True)
            assert said == ("required" if fields[name].is_required() else written(default)), name


def written(default: object) -> str:
    """A default as the page shows it."""
    if isinstance(default, float):
        return f"{default:g}" if default < 1e6 else f"{default:.0f}"
    return "none" if default in (None, {}) else str(default).lower() if isinstance(default, bool) else str(default)


def test_every_worker_that_is_shown_has_a_name_of_its_own() -> None:
    """Two of one name on a host answer for each other, and make `status`, `health` and `doctor` raise false alarms."""
    kinds = ("docs", "examples", "workers", "outbox_tasks/operating/problems")
    found = [path for kind in kinds for path in (ROOT / kind).rglob("*.*")] + [ROOT / "README.md"]
    shown = [
        line
        for path in found
        if path.suffix in {".md", ".py", ".toml"}
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"celery -A \S+ worker", line)
    ]
    assert len(shown) > 20
    assert [line for line in shown if " -n " not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, heading = link.partition("#")
        if ":" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def test_the_first_screen_of_the_readme_is_short() -> None:
    """What comes before the line that installs, without code and what is hidden."""
    first, installs, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("pip install")
    assert installs
    words = re.sub(r"<!--.*?-->|```.*?(```|$)", "", first, flags=re.DOTALL).split()
    assert 30 < len(words) <= 75, words
    code = re.findall(r"```python\n(.*?)```", first, re.DOTALL)
    assert len("".join(code).splitlines()) <= 10


def test_the_pages_are_short() -> None:
    """What a page says twice, nobody keeps true. Only what people look things up in may be long."""
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in [ROOT / "README.md", *DOCS.rglob("*.md")]}
    assert sum(words.values()) <= 42_000
    assert words.pop(ROOT / "README.md") <= 1_000
    long = {page.stem for page, count in words.items() if count > 1_500}
    assert long <= {"settings", "doctor"}


def headings(page: Path) -> set[str]:
    """As GitHub names them in links."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_map_shows_the_rooms_on_the_floors_of_the_import_rules() -> None:
    [contract] = [
        one
        for one in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
            "contracts"
        ]
        if one["type"] == "layers" and one.get("exhaustive")
    ]
    [block] = re.findall(r"```\n(django .*?)```", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.DOTALL)
    shown = [set(line.split("  ")[0].split(" · ")) for line in block.splitlines() if not line.startswith(" ")]
    assert shown == [set(layer.split(" | ")) for layer in contract["layers"] if layer != "__main__"]


def test_the_map_names_files_and_names_that_exist() -> None:
    text = re.sub(r"```.*?```", "", (DOCS / "architecture.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    for file, names in re.findall(r"\]\(\.\./([^)]+\.py)\)((?:,? `[\w.]+`)*)", text):
        code = (ROOT / file).read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"[\w.]+", names) if not re.search(rf"\b{name.split('.')[-1]}\b", code)]
        assert missing == [], file


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_names_the_servers_in_its_first_lines_only(page: Path) -> None:
    """`outbox-tasks up --no-relay` starts them at other ports, with passwords. The test that runs the page replaces
    what the page names, and so can't see a second place that the reader would have to change."""
    shown = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = [line for line in shown.splitlines() if re.search(r"localhost(:6379|:5432|/)", line)]
    assert [line for line in named if not re.match(r"export OUTBOX_(DATABASE|BROKER)_URL=\S+$", line)] == []
