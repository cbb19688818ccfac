"""`oppa tune` and `oppa train` on a real Ray cluster: finished, killed, resumed, side by side, a node lost."""

import json
import re
import signal
import subprocess
import sys

import pytest

from oppa.training.run import ledger
from oppa.training.run.run_folder import checkpoints
from tests.jobs import TRAIN_JOB
from tests.launchers.ray_cluster import RayCluster, jobs_lacking, ray_lacking
from tests.launchers.slurm_cluster import until
from tests.launchers.study_laws import StudyLaws, Tuner

pytestmark = [pytest.mark.slow, pytest.mark.ray]


class RayTuner(Tuner):
    """`oppa tune` on this cluster."""

    def __init__(self, cluster, folder) -> None:
        super().__init__(folder)
        self.cluster = cluster

    def start(self, *options: str) -> subprocess.Popen[str]:
        ray = ("--set", "launcher.name=ray", "--set", f"launcher.options.address={self.cluster.address}")
        words = [sys.executable, "-m", "oppa", "tune", "job.toml", "--study", "S", "--designer", "random", *ray, *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=self.folder, env=self.cluster.environment, stdout=pipe, stderr=pipe, text=True)

    def finished(self, running: subprocess.Popen[str], code: int = 0) -> str:
        out, err = running.communicate(timeout=280)
        assert running.returncode == code, err
        return out + err


@pytest.fixture
def tuner(ray_cluster, tmp_path):
    return RayTuner(ray_cluster, tmp_path)


@pytest.fixture(params=[signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["SIGKILL", "SIGTERM", "SIGINT"])
def end(request):
    """A tuner that gets a signal."""

    def do(running):
        running.send_signal(request.param)
        running.communicate(timeout=30)

    return do


class TestOnRay(StudyLaws):
    """The laws, on Ray."""


def test_nodes_of_another_size_are_refused_at_once(tuner):
    tuner.rewrite(hosts="4")
    assert "this job needs 4 nodes with 1 CPU each; the Ray cluster has 3" in tuner.finished(tuner.start(), code=3)
    assert not (tuner.folder / "S").exists()


def test_a_node_that_is_lost_interrupts_a_trial_and_the_study_goes_on_with_another(tuner):
    tuner.rewrite(trials="5", q_max="60", q_min="59")
    running = tuner.start("--set", "launcher.parallel=1")
    until(lambda: tuner.has_trials(1), timeout_s=200)
    name = ({host for trial in tuner.trials() for host in trial.hosts} - {"n0"}).pop()
    tuner.cluster.kill(name)
    try:
        tuner.finished(running)
    finally:
        tuner.cluster.start(name)
    assert sum(trial.outcome == "interrupted" for trial in tuner.trials()) <= 1
    assert len(tuner.counted()) == 5
    until(lambda: not tuner.living())


def test_with_autoscaling_it_waits_for_nodes_and_says_why(tuner):
    tuner.rewrite(hosts="4", trials="2")
    running = tuner.start("--set", "launcher.options.autoscaling=true")
    said = ""
    while "waiting for nodes" not in said:
        said = running.stderr.readline()
        assert said, "it has ended"
    tuner.cluster.start("n3")
    try:
        tuner.finished(running)
    finally:
        tuner.cluster.kill("n3")
    assert "waiting for nodes of the Ray cluster: the cluster has 3 of 4 nodes with 1 CPU" in said


@pytest.mark.skipif(bool(jobs_lacking()), reason=f"NOT TESTED with Ray Jobs: {jobs_lacking()}")
def test_it_is_submitted_from_outside_as_a_job_of_ray(tuner):
    submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", f"http://{tuner.cluster.dashboard}"]
    oppa = [sys.executable, "-m", "oppa", "tune", str(tuner.folder / "job.toml"), "--study", str(tuner.folder / "S")]
    words = [*submit, "--", *oppa, "--designer", "random", "--set", "launcher.name=ray", "--set", "limits.trials=2"]
    done = subprocess.run(words, env=tuner.cluster.environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "winner" in done.stdout
    assert len(tuner.counted()) == 2
    until(lambda: not tuner.living())


@pytest.mark.parametrize("policy", [(), ("--policy", "proportional")], ids=["", "policy"])
def test_a_run_goes_on_with_another_node(ray_cluster, tmp_path, policy):
    job = TRAIN_JOB.replace("devices_per_host = 2", "hosts = 2\ndevices_per_host = 1").replace("samples = 96", "samples = 4000")
    (tmp_path / "job.toml").write_text(job)
    ray = ("--set", "launcher.name=ray", "--set", f"launcher.options.address={ray_cluster.address}")
    words = [sys.executable, "-m", "oppa", "train", "job.toml", "dp=2,micro_batch=2", "--run", "R", "--json", *ray, *policy]
    pipe = subprocess.PIPE
    running = subprocess.Popen(words, cwd=tmp_path, env=ray_cluster.environment, stdout=pipe, stderr=pipe, text=True)
    until(lambda: running.poll() is not None or checkpoints(tmp_path / "R"), timeout_s=120)
    ray_cluster.kill("n1")
    try:
        out, err = running.communicate(timeout=280)
    finally:
        ray_cluster.start("n1")
    result = json.loads(out)
    assert (running.returncode, result["ending"], result["samples"]) == (0, "finished", 4000), err
    assert ledger.require_whole(ledger.standing(ledger.read(tmp_path / "R"))) == 4000


def test_a_head_that_is_lost_ends_the_tuner_and_the_study_resumes_on_the_next(tmp_path):
    """Without a store for its state, a head that restarts is another cluster."""
    if lacking := ray_lacking():
        pytest.skip(f"NOT TESTED on a real Ray cluster: {lacking}")
    with RayCluster() as cluster:
        tuner = RayTuner(cluster, tmp_path)
        running = tuner.start()
        until(lambda: tuner.has_trials(2), timeout_s=120)
        cluster.kill("n0")
        assert re.search("no Ray cluster answers|the Ray cluster is lost", tuner.finished(running, code=3))
        until(lambda: not tuner.living(), lambda: str(tuner.living()))
    with RayCluster() as cluster:
        tuner.cluster = cluster
        tuner.finished(tuner.start())
    assert len(tuner.counted()) == 8
