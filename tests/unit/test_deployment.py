"""The image, docker-compose.yml and the examples for Kubernetes and systemd: as their schemas say, and fit for the
relay. Nothing here starts a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from outbox_tasks import Settings, __version__
from outbox_tasks.broker.names import ALL_QUEUES
from outbox_tasks.cli import outbox
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
ENTRYPOINT, HEALTHY = (ROOT / "workers" / name for name in ("entrypoint.sh", "healthy.sh"))
COMMANDS = {*outbox.list_commands(click.Context(outbox))}
WORKERS = {
    "claim": CLAIM_QUEUE,
    "publish": f"{PUBLISH_QUEUE} {DRAIN_QUEUE}",
    "maintenance": MAINTAIN_QUEUE,
    "feeds": FEED_QUEUE,
}
ROLES = {*WORKERS, "beat", "flower"}


class TestImage:
    @pytest.fixture
    def place(self, tmp_path: Path) -> dict[str, str]:
        """The environment of a container whose programs only print how they were called."""
        for name in ("celery", "outbox-tasks"):
            program = tmp_path / name
            program.write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
            program.chmod(0o755)
        programs = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": programs, "TMPDIR": str(tmp_path), "ALIVE_FILE": str(tmp_path / "alive"), "LOG_LEVEL": "WARN"}

    def called(self, place: dict[str, str], arguments: str) -> str:
        argv = [ENTRYPOINT, *arguments.split()]
        return subprocess.run(argv, env=place, capture_output=True, text=True, check=True).stdout.strip()

    @pytest.mark.parametrize(
        ("arguments", "program"),
        [
            *(
                (f"{role} -c 8", f"celery -A workers.{role} worker --loglevel WARN -n {role}@%h -c 8")
                for role in WORKERS
            ),
            ("web --read-only", "outbox-tasks web --host 0.0.0.0 --read-only"),
            ("beat", "celery -A beat_schedule beat --loglevel WARN"),
            ("drain --for 50", "outbox-tasks drain --for 50"),
            ("--help", "outbox-tasks --help"),
            ("celery report", "celery report"),
        ],
    )
    def test_each_argument_runs_its_program(self, place: dict[str, str], arguments: str, program: str) -> None:
        assert self.called(place, arguments) == program

    @pytest.mark.parametrize(("role", "queue"), WORKERS.items())
    def test_a_worker_of_each_role_consumes_its_queue(self, role: str, queue: str, tmp_path: Path) -> None:
        code = f"from workers.{role} import app; print(*app.amqp.queues.consume_from)"
        made = {**os.environ, "OUTBOX_BROKER_URL": "memory://", "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], env=made, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.strip() == queue, done.stderr

    def test_health(self, place: dict[str, str]) -> None:
        def healthy(role: str) -> bool:
            self.called(place, role)
            return subprocess.run([HEALTHY], env=place, capture_output=True).returncode == 0

        alive = Path(place["ALIVE_FILE"])
        assert not healthy("publish"), "it has not begun to work"
        alive.touch()
        assert healthy("publish")
        os.utime(alive, (0, alive.stat().st_mtime - 60))
        assert not healthy("publish")
        assert not healthy("web"), "nobody listens"
        assert healthy("drain"), "a command"

    def test_what_it_copies_is_there_and_reaches_the_builder_and_its_extras_exist(self) -> None:
        dockerfile = (ROOT / "Dockerfile").read_text()
        copied = re.findall(r"^COPY (?!--)(.*) \S+$", dockerfile, re.MULTILINE)
        sources = {source for line in copied for source in line.split()}
        assert sources == {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
        assert [source for source in sources if not (ROOT / source).exists()] == []
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"EXTRAS=([a-z,]+)", dockerfile)
        assert len(named) == 3
        assert {extra for names in named for extra in names.split(",")} <= set(extras)


def test_compose_is_as_its_specification_says_and_runs_each_role_with_little_rights() -> None:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    services = [
        one for one in yaml.safe_load(COMPOSE.read_text())["services"].values() if one["image"] == "outbox-tasks"
    ]
    assert ROLES | {"web", "init"} <= {service["command"][0] for service in services} <= ROLES | COMMANDS
    for service in services:
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert int(service["stop_grace_period"].removesuffix("s")) > 25  # the hard time limit of a send
    named = set(re.findall(r"^(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$\{(\w+)", COMPOSE.read_text())) == named


PLACE = ROOT / "examples" / "kubernetes"
VERSIONS = ("1.29", kubernetes_validate.latest_version())


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((PLACE / name).read_text()))


KUSTOMIZATION = documents("kustomization.yaml")[0]
RESOURCES = {
    f"{one['kind']} {one['metadata']['name']}": one for name in KUSTOMIZATION["resources"] for one in documents(name)
}
PODS = {
    name: one["spec"]["template"]["spec"] for name, one in RESOURCES.items() if one["kind"] in ("Deployment", "Job")
}


class TestKubernetes:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_the_resources_are_as_the_schema_says(self, version: str) -> None:
        for one in RESOURCES.values():
            kubernetes_validate.validate(one, version, strict=True)
        wrong = json.loads(json.dumps(RESOURCES["Deployment outbox-publish"]))
        wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
        with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
            kubernetes_validate.validate(wrong, version, strict=True)

    def test_every_file_is_used_and_the_image_is_that_of_this_release(self) -> None:
        named = {*KUSTOMIZATION["resources"], *KUSTOMIZATION["configMapGenerator"][0]["files"]}
        assert {path.name for path in PLACE.iterdir()} == named | {"kustomization.yaml", "keda.yaml"}
        [image] = KUSTOMIZATION["images"]
        assert image["newTag"] == __version__
        assert {pod["containers"][0]["image"] for pod in PODS.values()} == {image["name"]}

    @pytest.mark.parametrize("name", PODS)
    def test_a_pod_runs_a_role_of_the_image_has_few_rights_and_ends_in_good_order(self, name: str) -> None:
        pod, [container] = PODS[name], PODS[name]["containers"]
        role = container["args"][0]
        assert role in ROLES | COMMANDS
        assert name.endswith(f" outbox-{'monitor' if '--serve' in container['args'] else role}")
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        rights = container["securityContext"]
        assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]) == {"requests", "limits"}
        assert [source["secretRef"]["name"] for source in container["envFrom"]]
        assert {one["name"] for one in container.get("env", [])} <= {"OUTBOX_MONITOR_PORT", "OUTBOX_MONITOR_HOST"}
        if not name.startswith("Job"):
            assert "livenessProbe" in container
            needed = Settings().hard_time_limit if role in ("claim", "publish", "maintenance") else 30
            assert pod["terminationGracePeriodSeconds"] >= needed

    def test_publish_workers_survive_the_drain_of_a_node_and_the_service_finds_the_page(self) -> None:
        budget = RESOURCES["PodDisruptionBudget outbox-publish"]["spec"]
        publish = RESOURCES["Deployment outbox-publish"]["spec"]
        assert publish["selector"] == budget["selector"]
        assert publish["replicas"] > budget["minAvailable"]
        labels = RESOURCES["Deployment outbox-web"]["spec"]["template"]["metadata"]["labels"]
        assert RESOURCES["Service outbox-web"]["spec"]["selector"] == labels

    def test_keda_scales_a_deployment_that_there_is_up_to_what_is_counted(self) -> None:
        spec = documents("keda.yaml")[1]["spec"]
        assert f"Deployment {spec['scaleTargetRef']['name']}" in RESOURCES
        [trigger] = spec["triggers"]
        most = int(trigger["metadata"]["query"].partition("most => ")[2].rstrip(")"))
        assert most == spec["maxReplicaCount"] * int(trigger["metadata"]["targetQueryValue"])


UNITS = ROOT / "examples" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
EXPOSED = 2.0
"""What `systemd-analyze security` may say at most, of 10. A service without any protection has 9.6."""


class TestSystemd:
    def analyze(self, *argv: str, units: Path) -> str:
        done = subprocess.run(["systemd-analyze", *argv], cwd=units, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze comes with systemd")
    def test_systemd_takes_the_units_and_a_service_is_exposed_little(self, tmp_path: Path) -> None:
        units = tmp_path / "units"
        shutil.copytree(UNITS, units)
        for unit in units.glob("*.service"):  # it looks for the programs
            unit.write_text(unit.read_text().replace("/opt/outbox/bin", str(Path(sys.executable).parent)))
        names = sorted(f"./{path.name}" for path in units.iterdir() if path.is_file())
        assert self.analyze("verify", "--man=no", "--recursive-errors=no", *names, units=units) == ""
        for name in SERVICES:
            told = self.analyze("security", "--offline=true", "--no-pager", f"./{name.name}", units=units)
            [exposed] = re.findall(r"Overall exposure level for .*: ([\d.]+)", told)
            assert float(exposed) <= EXPOSED, told

    def setting(self, name: str, text: str) -> list[str]:
        return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)

    def test_the_services_serve_every_queue_and_the_target_starts_them(self) -> None:
        lists = [found for path in SERVICES for found in re.findall(r" -Q (\S+)", path.read_text())]
        assert sorted(queue for each in lists for queue in each.split(",")) == sorted(ALL_QUEUES)
        [wanted] = self.setting("Wants", (UNITS / "outbox.target").read_text())
        started = {re.sub(r"@\d+", "@", name) for name in wanted.split()}
        assert {path.name for path in SERVICES} - started == {"outbox-init.service", "outbox-feeds@.service"}

    def test_a_service_starts_again_and_has_time_to_end(self) -> None:
        shared = (UNITS / "outbox-.service.d" / "relay.conf").read_text()
        [seconds] = self.setting("TimeoutStopSec", shared)
        assert int(seconds) > Settings().hard_time_limit
        assert self.setting("KillMode", shared) == ["mixed"]
        for path in SERVICES:
            assert self.setting("Restart", path.read_text()) == ["on-failure" if "init" in path.name else "always"]
