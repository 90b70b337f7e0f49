"""The manifests in examples/kubernetes: they are what Kubernetes' schemas allow, and fit the image and the settings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from outbox_tasks import Settings, __version__
from outbox_tasks.cli import SECTIONS
from tests.unit.test_image import ROLES

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "examples" / "kubernetes"
COMMANDS = {name for names in SECTIONS.values() for name in names}
VERSIONS = ("1.29", "1.31", "1.33", "1.35", kubernetes_validate.latest_version())
KEDA = ROOT / "node_modules" / "@kubernetes-models" / "keda"

MODELS = """
import * as keda from "@kubernetes-models/keda/keda.sh/v1alpha1";
const { kind, ...rest } = JSON.parse(process.argv[1]);
new keda[kind](rest).validate();
"""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((PLACE / name).read_text()))


KUSTOMIZATION = documents("kustomization.yaml")[0]
RESOURCES = {
    f"{one['kind']} {one['metadata']['name']}": one for name in KUSTOMIZATION["resources"] for one in documents(name)
}
PODS = {
    name: one["spec"]["template"]["spec"] for name, one in RESOURCES.items() if one["kind"] in ("Deployment", "Job")
}


@pytest.mark.parametrize("name", RESOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_resource_is_as_the_schema_of_kubernetes_says(name: str, version: str) -> None:
    kubernetes_validate.validate(RESOURCES[name], version, strict=True)


def test_the_schema_refuses_what_it_does_not_know() -> None:
    """Otherwise the test above could not fail."""
    wrong = json.loads(json.dumps(RESOURCES["Deployment outbox-publish"]))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_file_is_used() -> None:
    named = {*KUSTOMIZATION["resources"], *KUSTOMIZATION["configMapGenerator"][0]["files"]}
    assert {path.name for path in PLACE.iterdir()} == named | {"kustomization.yaml", "keda.yaml"}


def test_the_image_is_that_of_this_release() -> None:
    [image] = KUSTOMIZATION["images"]
    assert image["newTag"] == __version__
    assert {pod["containers"][0]["image"] for pod in PODS.values()} == {image["name"]}


@pytest.mark.parametrize("name", PODS)
class TestPod:
    def test_runs_a_role_of_the_image(self, name: str) -> None:
        [container] = PODS[name]["containers"]
        assert container["args"][0] in ROLES | COMMANDS
        role = "monitor" if "--serve" in container["args"] else container["args"][0]
        assert name.endswith(f" outbox-{role}")

    def test_has_few_rights(self, name: str) -> None:
        pod, [container] = PODS[name], PODS[name]["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        rights = container["securityContext"]
        assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]) == {"requests", "limits"}

    def test_takes_secrets_by_reference(self, name: str) -> None:
        [container] = PODS[name]["containers"]
        assert [source["secretRef"]["name"] for source in container["envFrom"]]
        assert {one["name"] for one in container.get("env", [])} <= {"OUTBOX_MONITOR_PORT", "OUTBOX_MONITOR_HOST"}

    def test_is_probed_and_ends_in_good_order(self, name: str) -> None:
        if name.startswith("Job"):
            return
        [container] = PODS[name]["containers"]
        assert "livenessProbe" in container
        sends = container["args"][0] in ("claim", "publish", "maintenance")
        assert PODS[name]["terminationGracePeriodSeconds"] >= (Settings().hard_time_limit if sends else 30)


def test_publish_workers_survive_the_drain_of_a_node() -> None:
    budget = RESOURCES["PodDisruptionBudget outbox-publish"]["spec"]
    publish = RESOURCES["Deployment outbox-publish"]["spec"]
    assert publish["selector"] == budget["selector"]
    assert publish["replicas"] > budget["minAvailable"]


def test_the_service_finds_the_page() -> None:
    labels = RESOURCES["Deployment outbox-web"]["spec"]["template"]["metadata"]["labels"]
    assert RESOURCES["Service outbox-web"]["spec"]["selector"] == labels


class TestKeda:
    def test_is_as_its_models_say(self) -> None:
        if not KEDA.exists():
            pytest.skip("the models of KEDA are not installed: npm install @kubernetes-models/keda@2")
        argv = ["node", "--input-type=module", "-e", MODELS, "--"]
        for one in documents("keda.yaml"):
            done = subprocess.run([*argv, json.dumps(one)], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            # These models let unknown fields pass. What they know is in their types.
            known = (KEDA / "keda.sh" / "v1alpha1" / f"{one['kind']}Spec.d.ts").read_text()
            assert [field for field in one["spec"] if f'"{field}"' not in known] == []

    def test_scales_a_deployment_that_there_is_up_to_what_is_counted(self) -> None:
        _, scaled = documents("keda.yaml")
        spec = scaled["spec"]
        assert f"Deployment {spec['scaleTargetRef']['name']}" in RESOURCES
        [trigger] = spec["triggers"]
        most = int(trigger["metadata"]["query"].partition("most => ")[2].rstrip(")"))
        assert most == spec["maxReplicaCount"] * int(trigger["metadata"]["targetQueryValue"])
