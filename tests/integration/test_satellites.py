"""A satellite is a folder: what remains works when it is deleted, with its entry point."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SATELLITES = ("archive", "django", "events", "feeds", "guard", "supervised", "testing")
DESTINATIONS = ("aws", "claim_check", "grpc", "http", "kafka", "kombu", "mqtt", "nats", "pubsub", "service_bus")
NEEDS = {"django": "supervised"}
"""Satellites that need another one."""
CORE_TESTS = ["tests/unit/test_retry.py", "tests/storage/test_write.py", "tests/integration/test_claim.py"]
IMPORT_ALL = """
import importlib, pkgutil, sys
import outbox_tasks
from outbox_tasks.cli import outbox
for module in pkgutil.walk_packages(outbox_tasks.__path__, "outbox_tasks."):
    if not module.name.startswith(("outbox_tasks.__main__", *sys.argv[1:])):
        importlib.import_module(module.name)
print(outbox_tasks.__file__, *outbox.list_commands(None))
"""

Copy = Callable[..., Path]


@pytest.fixture
def copy_without(tmp_path: Path) -> Copy:
    """A copy of the checkout without these satellites."""

    def make(*names: str) -> Path:
        for part in ("outbox_tasks", "tests"):
            shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for name in names:
            shutil.rmtree(tmp_path / "outbox_tasks" / name)
            shutil.rmtree(tmp_path / "tests" / name, ignore_errors=True)
            dotted = name.replace("/", ".")
            project = re.sub(rf'^"?\w+"? = "outbox_tasks\.{dotted}\..*\n', "", project, flags=re.MULTILINE)
        (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
        installed = tmp_path / "outbox_tasks-0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Name: outbox_tasks\nVersion: 0\n", encoding="utf-8")
        lines = []
        for group, entries in tomllib.loads(project)["project"]["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
        (installed / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        return tmp_path

    return make


def python(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place, env=os.environ | {"PYTHONPATH": str(place)}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SATELLITES)
def test_without_one_all_the_rest_can_be_imported(copy_without: Copy, name: str) -> None:
    need_it = [needing for needing, needed in NEEDS.items() if needed == name]
    place = copy_without(name, *need_it)
    # Django's modules want a project's settings.
    file, *commands = python(place, "-c", IMPORT_ALL, "outbox_tasks.django").split()
    assert Path(file).is_relative_to(place)
    assert "status" in commands
    assert {"archive": "replay", "feeds": "feed"}.get(name) not in commands


def test_without_all_of_them_the_tests_of_the_core_pass(copy_without: Copy) -> None:
    place = copy_without(*SATELLITES, *(f"destinations/{name}" for name in DESTINATIONS))
    left = {folder.name for folder in (place / "outbox_tasks/destinations").iterdir() if folder.is_dir()}
    assert left == {"celery_task", "common", "redis_stream"}
    python(place, "-c", IMPORT_ALL)
    said = python(place, "-m", "pytest", "-q", "-n0", "-x", "-p", "no:cacheprovider", *CORE_TESTS)
    assert re.search(r"^\d+ passed", said, re.MULTILINE), said
