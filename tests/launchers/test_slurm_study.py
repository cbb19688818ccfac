"""`oppa tune` runs on a real Slurm, inside an allocation or outside it, and is cancelled, requeued, or too large."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oppa.problem.job import load_job
from tests.launchers.slurm_cluster import until
from tests.launchers.study_laws import MEETING, TRIALS, StudyLaws, Tuner
from tests.sampling import nightly

TWO_NODES = ("--nodes=2", "--ntasks-per-node=2")


class SlurmTuner(Tuner):
    """Runs `oppa tune` on this Slurm."""

    devices_per_host = 2

    def __init__(self, slurm, folder: Path) -> None:
        super().__init__(folder)
        self.slurm = slurm

    def line(self, *options: object) -> str:
        words = [sys.executable, "-m", "oppa", "tune", "job.toml", "--study", "S", "--designer", "random", *map(str, options)]
        return f"cd {shlex.quote(str(self.folder))}; {shlex.join(words)}"

    def start(self, *options: str) -> str:
        """Submit it as a batch job."""
        return self.slurm.submit(f"{self.line(*options)}; echo exit code $?", *TWO_NODES)

    def finished(self, job: str, code: int = 0) -> str:
        until(lambda: "exit code" in self.slurm.output(job), lambda: self.slurm.output(job), timeout_s=120)
        said = self.slurm.output(job)
        assert said.rstrip().endswith(f"exit code {code}"), said
        return said

    def run(self, *options: object, code: int = 0):
        """Run it on the login node."""
        done = self.slurm.run("sh", "-c", self.line(*options), check=False)
        assert done.returncode == code, done.stderr
        return done


@pytest.fixture
def tuner(slurm, tmp_path):
    return SlurmTuner(slurm, tmp_path)


@pytest.fixture(params=[*nightly("cancelled"), "killed"])
def end(request, tuner):
    """A job that is cancelled, or whose tuner is killed."""

    def do(job):
        if request.param == "cancelled":
            tuner.slurm.cancel(job)
        else:
            tuner.slurm.run("scancel", "--signal=KILL", "--batch", job)

    return do


class TestOnSlurm(StudyLaws):
    """Checks the laws of a study on Slurm."""


@pytest.mark.parametrize(
    "take_away",
    [
        lambda slurm, job: slurm.run("scontrol", "requeue", job),
        *nightly(lambda slurm, job: slurm.submit("sleep 1", "--partition=high", "--nodes=2", "--exclusive")),
    ],
    ids=["requeued", "preempted"],
)
def test_a_tuner_that_is_sent_back_to_the_queue_goes_on(tuner, take_away):
    job = tuner.start()
    until(lambda: tuner.has_trials(3), lambda: tuner.slurm.output(job))
    take_away(tuner.slurm, job)
    until(
        lambda: tuner.slurm.job(job)["Restarts"] == "1" and "exit code 0" in tuner.slurm.output(job),
        lambda: tuner.slurm.output(job),
        timeout_s=120,
    )
    assert len(tuner.counted()) == TRIALS


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"hosts": "4"}, "this job needs 4 hosts; Slurm's job {job} has 2"),
        ({"device": '"H100"', "memory_limit": '"80 GiB"'}, "this job needs 2 CUDA devices on each host; Slurm's job {job} has 0"),
    ],
    ids=["hosts", "GPUs"],
)
def test_what_an_allocation_does_not_have_is_an_error_at_once(tuner, cluster, words):
    tuner.rewrite(**cluster)
    job = tuner.start()
    assert words.format(job=job) in tuner.finished(job, code=3)
    assert not (tuner.folder / "S").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set=launcher.options.nodes=9",), "Requested node configuration is not available"),
        (("--set=launcher.options.partition=nowhere",), "nvalid partition"),
        (("--set=launcher.options.partition=high", "--set=launcher.options.time=20"), "can never start: PartitionTimeLimit"),
    ],
    ids=["nodes", "partition", "time"],
)
def test_what_slurm_would_never_grant_is_an_error_at_once(tuner, options, words):
    began = time.monotonic()
    assert words in tuner.run("--set=launcher.name=slurm", *options, code=3).stderr
    assert time.monotonic() - began < 20
    assert not tuner.slurm.jobs()


@pytest.mark.slow
def test_trials_run_side_by_side_on_a_node_whose_gpus_they_fit_twice(tuner):
    device = {"device": '"H100"', "memory_limit": '"80 GiB"'}
    tuner.rewrite(hosts="1", devices_per_host="2", name=f'"{MEETING}"', trial_time='"120 s"', trials="4", **device)
    line = f"{tuner.line('--set=launcher.parallel=2')}; echo exit code $?"
    tuner.finished(tuner.slurm.submit(line, "--nodes=1", "--gpus-per-node=4", "--cpus-per-task=8"))
    trials = [trial for trial in tuner.trials() if trial.purpose == "search"]
    assert {trial.outcome for trial in trials} <= {"completed", "terminated_early"} and len({trial.hosts for trial in trials}) == 1
    seen = {tuple(json.loads(path.read_text())) for path in tuner.folder.glob("S/trials/*/devices.json")}
    assert sorted(seen) == [("0,1",), ("2,3",)]


def test_from_a_login_node_it_asks_once_for_hosts_waits_for_them_if_they_are_taken_away_and_gives_them_back(tuner):
    tuner.rewrite(trials="3", q_max="20")
    before = tuner.slurm.holding()
    login = subprocess.Popen(
        ["sh", "-c", tuner.line("--set=launcher.name=slurm", "--json")],
        env=tuner.slurm.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: tuner.has_trials(1), timeout_s=60)
    (held,) = tuner.slurm.jobs()
    tuner.slurm.run("scontrol", "requeue", held)
    found, said = login.communicate(timeout=120)
    assert login.returncode == 0, said
    assert json.loads(found)["best"]["configuration"]["micro_batch"] >= 1
    # A trial is interrupted at most, and is made up for.
    assert f"waiting for Slurm's job {held}" in said
    interrupted = [trial for trial in tuner.trials() if trial.outcome == "interrupted"]
    assert len(interrupted) <= 1
    assert all(f"Slurm's job {held} is" in trial.cause for trial in interrupted)
    assert len(tuner.counted()) == 3
    # One job has held the hosts, and is gone.
    assert tuner.slurm.holding() - before == {held}
    until(lambda: not tuner.slurm.jobs())


def test_a_job_file_is_written_for_the_hosts_of_an_allocation(tuner):
    init = f"cd {shlex.quote(str(tuner.folder))}; {sys.executable} -m oppa init found.toml; echo exit code $?"
    tuner.finished(tuner.slurm.submit(init, *TWO_NODES))
    cluster = load_job(tuner.folder / "found.toml").cluster
    assert cluster.hosts == 2
    assert cluster.inter_host.bandwidth_bytes_per_s > 1e6
    assert 0 < cluster.inter_host.latency_s < 0.1


def test_a_winner_on_several_hosts_starts_with_one_srun(tuner):
    tuner.rewrite(name='"torch"')
    export = f"cd {shlex.quote(str(tuner.folder))}; {sys.executable} -m oppa export job.toml dp=4,micro_batch=4 --to torchrun --out best"
    start = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=2 sh best/run.sh 3; echo exit code $?"
    tuner.finished(tuner.slurm.submit(f"{export} && {start}", *TWO_NODES))
    (steps,) = (path.read_text().splitlines() for path in tuner.folder.glob("best/runs/*/measurements.jsonl"))
    assert [json.loads(line)["step"] for line in steps] == [0, 1, 2]
