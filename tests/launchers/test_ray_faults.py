"""`oppa tune` and `oppa train` on a real Ray cluster: nodes, heads and tuners that die, in each phase."""

import json
import signal
import subprocess
import sys

import pytest

from oppa.training.run import ledger
from oppa.training.run.run_folder import checkpoints
from oppa.trials import processes
from tests.jobs import TRAIN_JOB
from tests.launchers import study_laws
from tests.launchers.ray_cluster import TRIALS, RayTuner
from tests.launchers.slurm_cluster import until
from tests.sampling import nightly

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.faults]
GONE_S = 11
"""The grace period of these studies, and ten seconds."""
PHASES = [*nightly("placement", "agent start"), "rendezvous", *nightly("steps", "collection", "end")]


@pytest.fixture
def tuner(ray_cluster, tmp_path):
    with RayTuner(ray_cluster, tmp_path) as tuner:
        yield tuner


@pytest.fixture
def short(tuner):
    """A tuner with a short study, and the options of its start."""
    tuner.rewrite(trials=str(TRIALS), q_max="30", q_min="29")
    return tuner, ("--set", "launcher.parallel=1")


def gone(tuner, family=frozenset()):
    """Nothing is left, grace + 10 s after a fault."""

    def left():
        return {each for each in family if processes.is_living(each)} | (tuner.living() if tuner.has_trials(0) else set())

    until(lambda: not left(), lambda: str(left()), timeout_s=GONE_S)


@pytest.fixture(scope="class")
def two_nodes(ray_cluster):
    """Only `n0` and `n1` live, so that a study has both."""
    ray_cluster.kill("n2")
    yield
    ray_cluster.start("n2")


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("phase", PHASES)
class TestInEachPhase:
    def test_a_node_that_dies_is_replaced(self, short, phase):
        tuner, options = short
        running = tuner.start(*options)
        until(lambda: tuner.is_in(phase, running), timeout_s=120)
        tuner.cluster.kill("n1")
        tuner.cluster.start("n1")
        tuner.finished(running)
        gone(tuner)
        assert sum(trial.outcome == "interrupted" for trial in tuner.trials()) <= 1
        assert len(tuner.counted()) == TRIALS

    def test_a_tuner_that_is_killed_leaves_nothing_and_resumes(self, short, phase):
        tuner, options = short
        running = tuner.start(*options)
        until(lambda: tuner.is_in(phase, running), timeout_s=120)
        family = processes.descendants(running.pid)
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=30)
        gone(tuner, family)
        tuner.finished(tuner.start(*options))  # which needs both nodes
        assert len(tuner.counted()) == TRIALS


def test_a_study_waits_for_a_head_that_restarts(tuner):
    running = tuner.start("--set", "launcher.parallel=1")
    until(lambda: tuner.has_trials(2), timeout_s=120)
    tuner.cluster.kill("n0")
    tuner.cluster.restart()
    assert "waiting for nodes of the Ray cluster: " in tuner.finished(running)
    assert len(tuner.counted()) == study_laws.TRIALS
    gone(tuner)


@pytest.mark.nightly
def test_a_head_that_does_not_return_ends_the_tuner_and_the_study_resumes_on_the_next(short):
    tuner, options = short
    running = tuner.start(*options, "--set", "launcher.options.head_return_s=3")
    until(lambda: tuner.is_in("steps", running), timeout_s=120)
    tuner.cluster.kill("n0")
    try:
        said = tuner.finished(running, code=3)
        gone(tuner)
    finally:
        tuner.cluster.restart()
    assert f"the Ray cluster at {tuner.cluster.address} was lost, and did not return" in " ".join(said.split())
    tuner.finished(tuner.start(*options))
    assert len(tuner.counted()) == TRIALS


def one_node(cluster):
    cluster.kill("n1")
    cluster.start("n1")


def the_head(cluster):
    cluster.kill("n0")
    cluster.restart()


@pytest.mark.parametrize(
    ("lose", "policy"),
    [
        (one_node, ()),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((one_node, ("--policy", "proportional")), (the_head, ()))),
    ],
    ids=["a node", "a node under a policy", "the head"],
)
def test_a_run_goes_on_when_what_was_lost_is_back(ray_cluster, tmp_path, lose, policy):
    job = TRAIN_JOB.replace("devices_per_host = 2", "hosts = 2\ndevices_per_host = 1").replace("samples = 96", "samples = 4000")
    (tmp_path / "job.toml").write_text(job)
    ray = ("--set", "launcher.name=ray", "--set", f"launcher.options.address={ray_cluster.address}")
    words = [sys.executable, "-m", "oppa", "train", "job.toml", "dp=2,micro_batch=2", "--run", "R", "--json", *ray, *policy]
    pipe = subprocess.PIPE
    running = subprocess.Popen(words, cwd=tmp_path, env=ray_cluster.environment, stdout=pipe, stderr=pipe, text=True)
    until(lambda: running.poll() is not None or checkpoints(tmp_path / "R"), timeout_s=120)
    lose(ray_cluster)
    out, err = running.communicate(timeout=280)
    result = json.loads(out)
    assert (running.returncode, result["ending"], result["samples"]) == (0, "finished", 4000), err
    assert ledger.require_whole(ledger.standing(ledger.read(tmp_path / "R"))) == 4000
