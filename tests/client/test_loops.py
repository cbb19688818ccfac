"""A loop around Accelerate or Lightning follows the plan of a run, and trains as a plain loop on the same batches."""

import json

import pytest
import torch
from oppa_client import ContractError, run_files
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from tests.client import loop_program
from tests.client.by_hand import TOTAL, batches, full_batches, order, rate
from tests.client.loop_by_hand import require_same
from tests.own_trainer.folders import reported, terms

CHANGES = {2: (12, 2), 4: (5, 2), 7: (6, 3)}
"""A larger batch, one that no micro-batch divides, and another micro-batch."""
LEAD = {"accelerate": 0, "lightning": 1}
"""Steps after which a plan begins that was asked for."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("library", ["accelerate", "lightning"]),
    # Lightning's own: about the machine, and from an old call of PyTorch.
    pytest.mark.filterwarnings("ignore:The `srun` command", "ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec"),
]


def test_the_batch_changes_up_down_and_not_dividing(attempt_at, library):
    folder = attempt_at("run")
    seen = loop_program.train(library, folder, asked=CHANGES)
    sizes = [line["samples"] for line in reported(folder)]
    full = full_batches(folder)
    early = [8] * (3 + LEAD[library]) + [12, 12]
    assert full[: len(early)] == early and {5, 6} <= set(full) and sum(sizes) == TOTAL
    assert seen["steps"] == [order(numbers) for numbers in batches(sizes)]
    rates = [rate(numbers.start, batch) for numbers, batch in zip(batches(sizes), full, strict=True)]
    assert [line["learning_rate"] for line in reported(folder)] == pytest.approx(rates)
    require_same(seen, sizes, full)
    assert seen["evaluations"]
    left = json.loads((folder / "left.json").read_text())
    assert (left["reason"], left["samples"], left["step"]) == ("finished", TOTAL, len(sizes))


def test_another_attempt_goes_on_in_mid_epoch(attempt_at, library):
    first = attempt_at("first")
    seen = loop_program.train(library, first, asked={1: (12, 2)}, leave_at=3)
    before = [line["samples"] for line in reported(first)]
    second = attempt_at("second", before=first)
    after = loop_program.train(library, second, asked={6: (5, 2)}, first_number=3)
    sizes, full = before + [line["samples"] for line in reported(second)], full_batches(first) + full_batches(second)
    assert 0 < sum(before) < 50 and sum(sizes) == TOTAL and {8, 12, 5} <= set(full)
    assert seen["steps"] + after["steps"] == [order(numbers) for numbers in batches(sizes)]
    require_same(after, sizes, full, len(before) if library == "accelerate" else 0)


def test_it_leaves_after_an_epoch_and_the_next_one_follows(attempt_at, library):
    first = attempt_at("first", plan=terms(10, 2).to_dict())
    seen = loop_program.train(library, first, leave_at=4 - LEAD[library])
    assert sum(line["samples"] for line in reported(first)) == 50
    second = attempt_at("second", before=first)
    after = loop_program.train(library, second)
    steps = [order(range(begin, min(TOTAL, begin + 10))) for begin in range(0, TOTAL, 10)]
    assert seen["steps"] + after["steps"] == steps
    if library == "lightning":
        assert list(seen["evaluations"]) == [5] and list(after["evaluations"]) == [10]


def test_outside_oppa_the_batch_is_that_of_the_loader(attempt_at, library, monkeypatch):
    folder = attempt_at("run")
    monkeypatch.delenv("OPPA_TRIAL")
    seen = loop_program.train(library, folder, **({"accumulate_grad_batches": 4} if library == "lightning" else {}))
    assert sorted(number for step in seen["steps"] for number in step) == sorted([*range(50)] * 2)
    if library == "accelerate":
        assert [len(step) for step in seen["steps"]] == [8] * 12 + [4]
        assert seen["steps"][0] == order(range(8))


def test_gradients_are_measured_and_the_estimate_goes_on(attempt_at, library):
    first = attempt_at("first", total_samples=48)
    loop_program.train(library, first, leave_at=2, measured=True)
    second = attempt_at("second", before=first, total_samples=48)
    loop_program.train(library, second, measured=True)
    whole = attempt_at("whole", total_samples=48)
    loop_program.train(library, whole, measured=True)
    noise = [line["noise"] for line in reported(whole)]
    assert all({"signal", "noise", "health"} <= each.keys() for each in noise) and len({each["noise"] for each in noise}) == 6
    for line, wanted in zip(reported(first) + reported(second), noise, strict=True):
        assert {name: line["noise"][name] for name in ("signal", "noise")} == pytest.approx(
            {name: wanted[name] for name in ("signal", "noise")}, rel=1e-3
        )


def test_checkpoints_come_on_the_way_and_a_death_while_saving_leaves_the_one_before(attempt_at, library, monkeypatch):
    folder = attempt_at("run")
    written = run_files.write

    def dies(place, name, values):
        if name == "saved-6.json":
            raise SystemError("dies while it saves")
        written(place, name, values)

    monkeypatch.setattr(run_files, "write", dies)
    with pytest.raises(SystemError):
        loop_program.train(library, folder, save_every=24)
    assert [path.name for path in folder.glob("saved-*.json")] == ["saved-3.json"]
    state = json.loads((folder / "saved-3.json").read_text())
    monkeypatch.setattr(run_files, "write", written)
    (folder / run_files.LEFT).write_text(json.dumps(state))
    second = attempt_at("second", before=folder)
    seen = loop_program.train(library, second)
    assert seen["steps"][0] == order(range(24, 32)) and sum(map(len, seen["steps"])) == TOTAL - 24


def test_without_samples_the_last_step_is_a_whole_one(attempt_at, library):
    folder = attempt_at("run", total_samples=None)
    loop_program.train(library, folder, **({"epochs": 1} if library == "accelerate" else {"max_epochs": 1}))
    assert [line["samples"] for line in reported(folder)] == [8] * 7
    assert json.loads((folder / "left.json").read_text())["reason"] == "finished"


def test_a_trial_ends_after_its_steps(attempt_at, library):
    folder = attempt_at("trial")
    (folder / "attempt.json").unlink()
    seen = loop_program.train(library, folder, save_every=8)
    assert len(seen["steps"]) == 3
    assert json.loads((folder / "outcome.json").read_text())["outcome"] == "completed"
    assert not (folder / "output").is_dir() or not any((folder / "output").iterdir())


class Stream(IterableDataset):
    """Has no length."""

    def __iter__(self):
        return iter([])


def test_without_a_schedule_the_learning_rate_follows_the_plan_alone(attempt_at, library):
    first = attempt_at("first", total_samples=48)
    plain = {"scheduler": None} if library == "accelerate" else {"module": WithoutSchedule}
    loop_program.train(library, first, asked={0: (32, 2)}, leave_at=0, **plain)
    assert reported(first)[0]["learning_rate"] == pytest.approx(0.01)
    second = attempt_at("second", before=first, total_samples=96)
    loop_program.train(library, second, **plain)
    assert {round(line["learning_rate"], 9) for line in reported(second)} <= {0.01, 0.02}
    assert reported(second)[-1]["learning_rate"] == pytest.approx(0.02)


class WithoutSchedule(loop_program.Module):
    """Has an optimizer alone."""

    def configure_optimizers(self):
        return super().configure_optimizers()[0]


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (DataLoader(Stream(), batch_size=2), "a data set without a length"),
        (DataLoader(loop_program.data(), batch_size=2, sampler=WeightedRandomSampler([1.0] * 50, 50)), "WeightedRandomSampler"),
        ([torch.zeros(2)], "a loader of the type `list`"),
    ],
    ids=["stream", "weighted", "list"],
)
def test_data_that_have_no_numbers_are_refused(attempt_at, library, loader, named):
    with pytest.raises(ContractError, match=named):
        loop_program.train(library, attempt_at("run"), loader=loader)


def test_a_checkpoint_of_another_run_or_an_incomplete_one_is_refused(attempt_at, library):
    first = attempt_at("first")
    loop_program.train(library, first, leave_at=1)
    smaller = torch.utils.data.Subset(loop_program.data(), range(40))
    second = attempt_at("second", before=first)
    with pytest.raises(ContractError, match="the checkpoint has `size = 50`, but the run has `size = 40`"):
        loop_program.train(library, second, loader=DataLoader(smaller, batch_size=2, shuffle=True))
    checkpoint = json.loads((first / "left.json").read_text())["checkpoint"]
    if library == "accelerate":
        (first / checkpoint / "oppa_position.json").unlink()
    else:
        state = torch.load(checkpoint, weights_only=True)
        torch.save({**state, "callbacks": {}}, checkpoint)
    with pytest.raises(ContractError, match="was not saved under oppa, or is not complete"):
        loop_program.train(library, attempt_at("third", before=first))


def test_a_finished_run_that_is_resumed_keeps_its_checkpoint_and_saves_no_other(attempt_at, library):
    once = {"epochs": 1} if library == "accelerate" else {"max_epochs": 1}
    first = attempt_at("first", total_samples=None)
    loop_program.train(library, first, **once)
    second = attempt_at("second", before=first, total_samples=None)
    assert loop_program.train(library, second, **once)["steps"] == []
    before, after = (json.loads((folder / run_files.LEFT).read_text()) for folder in (first, second))
    assert [after[name] for name in ("checkpoint", "step", "reason")] == [before["checkpoint"], 7, "finished"]
    assert not (second / "output").exists()
