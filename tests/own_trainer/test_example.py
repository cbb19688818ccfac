"""The example of an own trainer, under torchrun: DDP, FSDP2 and HSDP, resumed in mid-epoch on other ranks or in another layout."""

import dataclasses
import sys
from pathlib import Path

import pytest

from experiments.trainers.example_run import ExampleRun
from experiments.trainers.integrations import FSDP2
from experiments.trainers.reference import reference_losses
from experiments.trainers.stop_after import StopAfter
from oppa import api
from oppa.problem.job import load_job
from oppa.training.run import ledger

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH, SAMPLES = 16, 3201
CLOSE = 1e-4
"""Losses agree to the rounding of sums in another order; the largest difference seen is 3e-7."""


def train(folder, setting="", *words, devices=2, **options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{devices_per_host}"]
    command += [str(EXAMPLES / "own_trainer.py"), "--checkpoints", "{folder}/../../trained", "--width", str(WIDTH), *words]
    keys = [f"train.samples={SAMPLES}", f"cluster.devices_per_host={devices}", "limits.device_lock=false", "train.least_batch=1"]
    return api.train(EXAMPLES / "own_trainer.toml", setting, run=folder, settings=keys, command=command, **options)


def test_a_run_that_stops_in_mid_epoch_and_goes_on_with_another_dp_and_sharded_equals_one_process(tmp_path):
    run, words = tmp_path / "moved", ("--save-every", "640")
    alone = train(run, "micro_batch=8", *words, devices=1, callback=StopAfter(4))
    assert alone.outcome.ending.value == "stopped" and 0 < ledger.require_whole(alone.lines) < SAMPLES, alone.outcome.last
    sharded = train(run, "micro_batch=8,zero_stage=3", *words)
    assert sharded.finished and sharded.outcome.attempts == 1 and ledger.require_whole(sharded.lines) == SAMPLES, sharded.outcome.last
    steps = [line for line in ledger.standing(ledger.read(run)) if line["event"] == ledger.STEP]
    assert [line["loss"] for line in steps] == pytest.approx(reference_losses(steps, WIDTH), abs=CLOSE)
    # In the last step a rank has no sample.
    assert steps[-1]["samples"] == [SAMPLES - 1, SAMPLES]
    # Checkpoints come on the way.
    assert {"step-80", "step-100", "step-101"} <= {path.name for path in (run / "trained").iterdir()}
    assert (run / "checkpoints" / "step-101").exists()


@pytest.mark.nightly
def test_a_policy_changes_fsdp2_to_hsdp_and_the_losses_are_those_of_one_process(tmp_path):
    hsdp = dataclasses.replace(FSDP2, layouts=(("dp_replicate", 1), ("dp_replicate", 2)))
    waiting = (str(Path(__file__).with_name("misbehaving.py")), "nothing")  # its first attempt waits for oppa's request
    run = ExampleRun(hsdp, tmp_path / "run", "--late-start", samples=1280, ranks=4, wrapper=waiting)
    run.settings.append("space.parameters.zero_stage=[3]")
    result = run.trained(run.begin(0) + ",global_batch=32", table=run.table({(32, 0): 0.05, (64, 1): 0.045}), policy="stagewise")
    steps = [line for line in result.lines if line["event"] == ledger.STEP]
    assert ledger.require_whole(result.lines) == 1280 and result.outcome.attempts == 2
    replicas = [str(line["configuration"]).rpartition("_rep")[2] for line in steps]
    assert replicas == sorted(replicas) and set(replicas) == {"1", "2"}
    assert [line["loss"] for line in steps] == pytest.approx(hsdp.losses(steps), abs=CLOSE)


def test_the_example_job_is_read_and_its_launch_line_names_all_layouts():
    problem = load_job(EXAMPLES / "own_trainer.toml", settings=["cluster.devices_per_host=4"])
    words = {
        tuple(problem.launch_line(each).words({**each.to_dict(), "folder": "f"}, {}))[4:]
        for each in map(problem.candidates().configuration, range(len(problem.candidates())))
    }
    ddp = ("--micro-batch", "8")
    assert {ddp, (*ddp, "--shard"), (*ddp, "--shard", "--replicate", "2")} <= words and len(words) == 6
    assert len(load_job(EXAMPLES / "own_trainer.toml").candidates()) == 6  # on two devices HSDP would shard nothing
