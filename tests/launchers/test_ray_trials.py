"""A trial on two nodes of a real Ray cluster obeys the laws of all launchers, and those that only Ray has."""

import json
import math
import os
import re
import signal
from pathlib import Path

import pytest

from oppa.errors import EnvironmentLackingError, InputError
from oppa.launchers.hosts import HostsLauncher
from oppa.launchers.provider import HostRequest, WaitingTuner
from oppa.launchers.ray.provider import RayProvider, bundle_of
from oppa.trials.runner import load_runner
from tests.launchers.ray_cluster import RayCluster
from tests.launchers.slurm_cluster import until
from tests.launchers.trial_laws import LONG, TrialLaws, Trials, amid, spec
from tests.trials.conftest import SCRIPT_RUNNER, STUDY

pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.fixture(scope="module")
def trials(ray_cluster, tmp_path_factory):
    request = HostRequest(cluster=spec("").cluster, options={"address": ray_cluster.address}, parallel=1)
    tuner = WaitingTuner(folder=tmp_path_factory.mktemp("study"), name="job", grace_s=1, on_tick=lambda: None)
    with RayProvider().open(request, tuner) as backend:
        with HostsLauncher(load_runner(SCRIPT_RUNNER), backend.pool, study=STUDY, grace_s=1) as launcher:
            yield (trials := Trials(launcher, backend.pool, STUDY))
        until(lambda: not trials.living(), lambda: str(trials.living()), timeout_s=10)


@pytest.fixture
def act(trials, tmp_path):
    """Run a script as a trial, and then one that completes."""
    yield lambda script, **how: trials.run(tmp_path, script, **how)
    assert trials.run(tmp_path / "next", "steps 4 0.01").outcome == "completed"


class TestOnRay(TrialLaws):
    """Checks the laws of trials on Ray."""


def test_each_host_is_another_node(trials):
    assert len(set(trials.pool.names)) == 2
    assert set(trials.pool.names) < {"n0", "n1", "n2"}


def test_a_killed_step_fails_the_trial_and_leaves_nothing(act, trials):
    def kill():
        (step,) = (pid for pid in trials.living() if b"ray import step" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[3])
        os.kill(step, signal.SIGKILL)

    result = act(LONG, steps=5000, on_step=amid(kill))
    assert result.outcome == "failed"
    assert "the command that starts the agents was killed by SIGKILL" in result.cause


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cpus_per_host": 3}, "needs 2 nodes with 3 CPUs each; the Ray cluster has 0"),
        ({"accelerator_type": "H100"}, "needs 2 nodes with 1 CPU each; the Ray cluster has 0"),
    ],
)
def test_what_the_cluster_does_not_have_is_an_error_at_once(ray_cluster, options, words):
    request = HostRequest(cluster=spec("").cluster, options={"address": ray_cluster.address, **options})
    with pytest.raises(EnvironmentLackingError, match=words):
        RayProvider().require(request)


def test_more_parallel_trials_than_nodes_are_an_error(ray_cluster):
    request = HostRequest(cluster=spec("").cluster, options={"address": ray_cluster.address}, parallel=2)
    with pytest.raises(EnvironmentLackingError, match="needs 4 nodes with 1 CPU each; the Ray cluster has 3"):
        RayProvider().require(request)


def test_an_address_without_a_cluster_is_an_error(ray_cluster):
    with pytest.raises(EnvironmentLackingError, match=r"no Ray cluster answers at `127\.0\.0\.1:1`"):
        RayProvider().require(HostRequest(cluster=spec("").cluster, options={"address": "127.0.0.1:1"}))


@pytest.mark.parametrize(("field", "value"), [("ray_version", "2.1.0"), ("python_version", "3.99.1")])
def test_versions_that_differ_are_an_error_that_names_both(ray_cluster, field, value):
    from ray._raylet import GcsClient

    key, space = b"CLUSTER_METADATA", b"cluster"  # of Ray's `usage_lib.get_cluster_metadata`
    store = GcsClient(address=ray_cluster.address)
    stored = store.internal_kv_get(key, namespace=space)
    ours = json.loads(stored)
    store.internal_kv_put(key, json.dumps({**ours, field: value}).encode(), True, namespace=space)
    theirs = {**ours, field: value}
    words = "has Ray {ray_version} and Python {python_version}"
    try:
        with pytest.raises(EnvironmentLackingError) as caught:
            RayProvider().require(HostRequest(cluster=spec("").cluster, options={"address": ray_cluster.address}))
    finally:
        store.internal_kv_put(key, stored, True, namespace=space)
    assert words.format(**theirs) in caught.value.message
    assert words.format(**ours).replace("has", "with") in caught.value.message
    assert value in caught.value.hint


def test_without_an_address_it_takes_the_only_cluster_of_this_machine_and_says_so(ray_cluster, tmp_path, caplog):
    request = HostRequest(cluster=spec("").cluster, parallel=1)
    tuner = WaitingTuner(folder=tmp_path, name="job", grace_s=1, on_tick=lambda: None)
    with RayProvider().open(request, tuner) as backend:
        address = backend.environment["RAY_ADDRESS"]
    assert port(address) == port(ray_cluster.address)  # Ray names the machine in its own way
    assert f"no address is given: using this machine's Ray cluster, {address}" in caplog.text


def test_without_an_address_two_clusters_of_this_machine_are_an_error(ray_cluster, monkeypatch):
    request = HostRequest(cluster=spec("").cluster)
    with RayCluster(nodes=1) as other:
        with pytest.raises(EnvironmentLackingError, match="belongs to 2 Ray clusters: ") as caught:
            RayProvider().require(request)
        assert {port(each) for each in re.findall(r"[\w.]+:\d+", caught.value.message)} == {port(ray_cluster.address), port(other.address)}
        monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
        RayProvider().require(request)


def port(address):
    return address.rpartition(":")[2]


@pytest.mark.parametrize("seconds", [-1, "soon", True, math.inf, math.nan])
def test_a_wrong_time_to_return_is_an_error(seconds):
    with pytest.raises(InputError, match="head_return_s"):
        RayProvider().require(HostRequest(cluster=spec("").cluster, options={"address": "127.0.0.1:1", "head_return_s": seconds}))


@pytest.mark.parametrize("cpus", [0, -1, "two", True])
def test_a_wrong_number_of_cpus_is_an_error(cpus):
    with pytest.raises(InputError, match="cpus_per_host"):
        bundle_of(spec("").cluster, {"cpus_per_host": cpus})
