"""The example of an own trainer equals one process on the same batches, whatever parallel layout it begins in and goes on in."""

import itertools
import json

import pytest
import torch
from oppa_client import run_files
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from experiments.trainers.reference import INPUTS, Reference, place
from tests.client.by_hand import SAME, batches, full_batches, run_ranks
from tests.own_trainer import example_program
from tests.own_trainer.folders import REFERENCE, TOTAL, prepare, reported
from tests.sampling import sampled

pytestmark = pytest.mark.slow

WIDTH, RATE = 16, 3e-3
LAYOUTS = {
    "ddp": {1: [], 2: [], 4: []},
    "fsdp2": {1: ["--shard"], 2: ["--shard"], 4: ["--shard"]},
    "hsdp": {4: ["--shard", "--replicate", "2"]},
}
"""Words of the launch line, by kind and number of ranks."""
EACH = [(kind, ranks) for kind, words in LAYOUTS.items() for ranks in words]
CASES = [(first, second) for first, second in itertools.product(EACH, EACH) if first[1] != second[1]]


def features(first, second):
    """The short form begins and goes on in each kind, with fewer ranks and with more. With this seed three cases have it all."""
    return {("first", first[0]), ("second", second[0]), first[1] < second[1]}


def trained(folder, layout, before=None, **requests):
    """Train an attempt; return the elements of each step, those of all ranks in the order of ranks."""
    kind, ranks = layout
    prepare(folder, ranks=ranks, before=before)
    number = json.loads((folder / run_files.ATTEMPT).read_text())["plan"]["number"]
    words = ["--width", str(WIDTH), *LAYOUTS[kind][ranks]]
    seen = run_ranks(folder, ranks, program=example_program, words=words, first_number=number + 1, **requests)
    element = {tuple(row): index for index, row in enumerate(Reference(WIDTH).data.tolist())}
    return [[element[tuple(row.tolist())] for rank in step for row in rank] for step in zip(*seen, strict=True)]


def saved_by(folder):
    """Return the weights and moments of the checkpoint with which an attempt left, by the names of parameters."""
    left = json.loads((folder / run_files.LEFT).read_text())
    dcp_to_torch_save(left["checkpoint"], folder / "saved.pt")
    state = torch.load(folder / "saved.pt")
    return state["model"], state["optimizer"]["state"]


@pytest.mark.parametrize(("first", "second"), sampled(CASES, features, seed=144), ids=str)
def test_a_restart_with_other_ranks_and_changes_of_the_batch_equal_one_process(tmp_path, first, second):
    before, after = tmp_path / "first", tmp_path / "second"
    taken = trained(before, first, asked={1: (12, 2)}, leave_at=3)
    # Of 5 samples in micro-batches of 1, some ranks have more than the others: theirs is an empty micro-batch.
    taken += trained(after, second, before, asked={5: (5, 1), 7: (9, 3)}, leave_at=None)
    lines, full = reported(before) + reported(after), full_batches(before) + full_batches(after)
    sizes = [line["samples"] for line in lines]
    assert sum(sizes) == TOTAL and {8, 12, 5, 9} <= set(full)
    assert taken == [[place(number) for number in numbers] for numbers in batches(sizes)]
    rates = [RATE * (batch / REFERENCE) ** 0.5 for batch in full]
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates)
    require_same(after, sizes, rates)


def require_same(folder, sizes, rates):
    """Compare weights, moments and evaluation loss with those of one process that took the same batches."""
    reference = Reference(WIDTH)
    for numbers, rate in zip(batches(sizes), rates, strict=True):
        reference.step(numbers, rate)
    weights, moments = saved_by(folder)
    for (name, value), wanted in zip(reference.model.named_parameters(), reference.optimizer.state.values(), strict=True):
        torch.testing.assert_close(weights[name], value.detach(), **SAME)
        for moment in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(moments[name][moment], wanted[moment], **SAME)
    held_out = torch.randn(12, INPUTS, generator=torch.Generator().manual_seed(1))
    logits = reference.model(held_out)
    reference.model.load_state_dict(weights)
    labels = held_out.argmax(dim=1) % 10
    losses = [torch.nn.functional.cross_entropy(each, labels).item() for each in (logits, reference.model(held_out))]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
