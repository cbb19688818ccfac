"""A run goes on as if nothing had happened, whatever changes on the way; and every sample is seen once, in order."""

import contextlib
import dataclasses
import json
import math
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from oppa.errors import CheckpointError, TrainingError
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.training.data.batches import Batch, Corpus
from oppa.training.replica import Replica
from oppa.training.run import ledger
from oppa.training.run.ledger import Line
from oppa.training.run.run_folder import CHECKPOINTS, RunSpec, checkpoint_of, checkpoints
from oppa.training.run.step import TrainingStep
from oppa.training.run.supervision import Ending
from tests.sampling import sampled
from tests.training.checkpoints import resumed
from tests.training.data import source
from tests.training.families import MIXTURE, SHORT, configured
from tests.training.full_disk import full
from tests.training.layouts import same
from tests.training.runs import CLOSE, Heard, Runs, attempt, events, losses, steps_of

pytestmark = pytest.mark.slow

BATCHES = ((24, 16), (56, 4), (72, 24))
"""First sample, and global batch from it on."""


def planned(layouts: list[Configuration]) -> list[tuple[int, Configuration]]:
    """Another batch size each time, and another layout if there is one left."""
    return [
        (samples, dataclasses.replace(layouts[min(number, len(layouts) - 1)], global_batch=batch))
        for number, (samples, batch) in enumerate(BATCHES, start=1)
    ]


def checksum_of(model: Model) -> ledger.Checksums:
    data = source(model)

    def checksum(numbers: range) -> int:
        return zlib.crc32(data.samples(numbers).inputs.contiguous().view(-1).view(torch.uint8).numpy().data)

    return checksum


@pytest.fixture(scope="module")
def alone(made: Runs) -> list[Line]:
    """Return the ledger of one rank that trains these batches, with no layout to change."""
    return made.trained(configured(micro_batch=1), *planned([configured(micro_batch=1)]))


CHAINS = {
    "dp4, pp4, tp2 pp2, dp2 zero 3": [
        configured(dp=4, micro_batch=1),
        configured(pp=4, micro_batch=1),
        configured(tp=2, pp=2, micro_batch=1),
        configured(dp=2, tp=2, zero_stage=3, micro_batch=1),
    ],
    "interleaved, zero 1, zero 2, zb-v": [
        configured(pp=2, dp=2, model_chunks=2, schedule="interleaved", micro_batch=1),
        configured(dp=4, zero_stage=1, micro_batch=1),
        configured(dp=2, pp=2, zero_stage=2, micro_batch=1),
        configured(dp=2, pp=2, schedule="zb-v", model_chunks=2, micro_batch=1),
    ],
    "one pipeline, batch sizes alone": [configured(pp=4, micro_batch=1)],
    "zero 3, batch sizes alone": [configured(dp=4, zero_stage=3, micro_batch=1)],
}


SOME_CHAINS = [pytest.param(chain, id=name, marks=() if "interleaved" in name else pytest.mark.nightly) for name, chain in CHAINS.items()]


@pytest.mark.parametrize("chain", SOME_CHAINS)
def test_losses_are_those_of_one_rank_through_any_chain_of_layouts(chain: list[Configuration], made: Runs, alone: list[Line]) -> None:
    steps = made.trained(chain[0], *planned(chain))
    assert [step["global_batch"] for step in steps] == [8] * 3 + [16] * 2 + [4] * 4 + [24]
    assert losses(steps) == pytest.approx(losses(alone), abs=CLOSE)
    assert [step["learning_rate"] for step in steps] == [step["learning_rate"] for step in alone]


def test_the_noise_scale_goes_on_through_a_change_of_layout(made: Runs) -> None:
    plan = ((48, configured(tp=2, pp=2)),)
    changed, kept = (made.trained(configured(dp=4, micro_batch=1), *each, samples=56) for each in (plan, ()))
    assert changed[5]["noise"] == pytest.approx(kept[5]["noise"], rel=1e-4) and changed[5]["signal"] != changed[6]["signal"]
    forgotten = 0.05 / (1 - 0.95**7)  # what one of seven steps counts for, had the others been forgotten it would count for all
    assert abs(changed[6]["signal"] / changed[5]["signal"] - 1) < 10 * forgotten


@pytest.mark.nightly  # the test of token files goes through the same changes, and that of a roll back has these samples
def test_the_ledger_proves_what_was_trained_on(made: Runs) -> None:
    folder = made.new(configured(dp=2, pp=2), (40, configured(dp=4, global_batch=16)), (72, configured(dp=1, tp=4)))
    made.train(folder)
    assert ledger.require_whole(ledger.standing(ledger.read(folder)), checksum_of(SHORT)) == 96


def test_token_files_are_read_once_through_changes_of_batch_and_layout(made: Runs, tmp_path: Path) -> None:
    tokens = str(tmp_path / "train.bin")
    np.random.default_rng(0).integers(0, SHORT.vocab, 60 * SHORT.seq_len + 1).astype(np.uint16).tofile(tokens)
    folder = made.new(configured(dp=2, pp=2), (40, configured(dp=4, global_batch=16)), (72, configured(dp=1, tp=4)), tokens=tokens)
    assert made.train(folder).ending is Ending.FINISHED
    corpus = Corpus.of_tokens(Training(tokens=tokens), SHORT)
    assert corpus.size == 60, "96 samples are more than an epoch"

    def checksum(numbers: range) -> int:
        return zlib.crc32(corpus.samples(numbers).inputs.contiguous().view(-1).view(torch.uint8).numpy().data)

    assert ledger.require_whole(ledger.standing(ledger.read(folder)), checksum) == 96


def test_a_mixture_changes_its_batch_size_in_flight(made: Runs) -> None:
    plan = ((48, configured(global_batch=16)),)
    model = dataclasses.replace(MIXTURE, layers=4)
    one = made.trained(configured(), *plan, model=model, samples=64)
    several = made.trained(configured(dp=2, pp=2), (48, configured(dp=2, pp=2, global_batch=16)), model=model, samples=64)
    # A mixture balances its experts over a micro-batch, so those must be the same: 2 sequences in both.
    assert losses(several) == pytest.approx(losses(one), abs=CLOSE)


def test_a_configuration_that_cannot_run_is_refused_and_training_goes_on(made: Runs) -> None:
    folder = made.new(configured(dp=2, pp=2), (32, configured(dp=2, pp=2, micro_batch=4)), (64, configured(dp=4)))
    assert made.train(folder).ending is Ending.FINISHED
    (refused,) = events(folder, "refused")
    assert refused["samples"] == 32 and "1f1b" in refused["failure"]
    assert [line["after"]["dp"] for line in events(folder, "changed")] == [4]


ROLLED_BACK_TO = [configured(dp=2, pp=2, micro_batch=1), configured(dp=4, micro_batch=1, global_batch=4)]


@pytest.mark.parametrize("after", sampled(ROLLED_BACK_TO, lambda _: {"somewhere"}), ids=lambda after: after.id)
def test_a_roll_back_takes_weights_back_and_samples_on(after: Configuration, made: Runs) -> None:
    spell = {"rank": 0, "step": 7, "deed": "roll_back", "before_step": 5, "configuration": after.to_dict()}
    folder = made.new(configured(dp=2, pp=2, micro_batch=1), spell=spell, checkpoint_s=1e-6, keep=20)
    assert made.train(folder).ending is Ending.FINISHED
    (back,) = events(folder, ledger.ROLLED_BACK)
    assert (back["step"], back["checkpoint"], back["after"]) == (8, "step-5", after.to_dict())
    assert ledger.require_whole(ledger.standing(ledger.read(folder)), checksum_of(SHORT)) == 96
    at = {steps: resumed(checkpoint_of(folder, steps), SHORT, configured())[0] for steps in (5, 7, 8)}
    assert same(at[8], at[5]) and not same(at[8], at[7])


def test_a_roll_back_without_a_checkpoint_is_reported_and_training_goes_on(made: Runs) -> None:
    spell = {"rank": 0, "step": 7, "deed": "roll_back", "before_step": 5, "configuration": configured(dp=4).to_dict()}
    folder = made.new(configured(dp=4), spell=spell)
    assert made.train(folder).ending is Ending.FINISHED
    (lacking,) = events(folder, "not_rolled_back")
    assert "step 5" in lacking["failure"] and not events(folder, ledger.ROLLED_BACK)


def test_a_run_that_is_stopped_goes_on_where_it_was(made: Runs, alone: list[Line]) -> None:
    folder = made.new(configured(dp=2, pp=2, micro_batch=1), *planned([configured(dp=2, pp=2, micro_batch=1)]))
    assert made.train(folder, Heard(stop_behind=4)).ending is Ending.STOPPED
    done = len(steps_of(folder))
    assert 4 <= done < 10 and checkpoints(folder)[0].name == f"step-{done}"
    assert made.train(folder).ending is Ending.FINISHED
    assert losses(steps_of(folder)) == pytest.approx(losses(alone), abs=CLOSE)
    assert ledger.require_whole(ledger.standing(ledger.read(folder))) == 96


def test_a_run_goes_on_with_other_devices(made: Runs, alone: list[Line]) -> None:
    folder = made.new(configured(dp=2, pp=2, micro_batch=1), samples=24)
    made.train(folder, Heard(stop_behind=1))
    run = RunSpec.read(folder)
    cluster = dataclasses.replace(run.problem.cluster, devices_per_host=2)
    smaller = dataclasses.replace(
        run, configuration=configured(tp=2, micro_batch=1), problem=dataclasses.replace(run.problem, cluster=cluster)
    )
    smaller.write(folder)
    assert made.train(folder).ending is Ending.FINISHED
    assert losses(steps_of(folder)) == pytest.approx(losses(alone)[:3], abs=CLOSE)


def test_only_the_newest_checkpoints_stay(made: Runs) -> None:
    folder = made.new(configured(), checkpoint_s=1e-6, keep=3)
    made.train(folder)
    assert [path.name for path in checkpoints(folder)] == ["step-12", "step-11", "step-10"]


def test_gradients_that_are_no_numbers_change_no_weight(made: Runs) -> None:
    clean = made.trained(configured(dp=2, pp=2), samples=48)
    steps = made.trained(configured(dp=2, pp=2), samples=48, spell={"rank": 3, "step": 2, "deed": "poison"})
    assert [step["updated"] for step in steps] == [True, True, False, True, True, True]
    assert [step["health"] for step in steps][2] == "not_finite" and steps[3]["health"] != "not_finite"
    assert losses(steps)[:3] == losses(clean)[:3], "the loss of the poisoned step is that of its weights"
    assert losses(steps)[3] != losses(clean)[3] and losses(steps)[5] < losses(steps)[3], "and training goes on"
    assert steps[2]["signal"] == steps[1]["signal"], "it tells nothing of the noise"


def test_training_ends_where_gradients_stay_without_numbers(made: Runs) -> None:
    folder = made.new(configured(dp=2), learning_rate=1e30, samples=400)
    outcome = made.train(folder)
    assert outcome.ending is Ending.FAILED and outcome.attempts == 3
    assert "10 steps in a row" in outcome.last.cause and "learning rate" not in outcome.last.cause
    assert not checkpoints(folder), "weights that are no use are not kept"


@pytest.fixture(scope="module")
def undisturbed(made: Runs) -> list[Line]:
    return made.trained(configured(dp=2, pp=2), (48, configured(tp=2, dp=2, zero_stage=1)))


PHASES = [("stage", 3), ("release", 0), ("regroup", 3), ("rebuild", 0), ("load", 2)]


@pytest.mark.faults
@pytest.mark.parametrize(("phase", "rank"), sampled(PHASES, lambda *_: {"some phase"}))
def test_a_rank_that_dies_in_a_phase_of_resharding_costs_time_and_nothing_else(
    phase: str, rank: int, made: Runs, undisturbed: list[Line]
) -> None:
    spell = {"rank": rank, "phase": phase, "deed": "die"}
    folder, heard = made.new(configured(dp=2, pp=2), (48, configured(tp=2, dp=2, zero_stage=1)), spell=spell, checkpoint_s=1e-6), Heard()
    outcome = made.train(folder, heard)
    assert outcome.ending is Ending.FINISHED and outcome.attempts == 2
    assert [failure.rank for failure in heard.failures] == [rank]
    assert [line["checkpoint"] for line in events(folder, "started")] == [None, "step-5"]
    assert losses(steps_of(folder)) == pytest.approx(losses(undisturbed), abs=CLOSE)
    assert ledger.require_whole(ledger.standing(ledger.read(folder))) == 96


@pytest.mark.faults
def test_a_layout_that_one_rank_cannot_build_is_undone_on_all(made: Runs, undisturbed: list[Line]) -> None:
    spell = {"rank": 2, "phase": "rebuild", "deed": "allocate"}
    folder = made.new(configured(dp=2, pp=2), (48, configured(tp=2, dp=2, zero_stage=1)), spell=spell)
    outcome = made.train(folder)
    assert outcome.ending is Ending.FINISHED and outcome.attempts == 1
    (undone,) = events(folder, "undone")
    assert undone["failure"].startswith("rank 2 cannot build") and "allocate memory" in undone["failure"]
    assert {step["configuration"] for step in steps_of(folder)} == {configured(dp=2, pp=2).id}
    assert losses(steps_of(folder)) == pytest.approx(losses(undisturbed), abs=CLOSE)


@pytest.mark.faults
def test_a_rank_that_dies_between_two_steps_costs_what_was_not_saved(made: Runs) -> None:
    clean = made.trained(configured(dp=2, pp=2))
    folder = made.new(configured(dp=2, pp=2), spell={"rank": 0, "step": 7, "deed": "die"}, checkpoint_s=1e-6)
    assert made.train(folder).attempts == 2
    assert losses(steps_of(folder)) == losses(clean), "to the last bit"


@pytest.fixture(scope="module")
def stopped(made: Runs) -> Path:
    """A run that was stopped, with two checkpoints."""
    folder = made.new(configured(dp=2, pp=2), checkpoint_s=1e-6)
    made.train(folder, Heard(stop_behind=3))
    assert len(checkpoints(folder)) == 2
    return folder


@pytest.fixture
def saved(made: Runs, stopped: Path) -> Path:
    return made.copy(stopped)


def cut(checkpoint: Path) -> None:
    """Cut off a file, as a full disk or an interrupted copy leaves it."""
    file = next(checkpoint.glob("rank-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])


def flip(checkpoint: Path) -> None:
    """One bit of a weight."""
    file = next(checkpoint.glob("rank-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, pytest.param(flip, marks=pytest.mark.nightly)])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_taken(damage, saved: Path, made: Runs) -> None:  # type: ignore[no-untyped-def]
    newest, before = checkpoints(saved)
    damage(newest)
    outcome = made.train(saved)
    assert outcome.ending is Ending.FINISHED
    assert events(saved, "started")[-1]["checkpoint"] == before.name
    assert f"{newest.name}" in (outcome.folder / "stderr.log").read_text()
    assert losses(steps_of(saved)) == losses(made.trained(configured(dp=2, pp=2))), "to the last bit"


def test_without_a_whole_checkpoint_nothing_begins_again_unasked(saved: Path, made: Runs) -> None:
    before = steps_of(saved)
    for checkpoint in checkpoints(saved):
        cut(checkpoint)
    outcome = made.train(saved)
    assert outcome.ending is Ending.FAILED and "is damaged" in outcome.last.cause
    assert steps_of(saved) == before


def drafts(folder: Path) -> list[Path]:
    return list((folder / CHECKPOINTS).glob(".*"))


def test_a_run_trains_on_while_a_full_disk_refuses_checkpoints_and_saves_once_it_has_space(made: Runs) -> None:
    folder = made.new(configured(), checkpoint_s=0.0)
    with contextlib.ExitStack() as disk:

        def on_step(step: TrainingStep) -> None:
            if step.number == 2:
                disk.enter_context(full(50_000))
            if step.number == 6:
                disk.close()
            if step.number in (4, 6):
                assert [path.name for path in checkpoints(folder)] == ["step-2", "step-1"] and not drafts(folder)

        attempt(folder, on_step)
    assert [path.name for path in checkpoints(folder)] == ["step-12", "step-11"]
    unsaved = events(folder, ledger.UNSAVED)
    assert [line["step"] for line in unsaved] == [3, 4, 5, 6] and all("cannot write" in line["failure"] for line in unsaved)


def test_a_run_whose_last_state_cannot_be_saved_fails(made: Runs) -> None:
    folder = made.new(configured())
    with full(50_000), pytest.raises(CheckpointError, match=r"rank 0 cannot write `.*step-12`: "):
        attempt(folder)
    assert not checkpoints(folder) and not drafts(folder)


def padded(folder: Path) -> int:
    """Make a ledger larger than the files of a checkpoint, so that a full disk can refuse the ledger alone; return its size."""
    (folder / ledger.FILE).write_text(json.dumps({"event": ledger.UNUSABLE, "step": 0, "failure": "-" * 4_000_000}) + "\n")
    return ledger.size(folder)


def test_a_checkpoint_counts_as_saved_while_a_full_disk_refuses_the_ledger(made: Runs) -> None:
    folder = made.new(configured(), checkpoint_s=0.0)
    size_bytes = padded(folder)
    with contextlib.ExitStack() as disk:

        def on_step(step: TrainingStep) -> None:
            if step.number == 5:
                disk.enter_context(full(size_bytes))
            if step.number == 8:
                disk.close()

        attempt(folder, on_step)
    assert [line["step"] for line in events(folder, ledger.SAVED)] == [*range(1, 13)] and not events(folder, ledger.UNSAVED)


def test_a_state_that_is_saved_already_is_not_saved_again_because_the_ledger_was_refused(made: Runs) -> None:
    folder = made.new(configured(), checkpoint_s=0.0)
    size_bytes = padded(folder)
    with contextlib.ExitStack() as disk, pytest.raises(OSError, match="File too large") as refusal:
        attempt(folder, lambda step: disk.enter_context(full(size_bytes)) if step.number == 11 else None)
    assert isinstance(refusal.value.__context__, OSError), "not the error of a checkpoint that exists already"
    assert checkpoints(folder)[0].name == "step-12"


def test_a_damaged_checkpoint_of_the_last_step_is_replaced(made: Runs) -> None:
    folder = made.new(configured(), checkpoint_s=0.0)
    attempt(folder)
    whole = checkpoints(folder)
    left = whole[0].with_name(".step-9.partial")  # by ranks that were killed
    left.mkdir()
    cut(whole[0])
    attempt(folder)
    assert checkpoints(folder) == whole and not left.exists()
    assert resumed(whole[0], SHORT, configured())
    (unusable,) = events(folder, ledger.UNUSABLE)
    assert "is damaged" in unusable["failure"] and Path(unusable["place"]).name == "step-12.unusable"
    begun = ledger.size(folder)
    attempt(folder)
    assert [line["event"] for line in ledger.lines(folder, begin=begun)] == [ledger.STARTED, ledger.ENDED], "nothing was left to do"


@pytest.mark.parametrize("every", [0, 4])
def test_clipping_finds_gradients_that_are_not_finite_in_steps_that_are_not_measured(
    every: int, made: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulate, count = Replica.accumulate, 0

    def spoilt(self: Replica, batch: Batch) -> torch.Tensor | None:
        nonlocal count
        loss, count = accumulate(self, batch), count + 1
        if count > 3:
            next(each for stage in self.stages for each in stage.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]
        return loss

    monkeypatch.setattr(Replica, "accumulate", spoilt)
    folder = made.new(configured(), clipping=1.0, statistics_every=every, samples=800)
    with pytest.raises(TrainingError, match="for 10 steps in a row, the last of them step 12"):
        attempt(folder)
    assert [step["updated"] for step in steps_of(folder)] == [True] * 3 + [False] * 10
