"""`OppaTrainer` on several ranks: the batch changes in mid-epoch, and another number of ranks goes on from the checkpoint."""

import itertools
import json

import pytest
import torch
from oppa_client import run_files

from tests.client.by_hand import batches, full_batches, order, rate, require_reports, require_same, run_ranks
from tests.own_trainer.folders import TOTAL, prepare, reported, terms
from tests.sampling import nightly

pytestmark = pytest.mark.slow


def taken(ranks):
    """Return the elements of each step: those of all ranks, in the order of ranks."""
    steps = zip(*(rank["steps"] for rank in ranks), strict=True)
    return [[element for rank in step for element in rank["samples"]] for step in steps]


@pytest.mark.parametrize(
    ("ranks", "parallel"),
    [
        *((2, {}), (2, {"fsdp_config": {}})),
        *nightly((4, {"fsdp_config": {}, "parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 2}})),
    ],
    ids=["ddp", "fsdp2", "hsdp"],
)
def test_ranks_train_on_the_batches_of_one(tmp_path, ranks, parallel):
    folder = prepare(tmp_path / "run", ranks=ranks, statistics_every=1)
    # Of 5 samples in micro-batches of 1, one of two ranks has 3 and the other 2: one of its micro-batches is empty.
    seen = run_ranks(folder, ranks, asked={1: (12, 2), 3: (5, 1), 5: (9, 3)}, kind="measured", **parallel)
    sizes = [line["samples"] for line in reported(folder)]
    full = full_batches(folder)
    assert full[:9] == [8, 8, 8, 12, 12, 5, 5, 9, 9] and sum(sizes) == TOTAL
    assert taken(seen) == [order(numbers) for numbers in batches(sizes)]
    assert [line["learning_rate"] for line in reported(folder)] == pytest.approx(
        [rate(numbers.start, batch) for numbers, batch in zip(batches(sizes), full, strict=True)]
    )
    for rank in seen:
        require_same(rank, sizes, full)
    require_reports(folder)
    assert [line["noise"]["variance_ratio"] is None for line in reported(folder)[4:8]] == [False, True, True, False]


@pytest.mark.parametrize("parallel", [{}, {"fsdp_config": {}}], ids=["ddp", "fsdp2"])
def test_a_mean_loss_does_not_grow_with_the_ranks_though_its_model_takes_the_arguments_of_a_loss(tmp_path, parallel):
    found = []
    for ranks in (1, 2):
        folder = prepare(tmp_path / f"of-{ranks}", ranks=ranks, total_samples=21, plan=terms(7, 7 // ranks, ranks).to_dict())
        seen = run_ranks(folder, ranks, classifies=True, eval_strategy="no", **parallel)
        found.append([each["grad_norm"] for each in seen[0]["logs"] if "grad_norm" in each])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


WHOLE = {"fsdp_config": {}}
SHARDS = {"fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT", "reshard_after_forward": False}}
HYBRID = {"parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 2}}


@pytest.mark.parametrize(
    "layouts",
    [
        [(2, {}), (1, {}), (2, {})],
        [(2, WHOLE), (1, WHOLE), (4, {**WHOLE, **HYBRID})],
        [(4, {**SHARDS, **HYBRID}), (1, SHARDS), (2, SHARDS)],
    ],
    ids=["ddp", "fsdp2-whole-to-hsdp", "hsdp-shards-to-fsdp2"],
)
def test_other_numbers_of_ranks_go_on_in_mid_epoch(tmp_path, layouts):
    folders = [tmp_path / name for name in ("first", "second", "third")]
    changes = [{1: (12, 2)}, {5: (5, 2)}, {9: (7, 1)}]
    steps, sizes, full, resumed = [], [], [], []
    for folder, before, (ranks, parallel), leave_at, asked in zip(folders, [None, *folders], layouts, (3, 7, None), changes, strict=False):
        prepare(folder, ranks=ranks, before=before)
        resumed.append(len(sizes))
        newest = json.loads((folder / run_files.ATTEMPT).read_text())["plan"]["number"]
        seen = run_ranks(folder, ranks, asked=asked, leave_at=leave_at, first_number=newest + 1, **parallel)
        steps += taken(seen)
        lines = reported(folder)
        sizes, full = sizes + [line["samples"] for line in lines], full + full_batches(folder)
    assert sum(sizes) == TOTAL and {8, 12, 5, 7} <= set(full)
    assert steps == [order(numbers) for numbers in batches(sizes)]
    for rank in seen:
        require_same(rank, sizes, full, resumed)


def test_random_numbers_of_two_ranks_go_on_where_a_run_left(tmp_path):
    whole, first, second = (tmp_path / name for name in ("whole", "first", "second"))
    wanted = run_ranks(prepare(whole, ranks=2, total_samples=48), 2, dropout=0.2)
    run_ranks(prepare(first, ranks=2, total_samples=48), 2, dropout=0.2, leave_at=2)
    seen = run_ranks(prepare(second, ranks=2, total_samples=48, before=first), 2, dropout=0.2)
    assert len(reported(first)) == 4
    for rank, whole_rank in zip(seen, wanted, strict=True):
        assert all(torch.equal(value, whole_rank["weights"][name]) for name, value in rank["weights"].items())


EVERY, MEASURED = 3, (0, 3)
"""Interval of the measured steps, and those of six."""


@pytest.mark.parametrize(("parallel", "asked"), [({}, {1: (12, 2)}), (WHOLE, {})], ids=["ddp", "fsdp2"])
def test_the_client_adds_no_collective_to_a_step(tmp_path, parallel, asked):
    counts = {}
    for kind in ("plain", "measured"):
        folder = prepare(tmp_path / kind, ranks=2, statistics_every=EVERY)
        options = {"eval_strategy": "no", "logging_strategy": "no", "gradient_accumulation_steps": 2}
        seen = run_ranks(folder, 2, kind=kind, asked=asked if kind == "measured" else {}, **options, **parallel)
        begun = [[step["collectives"] for step in rank["steps"][:7]] for rank in seen]
        counts[kind] = [after - before for before, after in itertools.pairwise(begun[0])]
        assert begun[0] == begun[1]
    added = [ours - plain for ours, plain in zip(counts["measured"], counts["plain"], strict=True)]
    assert min(counts["plain"]) > 0 and added == [1 if step in MEASURED else 0 for step in range(6)], counts
