"""The state of Slurm's queue, read from stub commands."""

import os
from pathlib import Path

import pytest

from oppa.cluster.scheduler import ForecastingScheduler, make_scheduler
from tests.cluster.spools import put

STUBS = {
    "squeue": 'case "$*" in *--me*) echo "7|oppa-elastic:mine";; *) echo "7|RUNNING|2|None"; echo "8|PENDING|3|(Resources)";; esac',
    "sinfo": 'echo "n1|alloc"; echo "n2|alloc"; echo "n3|idle"; echo "n6|idle"; echo "n7|idle"; echo "n7|idle"; echo "n8|down"',
    "scontrol": r'test "$3" = "n[6-8]" && printf "n6\nn7\nn8\n" || echo "$3"',
}


@pytest.fixture(autouse=True)
def _slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.parametrize(("exclude", "idle"), [("", 3), ("n7", 2), ("n[6-8]", 1), ("n1", 3)])
def test_a_node_that_is_idle_counts_once_unless_it_is_excluded(exclude: str, idle: int) -> None:
    options = {"exclude": exclude} if exclude else {}
    assert make_scheduler("slurm", options).snapshot().idle == idle


def test_nodes_that_slurm_plans_for_a_waiting_job_are_idle(tmp_path: Path) -> None:
    """Its backfill marks them until the job starts, so the job lacks only the rest."""
    stub(tmp_path, "sinfo", 'echo "n1|alloc"; echo "n2|plnd"; echo "n3|idle"; echo "n4|idle~"; echo "n5|drain"')
    assert make_scheduler("slurm", {}).snapshot().idle == 2


def test_the_queue_tells_elastic_jobs_from_those_that_wait_for_nodes() -> None:
    found = make_scheduler("slurm", {}).snapshot()
    assert found.holding("mine") == 2
    assert [job.id for job in found.waiting] == ["8"]


HETEROGENEOUS = """cat <<'END'
2+0|PENDING|1|(Resources)
3|PENDING|2|(Priority)
2+1|PENDING|3|(None)
4+0|PENDING|1|(Resources)
4+1|PENDING|1|(QOSMaxNodePerUserLimit)
5+0|COMPLETING|2|None
5+1|RUNNING|1|None
END"""


def test_components_of_a_heterogeneous_job_are_one_job(tmp_path: Path) -> None:
    """Slurm starts all of them at once, so the job waits for the sum of their nodes, and for every limit."""
    stub(tmp_path, "squeue", f'case "$*" in *--me*) ;; *) {HETEROGENEOUS}\n;; esac')
    found = make_scheduler("slurm", {}).snapshot()
    assert [(job.id, job.nodes) for job in found.waiting] == [("2", 4), ("3", 2)]
    assert [(job.id, job.limited) for job in found.jobs if job.pending and not job.for_nodes] == [("4", True)]
    assert [(job.id, job.nodes, job.completing) for job in found.jobs if not job.pending] == [("5", 2, True), ("5", 1, False)]
    assert [job.submission for job in found.others(())] == ["2", "3", "4", "5"]


def stub(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


SHARED = """cat <<'END'
n1|idle|batch*
n2|idle|batch*
n2|idle|short
n3|idle|fat
END"""


@pytest.mark.parametrize(
    ("options", "idle", "queues"),
    [
        ({}, 2, "batch,short"),
        ({"partition": "fat"}, 1, "fat"),
        ({"partition": "short"}, 1, "batch,short"),
        ({"partition": "batch,fat"}, 3, ""),
    ],
)
def test_partitions_that_share_nodes_share_a_queue(options: dict[str, str], idle: int, queues: str, tmp_path: Path) -> None:
    stub(tmp_path, "sinfo", SHARED)
    stub(tmp_path, "squeue", f'echo "$@" >> {tmp_path}/words')
    assert make_scheduler("slurm", options).snapshot().idle == idle
    words = (tmp_path / "words").read_text().splitlines()[0].split()
    assert "--all" in words and f"--partition={queues or 'batch,fat,short'}" in words


def test_defaults_that_users_set_for_squeue_hide_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path, "squeue", 'test -z "$SQUEUE_USERS$SQUEUE_STATES" && echo "8|PENDING|3|(Resources)"; exit 0')
    for name in ("SQUEUE_USERS", "SQUEUE_STATES"):
        monkeypatch.setenv(name, "me")
    assert [job.id for job in make_scheduler("slurm", {}).snapshot().waiting] == ["8"]


@pytest.mark.parametrize(("shown", "warns"), [("PrivateData = jobs,usage", True), ("PrivateData             = none", False)])
def test_a_cluster_that_hides_the_jobs_of_others_is_reported(
    shown: str, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stub(tmp_path, "scontrol", f'echo "{shown}"')
    scheduler = make_scheduler("slurm", {})
    for _ in range(2):
        scheduler.snapshot()
    assert len(caplog.records) == warns


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ('echo "sbatch: Job 7 to start at $(date +%Y-%m-%dT%H:%M:%S) using 3 processors on nodes n1 in partition batch" >&2', ""),
        (
            'echo "sbatch: Job 7 to start at 2999-01-01T00:00:00 using 3 processors" >&2',
            "Slurm expects to grant them at 2999-01-01 00:00:00",
        ),
        ('echo "sbatch: error: allocation failure: Requested node configuration is not available" >&2; exit 1', "is not available"),
        ("exit 0", ""),
    ],
)
def test_slurm_is_asked_whether_it_would_grant_further_hosts(body: str, answer: str, scales: Path, tmp_path: Path) -> None:
    stub(tmp_path, "sbatch", f'echo "$@" > {tmp_path}/words\n{body}')
    scheduler = make_scheduler("slurm", {"constraint": "fast"})
    assert isinstance(scheduler, ForecastingScheduler)
    found = scheduler.unavailable(put(scales), 3)
    words = (tmp_path / "words").read_text().split()
    assert {"--test-only", "--nodes=3", "--constraint=fast"} <= set(words)
    assert answer in found and bool(answer) is bool(found)
