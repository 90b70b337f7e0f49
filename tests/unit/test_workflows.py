"""The workflows: as their schema says, with few rights, and without a secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import clock, matrix, weekly

TESTS = Path(__file__).parents[1]
PLACE = TESTS.parent / ".github" / "workflows"
WORKFLOWS = sorted(PLACE.glob("*.yml"))


def test_they_are_as_their_schema_says() -> None:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_rights_are_given_job_by_job_and_no_secret_is_kept(path: Path) -> None:
    workflow: dict[str, Any] = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in path.read_text()
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_a_release_publishes_what_it_has_checked_without_a_token() -> None:
    jobs = yaml.safe_load((PLACE / "release.yml").read_text())["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert any(step.get("run") == "make package" for step in jobs["build"]["steps"])
    assert jobs["publish"]["permissions"] == {"id-token": "write"}


def test_the_matrix_the_clock_and_the_weekly_tests_are_files_that_exist() -> None:
    places = [*matrix.TESTS, *matrix.OF_SERVERS, *(f"{name}.py" for name in clock.DATED)]
    places += [line.partition("::")[0] for line in weekly.WEEKLY.split("\n")]
    assert [place for place in places if not (TESTS / place).exists()] == []
