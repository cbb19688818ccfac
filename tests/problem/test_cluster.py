"""One memory limit: a stated one is whole, and only a device's own size has a part that cannot be used."""

import ast
import json
from pathlib import Path

import pytest

from oppa.cost.hardware import load_hardware
from oppa.errors import JobError
from oppa.problem.cluster import Cluster, usable_of
from oppa.problem.describe import job
from oppa.problem.devices import devices, memory_of
from oppa.problem.job import load_job
from oppa.problem.problem import Problem

OPPA = Path(__file__).parents[2] / "oppa"
JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 4, device = "DEVICE", memory_limit = "40 GiB"}
runner = {name = "torch"}
space = {parameters = {schedule = "1f1b", recompute = "none"}}
"""


@pytest.fixture
def load(tmp_path):
    """The problem on a device, with a stated limit or without."""

    def load_(device: str, *, stated: bool) -> Problem:
        text = JOB.replace("DEVICE", device)
        (tmp_path / "job.toml").write_text(text if stated else text.replace(', memory_limit = "40 GiB"', ""))
        return load_job(tmp_path / "job.toml")

    return load_


@pytest.mark.parametrize("device", ["CPU", "H100", "A100", "NVIDIA L40"])
def test_a_stated_limit_is_usable_whole(device, load) -> None:
    cluster = load(device, stated=True).cluster
    assert cluster.usable_bytes == cluster.memory_limit_bytes == 40 * 2**30


@pytest.mark.parametrize("device", ["H100", "NVIDIA H100 80GB HBM3", "p4d.24xlarge"])
def test_without_a_limit_nine_tenths_of_the_device_are(device, load) -> None:
    problem = load(device, stated=False)
    assert problem.cluster.memory_limit_bytes == memory_of(device)
    assert problem.cluster.usable_bytes == int(0.9 * memory_of(device)) == usable_of(memory_of(device))
    assert "GiB of " in job(problem)


@pytest.mark.parametrize("device", ["CPU", "A100", "NVIDIA L40"])
def test_a_device_of_unknown_size_needs_a_limit(device, load) -> None:
    with pytest.raises(JobError, match=r"memory_limit|is ambiguous"):
        load(device, stated=False)


@pytest.mark.parametrize("stated", [True, False])
def test_a_limit_survives_json_with_where_it_is_from(stated, load) -> None:
    problem = load("H100", stated=stated)
    again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again.cluster == problem.cluster and again.fingerprint == problem.fingerprint


def test_a_problem_from_before_the_choice_states_its_limit(load) -> None:
    values = load("H100", stated=True).cluster.to_dict()
    assert "memory_limit_stated" not in values and Cluster.from_dict(values).memory_limit_stated


def test_the_same_bytes_stated_or_not_are_two_problems(load) -> None:
    unstated = load("H100", stated=False)
    assert unstated.fingerprint != load("H100", stated=True).fingerprint


@pytest.mark.parametrize("device", sorted(set(devices()) - {"CPU"}))
def test_rows_of_a_table_have_the_catalogue_s_limit(device) -> None:
    assert load_hardware(device).usable_bytes == usable_of(devices()[device].memory_bytes)


@pytest.mark.slow
def test_nobody_but_the_problem_asks_for_the_limit_before_it_is_usable() -> None:
    """One limit for designers, predictions, schedule search, scale tables, the simulator and what trials enforce: `usable_bytes`."""
    for path in set(OPPA.rglob("*.py")) - set((OPPA / "problem").glob("*.py")):
        reads = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        assert [f"{path}:{node.lineno}" for node in reads if node.attr == "memory_limit_bytes"] == []
