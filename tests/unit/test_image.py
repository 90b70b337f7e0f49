"""The image and docker-compose.yml. Nothing here starts a container: it compares what they say with what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from outbox_tasks.cli import SECTIONS
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
ENTRYPOINT, HEALTHY = (ROOT / "workers" / name for name in ("entrypoint.sh", "healthy.sh"))
COMMANDS = {name for names in SECTIONS.values() for name in names}
WORKERS = {
    "claim": CLAIM_QUEUE,
    "publish": f"{PUBLISH_QUEUE} {DRAIN_QUEUE}",
    "maintenance": MAINTAIN_QUEUE,
    "feeds": FEED_QUEUE,
}
ROLES = {*WORKERS, "beat", "flower"}


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """The environment of a container whose programs only print how they were called."""
    for name in ("celery", "outbox-tasks"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
        program.chmod(0o755)
    programs = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": programs, "TMPDIR": str(tmp_path), "ALIVE_FILE": str(tmp_path / "alive"), "LOG_LEVEL": "WARNING"}


def called(place: dict[str, str], *arguments: str) -> str:
    return subprocess.run(
        [ENTRYPOINT, *arguments], env=place, capture_output=True, text=True, check=True
    ).stdout.strip()


class TestEntrypoint:
    @pytest.mark.parametrize("role", WORKERS)
    def test_of_a_worker(self, place: dict[str, str], role: str) -> None:
        said = called(place, role, "--concurrency", "8")
        assert said == f"celery -A workers.{role} worker --loglevel WARNING -n {role}@%h --concurrency 8"

    def test_of_beat_flower_and_the_page(self, place: dict[str, str]) -> None:
        assert called(place, "web", "--read-only") == "outbox-tasks web --host 0.0.0.0 --read-only"
        assert called(place, "beat") == "celery -A beat_schedule beat --loglevel WARNING"
        assert called(place, "flower").startswith("celery -A outbox_tasks flower --address=0.0.0.0 --port=5555")

    @pytest.mark.parametrize("arguments", ["drain --for 50", "init", "--help"])
    def test_of_everything_else(self, place: dict[str, str], arguments: str) -> None:
        assert called(place, *arguments.split()) == f"outbox-tasks {arguments}"

    def test_lets_programs_run(self, place: dict[str, str]) -> None:
        assert called(place, "celery", "report") == "celery report"
        assert called(place, "python", "-c", "print(6 * 7)") == "42"

    def test_takes_no_command_s_name_for_a_role(self) -> None:
        assert not COMMANDS & ROLES


@pytest.mark.parametrize(("role", "queue"), WORKERS.items())
def test_a_worker_of_each_role_consumes_its_queue(role: str, queue: str, tmp_path: Path) -> None:
    code = f"from workers.{role} import app; print(*app.amqp.queues.consume_from)"
    made = {**os.environ, "OUTBOX_BROKER_URL": "memory://", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=made, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == queue, done.stderr


class TestHealth:
    def healthy(self, place: dict[str, str]) -> bool:
        return subprocess.run([HEALTHY], env=place, capture_output=True).returncode == 0

    def test_of_a_worker_is_that_of_its_file(self, place: dict[str, str]) -> None:
        called(place, "publish")
        assert not self.healthy(place), "it has not begun to work"
        alive = Path(place["ALIVE_FILE"])
        alive.touch()
        assert self.healthy(place)
        old = alive.stat().st_mtime - 60
        os.utime(alive, (old, old))
        assert not self.healthy(place)

    def test_of_the_page_is_that_it_answers(self, place: dict[str, str]) -> None:
        called(place, "web")
        assert not self.healthy(place), "nobody listens"

    def test_of_a_command_is_always_good(self, place: dict[str, str]) -> None:
        called(place, "drain")
        assert self.healthy(place)


def composed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def ours() -> dict[str, Any]:
    return {name: service for name, service in composed()["services"].items() if service["image"] == "outbox-tasks"}


def test_compose_is_as_its_specification_says() -> None:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_runs_each_role_and_commands_that_there_are() -> None:
    started = {service["command"][0] for service in ours().values()}
    assert started >= ROLES | {"web", "init"}
    assert started <= ROLES | COMMANDS


def test_compose_gives_each_container_little_and_time_to_end() -> None:
    for name, service in ours().items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert int(service["stop_grace_period"].removesuffix("s")) > 25, name  # the hard time limit of a send


def test_each_variable_of_compose_is_in_the_example_and_back() -> None:
    asked = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))
    named = set(re.findall(r"^(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert asked == named


def test_what_the_image_copies_is_there_and_reaches_the_builder() -> None:
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == let_through
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_image_s_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"EXTRAS=([a-z,]+)", (ROOT / "Dockerfile").read_text())
    assert len(named) == 3
    assert {extra for names in named for extra in names.split(",")} <= set(extras)
