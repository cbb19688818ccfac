"""`oppa tune` on a real Slurm: inside an allocation, beside it, cancelled, requeued, too large."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oppa.problem.job import load_job
from oppa.study import Study
from oppa.trials import processes
from tests.cli.conftest import JOB as ALONE
from tests.launchers.slurm_cluster import until
from tests.sampling import nightly

JOB = ALONE.replace("devices_per_host = 2", "hosts = 2\ndevices_per_host = 2").replace("trials = 6", "trials = 8")
TWO_NODES = ("--nodes=2", "--ntasks-per-node=2")


class Tuner:
    """`oppa tune` in a folder of its own, on this Slurm."""

    def __init__(self, slurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        (folder / "job.toml").write_text(JOB)

    def rewrite(self, **replaced: str) -> None:
        """Other values in the job file."""
        text = (self.folder / "job.toml").read_text()
        for key, value in replaced.items():
            lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in text.splitlines()]
            text = "\n".join(lines)
        (self.folder / "job.toml").write_text(text)

    def line(self, *options: object) -> str:
        words = [sys.executable, "-m", "oppa", "tune", "job.toml", "--study", "S", "--designer", "random", *map(str, options)]
        return f"cd {shlex.quote(str(self.folder))}; {shlex.join(words)}"

    def submit(self, *options: object, slurm=TWO_NODES) -> str:
        """As a batch job."""
        return self.slurm.submit(f"{self.line(*options)}; echo exit code $?", *slurm)

    def finished(self, job: str, code: int = 0) -> str:
        """What the job printed, once the tuner has ended with this exit code."""
        until(lambda: "exit code" in self.slurm.output(job), lambda: self.slurm.output(job), timeout_s=120)
        said = self.slurm.output(job)
        assert said.rstrip().endswith(f"exit code {code}"), said
        return said

    def run(self, *options: object, code: int = 0):
        """On the login node."""
        done = self.slurm.run("sh", "-c", self.line(*options), check=False)
        assert done.returncode == code, done.stderr
        return done

    def trials(self):
        with Study(self.folder / "S") as study:
            return study.trials()

    def has_trials(self, count: int) -> bool:
        return (self.folder / "S" / "study.db").exists() and len(self.trials()) >= count

    def living(self) -> set[processes.Process]:
        """Of this study, on all nodes."""
        with Study(self.folder / "S") as study:
            return processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == study.uuid)


@pytest.fixture
def tuner(slurm, tmp_path):
    return Tuner(slurm, tmp_path)


def test_a_study_of_two_nodes_with_two_ranks_each_inside_an_allocation(tuner):
    said = tuner.finished(tuner.submit("--json"))
    trials = tuner.trials()
    assert sum(trial.purpose == "search" for trial in trials) == 8
    assert {trial.outcome for trial in trials} <= {"completed", "terminated_early", "out_of_memory"}
    assert "winner" in said
    until(lambda: not tuner.living())


def test_cancelled_in_the_middle_it_leaves_no_process_and_resumes(tuner):
    job = tuner.submit()
    until(lambda: tuner.has_trials(3), lambda: tuner.slurm.output(job))
    assert tuner.living()
    tuner.slurm.cancel(job)
    until(lambda: not tuner.living())
    before = {trial.id for trial in tuner.trials() if trial.counts}
    tuner.finished(tuner.submit())
    after = [trial for trial in tuner.trials() if trial.counts and trial.purpose == "search"]
    assert len(after) == 8
    assert before <= {trial.id for trial in tuner.trials() if trial.counts}


def test_a_killed_tuner_leaves_no_process(tuner):
    job = tuner.submit()
    until(lambda: tuner.has_trials(2), lambda: tuner.slurm.output(job))
    tagged = processes.tagged(lambda environment: environment.get("SLURM_JOB_ID") == job)
    tuner.slurm.run("scancel", "--signal=KILL", "--batch", job)
    assert tagged
    until(lambda: not tuner.living())


@pytest.mark.parametrize(
    "take_away",
    [
        lambda slurm, job: slurm.run("scontrol", "requeue", job),
        *nightly(lambda slurm, job: slurm.submit("sleep 1", "--partition=high", "--nodes=2", "--exclusive")),
    ],
    ids=["requeued", "preempted"],
)
def test_a_tuner_that_is_sent_back_to_the_queue_goes_on(tuner, take_away):
    job = tuner.submit()
    until(lambda: tuner.has_trials(3), lambda: tuner.slurm.output(job))
    take_away(tuner.slurm, job)
    until(
        lambda: tuner.slurm.job(job)["Restarts"] == "1" and "exit code 0" in tuner.slurm.output(job),
        lambda: tuner.slurm.output(job),
        timeout_s=120,
    )
    assert sum(trial.counts and trial.purpose == "search" for trial in tuner.trials()) == 8


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
    job = tuner.submit()
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


def test_from_a_login_node_it_asks_for_hosts_and_gives_them_back(tuner):
    done = tuner.run("--set=launcher.name=slurm", "--json")
    assert json.loads(done.stdout)["best"]["configuration"]["micro_batch"] >= 1
    assert sum(trial.purpose == "search" for trial in tuner.trials()) == 8
    until(lambda: not tuner.slurm.jobs())


def test_hosts_that_are_taken_away_interrupt_a_trial_and_are_waited_for(tuner):
    tuner.rewrite(trials="5", q_max="60")
    login = subprocess.Popen(
        ["sh", "-c", tuner.line("--set=launcher.name=slurm")],
        env=tuner.slurm.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: tuner.has_trials(1), timeout_s=60)
    (held,) = tuner.slurm.jobs()
    tuner.slurm.run("scontrol", "requeue", held)
    _, said = login.communicate(timeout=120)
    assert login.returncode == 0, said
    assert f"waiting for Slurm's job {held}" in said
    interrupted = [trial for trial in tuner.trials() if trial.outcome == "interrupted"]
    assert len(interrupted) <= 1
    assert all(f"Slurm's job {held} is" in trial.cause for trial in interrupted)
    assert sum(trial.counts and trial.purpose == "search" for trial in tuner.trials()) == 5


def test_an_allocation_that_is_larger_than_the_job_runs_trials_side_by_side(tuner):
    tuner.rewrite(hosts="1", q_max="40", q_min="39")
    tuner.finished(tuner.submit())
    trials = [trial for trial in tuner.trials() if trial.purpose == "search"]
    assert len({trial.configuration for trial in trials}) == len(trials) == 8
    ends = [(trial.started_at, trial.started_at + trial.seconds) for trial in trials]
    assert any(start < other < end for start, end in ends for other, _ in ends)
    assert (tuner.folder / "S" / "tuner1.log").exists()
    until(lambda: not tuner.living())


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
