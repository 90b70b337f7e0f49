"""What the wheel and the source distribution hold. `make package` builds them as a release does, and tries them."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import outbox_tasks

ROOT = Path(__file__).parents[2]
WHEEL_SIZE = 1_500_000
"""Bytes: three quarters of it would be a surprise."""

PYTHONS = ("3.11.0", "3.11.2", "3.11.14", "3.12.0", "3.13.0", "3.14.0", "3.15.0")
"""Some that people have: the oldest of all, Debian 12's, and the first of each later release."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both."""
    target = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    [path] = built.glob("*.whl")
    assert path.name == f"outbox_tasks-{outbox_tasks.__version__}-py3-none-any.whl"
    assert path.stat().st_size < WHEEL_SIZE
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def described(wheel: zipfile.ZipFile) -> PathDistribution:
    """What the wheel says of itself."""
    return PathDistribution(zipfile.Path(wheel, f"outbox_tasks-{outbox_tasks.__version__}.dist-info/"))


def of_the_checkout(folder: str) -> set[str]:
    files = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("this is no checkout")
    return {name for name in files.stdout.split("\0") if name and (ROOT / name).exists()}


def test_the_wheel_holds_the_package_and_the_source_distribution_what_its_tests_need(
    built: Path, wheel: zipfile.ZipFile
) -> None:
    notes = f"outbox_tasks-{outbox_tasks.__version__}.dist-info/"
    ours = {name for name in wheel.namelist() if not name.endswith("/") and not name.startswith(notes)}
    assert ours == of_the_checkout("outbox_tasks")
    assert {"outbox_tasks/py.typed", "outbox_tasks/database/sql/schema.sql"} <= ours
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert files - {"PKG-INFO"} >= of_the_checkout(".")
    assert {file for file in files if file.endswith((".pyc", ".env"))} == set()


def test_the_metadata_say_what_people_look_for_and_lead_to_the_repository(described: PathDistribution) -> None:
    metadata = described.metadata
    assert (metadata["Name"], metadata["License-Expression"]) == ("outbox-tasks", "MIT")
    assert any(url.startswith("Homepage, https://") for url in metadata.get_all("Project-URL", []))
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    readme = str(metadata.json["description"])
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert "<!--" not in readme


def test_each_entry_point_leads_somewhere(wheel: zipfile.ZipFile, described: PathDistribution) -> None:
    files = set(wheel.namelist())
    modules = {point.module.replace(".", "/") for point in described.entry_points}
    assert len(modules) > 10
    assert [module for module in modules if not {f"{module}.py", f"{module}/__init__.py"} & files] == []


def pinned() -> Iterator[Requirement]:
    """What constraints.txt holds for this interpreter and system."""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement


def test_what_is_pinned_runs_on_the_oldest_python_and_on_all_later_ones() -> None:
    refused: list[str] = []
    absent: list[str] = []
    for requirement in pinned():
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            found = None
        if found is None or found.version not in requirement.specifier:
            absent.append(str(requirement))
            continue
        rule = found.metadata["Requires-Python"] or ""
        refused += [f"{requirement} needs {rule}: not {it}" for it in PYTHONS if it not in SpecifierSet(rule)]
    assert refused == []
    if absent:
        pytest.skip(f"not looked at, because they are not installed: {', '.join(absent)}")


def test_what_is_pinned_comes_from_no_place_in_particular() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("-") or "/" in line] == []
