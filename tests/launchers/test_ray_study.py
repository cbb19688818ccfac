"""`oppa tune` on a real Ray cluster: finished, killed, resumed, side by side, a node lost."""

import signal
import subprocess
import sys

import pytest

from tests.launchers.ray_cluster import RayTuner, jobs_lacking
from tests.launchers.slurm_cluster import until
from tests.launchers.study_laws import StudyLaws
from tests.sampling import nightly

pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.fixture
def tuner(ray_cluster, tmp_path):
    with RayTuner(ray_cluster, tmp_path) as tuner:
        yield tuner


@pytest.fixture(params=[signal.SIGKILL, *nightly(signal.SIGTERM, signal.SIGINT)], ids=["SIGKILL", "SIGTERM", "SIGINT"])
def end(request):
    """A tuner that gets a signal."""

    def do(running):
        running.send_signal(request.param)
        running.communicate(timeout=30)

    return do


class TestOnRay(StudyLaws):
    """Checks the laws of a study on Ray."""


def test_nodes_of_another_size_are_refused_at_once(tuner):
    tuner.rewrite(hosts="4")
    assert "this job needs 4 nodes with 1 CPU each; the Ray cluster has 3" in tuner.finished(tuner.start(), code=3)
    assert not (tuner.folder / "S").exists()


@pytest.mark.nightly
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


@pytest.mark.nightly
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
