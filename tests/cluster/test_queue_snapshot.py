"""The state of Slurm's queue, read from stub commands."""

import os
from pathlib import Path

import pytest

from oppa.cluster.scheduler import make_scheduler

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


def test_the_queue_tells_elastic_jobs_from_those_that_wait_for_nodes() -> None:
    found = make_scheduler("slurm", {}).snapshot()
    assert found.holding("mine") == 2
    assert [job.id for job in found.waiting] == ["8"]
