"""A job that a person holds up in Slurm's queue is waited for, and the state is reported."""

import time

import pytest

from oppa.launchers import slurm as waiting_for_slurm
from oppa.launchers.slurm import wait_until_running
from tests.sampling import nightly

SOON_S, POLL_S = 2.0, 0.5
"""Seconds after which a job that Slurm will never start would be given up, and between two queries."""


@pytest.mark.parametrize(
    ("options", "before", "after", "reported"),
    [
        *nightly((["--hold"], [], ["release", "{job}"], "PENDING (JobHeldUser); `scontrol release {job}` lets it start")),
        ([], ["update", "partitionname=low", "state=down"], ["update", "partitionname=low", "state=up"], "PENDING (PartitionDown)"),
    ],
    ids=["held", "down"],
)
def test_a_job_that_somebody_holds_up_is_waited_for(options, before, after, reported, slurm, monkeypatch, caplog):
    monkeypatch.setattr(waiting_for_slurm, "NEVER_GRANTED_S", SOON_S)
    monkeypatch.setattr(waiting_for_slurm, "POLL_S", POLL_S)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    slurm.wait_until_idle()
    if before:
        slurm.run("scontrol", *before)
    job, began = slurm.submit("sleep 60", *options), time.monotonic()
    waiting = [[word.format(job=job) for word in after]]

    def on_tick() -> None:
        if waiting and time.monotonic() > began + SOON_S + 3 * POLL_S:
            slurm.run("scontrol", *waiting.pop())

    wait_until_running(job, on_tick)
    assert not waiting and reported.format(job=job) in caplog.text
