"""State that is sharded in groups of replicas, with copies in the other groups, trains the same model."""

import dataclasses
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.training.parallel.supported_layouts import require_buildable
from oppa.training.reshard.shards import layout_of
from tests.sampling import sampled
from tests.training.conftest import Trials
from tests.training.families import FAMILIES, GROUPED, TINY, TOLERANCE, Alone, apart, configured, kinds, name_of
from tests.training.rank_pool import RankPool, chain
from tests.training.trained_weights import differing, weights_after

LAYOUTS = [
    *({"dp": 4, "dp_shard": 2, "zero_stage": stage} for stage in (1, 2, 3)),
    {"dp": 4, "dp_shard": 2, "zero_stage": 3, "micro_batch": 1, "recompute": "full"},
    {"dp": 4, "pp": 2, "dp_shard": 2, "zero_stage": 2, "micro_batch": 1},
    {"dp": 4, "dp_shard": 2, "cp": 2, "zero_stage": 3},
    {"dp": 4, "dp_shard": 4, "zero_stage": 3},
    {"dp": 2, "dp_shard": 1, "cp": 2, "zero_stage": 2},
]


@pytest.mark.slow
@pytest.mark.parametrize("values", sampled(LAYOUTS, apart, quick=kinds), ids=name_of)
def test_groups_of_shards_train_the_same_model(values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    assert pool.losses(configured(**values), GROUPED) == pytest.approx(alone(GROUPED), rel=TOLERANCE)


@pytest.mark.slow
def test_the_weights_are_those_of_one_process(pool: RankPool, tmp_path: Path) -> None:
    one = weights_after(pool, configured(micro_batch=8), GROUPED, tmp_path / "alone.pt")
    for stage in (1, 2, 3):
        found = weights_after(pool, configured(dp=4, dp_shard=2, zero_stage=stage), GROUPED, tmp_path / "others.pt")
        assert not differing(one, found), stage


@pytest.mark.slow
def test_state_moves_to_groups_of_shards_and_from_them(pool: RankPool, alone: Alone) -> None:
    layouts = [configured(dp=4, zero_stage=3), *(configured(dp=4, dp_shard=2, zero_stage=stage) for stage in (3, 1)), configured(tp=4)]
    assert pool.chain(chain(GROUPED, layouts, [1, 1, 2, 1])) == pytest.approx(alone(GROUPED, 5), rel=TOLERANCE)


@pytest.mark.slow
def test_memory_is_between_whole_and_no_sharding(trials: Trials) -> None:
    values = [{"zero_stage": 0}, {"zero_stage": 3, "dp_shard": 2}, {"zero_stage": 3}]
    large = dataclasses.replace(GROUPED, hidden=128, ffn=512)  # its state is most of the memory
    # Gathers that overlap make a peak differ between runs: the least of three is compared. Whole state is not gathered.
    peaks = [
        [trials(configured(dp=4, micro_batch=1, **each), large, steps=2).memory_bytes for _ in range(3 if each["zero_stage"] else 1)]
        for each in values
    ]
    memory_bytes = [min(each) for each in peaks]
    assert memory_bytes[0] > memory_bytes[1] > memory_bytes[2] * 1.1, peaks


def test_each_rank_holds_a_half_and_its_copy_is_in_the_other_group() -> None:
    for stage, part in ((1, "exp_avg"), (2, "weight"), (3, "weight")):
        ranks = layout_of(GROUPED, configured(dp=4, dp_shard=2, zero_stage=stage))
        boxes = [{(each.key, each.box) for each in held if each.key.kind == part} for held in ranks]
        assert boxes[0] == boxes[2] and boxes[1] == boxes[3] and not boxes[0] & boxes[1]


REFUSED = [{"dp": 4, "dp_shard": 3}, {"dp": 4, "dp_shard": 2}, {"dp": 4, "dp_shard": 1, "zero_stage": 2}, {"dp": 4, "dp_shard": "two"}]
REFUSED += [{"dp": 4, "dp_shard": 2, "zero_stage": 2, "ep": 2}]


@pytest.mark.parametrize("values", REFUSED, ids=str)
def test_refusals(values: dict[str, object]) -> None:
    with pytest.raises(InputError) as refusal:
        require_buildable(FAMILIES["mixture"] if "ep" in values else TINY, configured(**values))
    assert "dp_shard" in refusal.value.message + refusal.value.hint
