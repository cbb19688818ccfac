"""The manifest for Kubernetes is valid by the published schemas, and its pods start the job's script on the right host."""

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from oppa import catalog
from oppa.tuning.formats import export
from oppa.tuning.formats.kubernetes import job_name
from tests.schema_check import faults
from tests.tuning.formats.conftest import at, read_back

SCHEMAS = Path(__file__).parent / "kubernetes"
GUIDE = catalog.root() / "docs" / "how-to" / "kubernetes.md"
SPACE = {"runner": "torch", "model": "tiny-4m"}


def manifests(problem) -> dict[str, dict]:
    """The manifests of a job, by the names of their schemas."""
    return {name.removesuffix(".yaml"): yaml.safe_load(text) for name, text in export("kubernetes", problem, at(dp=16)).items()}


def container(manifest):
    """Return the container that starts in a pod."""
    if manifest["kind"] == "TrainJob":
        return manifest["spec"]["trainer"]
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]


def environment(manifest) -> dict[str, str]:
    """The environment of a pod, as Kubernetes makes it."""
    return {each["name"]: each["value"].replace("$$", "$") for each in container(manifest)["env"]}


def wrong(name: str, value: object) -> list[str]:
    """Return the errors of a value under a schema."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    return list(faults(value, schema, root=schema, closed=True))


@pytest.fixture
def two_hosts(problem_of):
    return problem_of("torch", hosts=2, **SPACE)


def test_they_are_valid(two_hosts):
    for name, manifest in manifests(two_hosts).items():
        assert not wrong(name, manifest)
        assert container(manifest)["image"] == "YOUR-IMAGE"
    assert wrong("jobset", {"spec": {"replicatedjobs": []}}), "a schema that allows anything would prove nothing"


def test_the_configuration_reads_back(two_hosts):
    for name, text in export("kubernetes", two_hosts, at(dp=16)).items():
        assert read_back("kubernetes", two_hosts, {name: text}) == at(dp=16)


def test_every_pod_has_the_script_and_its_devices(two_hosts):
    script = export("torchrun", two_hosts, at(dp=16))
    for manifest in manifests(two_hosts).values():
        assert environment(manifest)["OPPA_SCRIPT"] == script["run.sh"]
        assert environment(manifest)["OPPA_SPEC"] == script["trial.json"]
        limits = container(manifest).get("resourcesPerNode", container(manifest).get("resources"))["limits"]
        assert limits == {"nvidia.com/gpu": 8}


@pytest.mark.parametrize(("device", "resource"), [("MI300X", "amd.com/gpu"), ("Gaudi3", "habana.ai/gaudi"), ("CPU", "cpu")])
def test_devices_have_the_name_of_their_plugin(two_hosts, device, resource):
    other = dataclasses.replace(two_hosts, cluster=dataclasses.replace(two_hosts.cluster, device=device))
    assert container(manifests(other)["jobset"])["resources"]["limits"] == {resource: 8}


def test_a_pod_starts_the_script_as_its_host(two_hosts, tmp_path):
    pods = {
        "jobset": {"JOB_COMPLETION_INDEX": "1"},
        "trainjob": {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "llama-hosts-0-0.llama", "PET_MASTER_PORT": "29500"},
    }
    for name, manifest in manifests(two_hosts).items():
        words = [word.replace("/oppa", str(tmp_path)) for word in container(manifest)["command"]]
        variables = {**environment(manifest), **pods[name], "OPPA_SCRIPT": 'echo "$NODE_RANK $MASTER_ADDR $1"', "PATH": "/usr/bin:/bin"}
        assert subprocess.check_output([*words, "500"], env=variables, text=True) == "1 llama-hosts-0-0.llama 500\n"
        assert (tmp_path / "trial.json").read_text() == environment(manifest)["OPPA_SPEC"]


@pytest.mark.parametrize(
    ("name", "legal"), [("Llama_3.1", "llama-3-1"), ("7b", "oppa-7b"), ("x" * 70, "x" * 40), ("é", "oppa"), ("a--", "a")]
)
def test_any_name_becomes_that_of_a_host(name, legal):
    assert job_name(name) == legal
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", job_name(name))


def test_the_examples_of_the_guide_are_valid():
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)]
    kinds = [each.get("kind", "skypilot").lower() for each in shown]
    assert kinds == ["raycluster", "rayjob", "skypilot"]
    for kind, each in zip(kinds, shown, strict=True):
        assert not wrong(kind, each)
    assert "backoffLimit" not in shown[1]["spec"], "KubeRay would delete the selected cluster"
    subprocess.run(["sh", "-n"], input=shown[2]["run"], text=True, check=True)
