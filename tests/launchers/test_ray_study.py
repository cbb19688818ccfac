"""`oppa tune` and `oppa train` on a real Ray cluster: finished, killed, resumed, side by side, a node lost."""

import json
import os
import signal
import subprocess
import sys

import pytest

from oppa.study import Study
from oppa.trials import processes
from tests.cli.conftest import JOB as ALONE
from tests.launchers.slurm_cluster import until

pytestmark = [pytest.mark.slow, pytest.mark.ray]
JOB = ALONE.replace("devices_per_host = 2", "hosts = 2\ndevices_per_host = 1").replace("trials = 6", "trials = 8")


class Tuner:
    """`oppa tune` in a folder of its own, on this cluster."""

    def __init__(self, cluster, folder) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "job.toml").write_text(JOB)

    def rewrite(self, **replaced: str) -> None:
        """Other values in the job file."""
        text = (self.folder / "job.toml").read_text()
        for key, value in replaced.items():
            lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in text.splitlines()]
            text = "\n".join(lines)
        (self.folder / "job.toml").write_text(text)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start it."""
        ray = ("--set", "launcher.name=ray", "--set", f"launcher.options.address={self.cluster.address}")
        words = [sys.executable, "-m", "oppa", "tune", "job.toml", "--study", "S", "--designer", "random", *ray, *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=self.folder, env=self.cluster.environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *options: str, code: int = 0) -> tuple[str, str]:
        """Run it to its end."""
        tuner = self.start(*options)
        out, err = tuner.communicate(timeout=200)
        assert tuner.returncode == code, err
        return out, err

    def trials(self):
        with Study(self.folder / "S") as study:
            return study.trials()

    def has_trials(self, count: int) -> bool:
        return (self.folder / "S" / "study.db").exists() and len(self.trials()) >= count

    def living(self) -> set[processes.Process]:
        with Study(self.folder / "S") as study:
            return processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == study.uuid)

    def counted(self) -> list:
        return [trial for trial in self.trials() if trial.counts and trial.purpose == "search"]


@pytest.fixture
def tuner(ray_cluster, tmp_path):
    return Tuner(ray_cluster, tmp_path)


def test_a_study_of_two_nodes(tuner):
    out, _ = tuner.run("--json")
    assert json.loads(out)["best"]["configuration"]["micro_batch"] >= 1
    assert len(tuner.counted()) == 8
    until(lambda: not tuner.living())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_tuner_that_is_ended_leaves_no_process_and_resumes(tuner, number):
    running = tuner.start()
    until(lambda: tuner.has_trials(3), timeout_s=120)
    assert tuner.living()
    os.kill(running.pid, number)
    running.communicate(timeout=30)
    until(lambda: not tuner.living(), lambda: str(tuner.living()), timeout_s=15)
    before = {trial.id for trial in tuner.counted()}
    tuner.run()
    assert len(tuner.counted()) == 8
    assert before <= {trial.id for trial in tuner.counted()}


def test_nodes_of_another_size_are_refused_at_once(tuner):
    tuner.rewrite(hosts="4")
    _, err = tuner.run(code=3)
    assert "this job needs 4 nodes with 1 CPU each; the Ray cluster has 3" in err
    assert not (tuner.folder / "S").exists()


def test_trials_run_side_by_side_where_the_cluster_has_room(tuner):
    tuner.rewrite(hosts="1", devices_per_host="2", q_max="40", q_min="39")
    tuner.run()
    trials = [trial for trial in tuner.trials() if trial.purpose == "search"]
    assert len({trial.configuration for trial in trials}) == len(trials) == 8
    ends = [(trial.started_at, trial.started_at + trial.seconds) for trial in trials]
    assert any(start < other < end for start, end in ends for other, _ in ends)
    until(lambda: not tuner.living())


def test_a_node_that_is_lost_interrupts_a_trial_and_the_study_goes_on_with_another(tuner):
    tuner.rewrite(trials="5", q_max="60", q_min="59")
    running = tuner.start("--set", "launcher.parallel=1")
    until(lambda: tuner.has_trials(1), timeout_s=120)
    name = (set(_hosts(tuner)) - {"n0"}).pop()
    tuner.cluster.kill(name)
    try:
        _, err = running.communicate(timeout=200)
    finally:
        tuner.cluster.start(name)
    assert running.returncode == 0, err
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
        _, err = running.communicate(timeout=200)
    finally:
        tuner.cluster.kill("n3")
    assert running.returncode == 0, err
    assert "waiting for nodes of the Ray cluster: the cluster has 3 of 4 nodes with 1 CPU" in said


def _hosts(tuner) -> list[str]:
    """Names of the nodes that the study's trials ran on."""
    with Study(tuner.folder / "S") as study:
        return [host for trial in study.trials() for host in trial.hosts]
