"""A model with norms and residuals on parts of the tokens trains as one on all of them, in less memory."""

import dataclasses
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.training.parallel.supported_layouts import require_buildable
from tests.sampling import nightly, sampled
from tests.training.conftest import Trials
from tests.training.families import FAMILIES, GROUPED, TINY, TOLERANCE, Alone, apart, configured, id_of, kinds
from tests.training.rank_pool import RankPool, chain
from tests.training.trained_weights import differing, weights_after

SEQUENCE = {"tp": 2, "sequence_parallel": True}
VIT = dataclasses.replace(FAMILIES["vit"], seq_len=10, learned_positions=10)
"""Nine patches and the class token: an even number of tokens."""
MODELS = {**{name: FAMILIES[name] for name in ("encoder", "tied", "mixture", "switch")}, "vit": VIT, "grouped": GROUPED}
LAYOUTS = [
    SEQUENCE,
    {**SEQUENCE, "tp": 4, "micro_batch": 8},
    {**SEQUENCE, "recompute": "full"},
    {**SEQUENCE, "recompute": "selective", "micro_batch": 1},
    {**SEQUENCE, "dp": 2},
    {**SEQUENCE, "dp": 2, "zero_stage": 1},
    {**SEQUENCE, "dp": 2, "zero_stage": 3},
    {**SEQUENCE, "pp": 2},
    {**SEQUENCE, "pp": 2, "schedule": "zb-v", "model_chunks": 2},
    {**SEQUENCE, "cp": 2},
    {**SEQUENCE, "cp": 2, "dp": 2, "zero_stage": 2},
]


def fits(family: str, values: dict[str, object]) -> bool:
    try:
        require_buildable(MODELS[family], configured(**values))
    except InputError:
        return False
    return MODELS[family].layers >= 4 or values.get("model_chunks", 1) == 1


CASES = [
    *((family, values) for family in MODELS for values in LAYOUTS if fits(family, values)),
    ("mixture", {**SEQUENCE, "dp": 2, "ep": 2, "zero_stage": 3}),
]


def shown(family: str, values: dict[str, object]) -> set[object]:
    return {*apart(values), family}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "values"), sampled(CASES, shown, quick=lambda _, values: kinds(values)), ids=id_of)
def test_parts_of_tokens_train_the_same_model(family: str, values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    assert pool.losses(configured(**values), MODELS[family]) == pytest.approx(alone(MODELS[family]), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["grouped", *nightly("encoder", "mixture")])
def test_the_weights_are_those_of_one_process(family: str, pool: RankPool, tmp_path: Path) -> None:
    one = weights_after(pool, configured(micro_batch=8), MODELS[family], tmp_path / "alone.pt")
    for values in (SEQUENCE, {**SEQUENCE, "pp": 2}, {**SEQUENCE, "dp": 2, "zero_stage": 3}):
        assert not differing(one, weights_after(pool, configured(**values), MODELS[family], tmp_path / "others.pt")), values


@pytest.mark.slow
def test_it_can_be_switched_on_and_off_between_steps(pool: RankPool, alone: Alone) -> None:
    layouts = [configured(tp=2, dp=2), configured(**SEQUENCE, dp=2), configured(**SEQUENCE, pp=2)]
    longer = alone(GROUPED, 5)
    assert pool.chain(chain(GROUPED, layouts, [1, 2, 2])) == pytest.approx(longer, rel=TOLERANCE)


@pytest.mark.slow
def test_bf16_follows_fp32(pool: RankPool, alone: Alone) -> None:
    assert pool.losses(configured(**SEQUENCE, pp=2), GROUPED, precision="bf16") == pytest.approx(alone(GROUPED), rel=1e-2)


@pytest.mark.slow
def test_norms_and_residuals_take_less_memory(trials: Trials) -> None:
    model = dataclasses.replace(TINY, layers=2, seq_len=512)
    without, with_parts = (
        trials(configured(tp=4, micro_batch=8, sequence_parallel=on), model, steps=2).memory_bytes for on in (False, True)
    )
    assert with_parts < 0.8 * without


@pytest.mark.parametrize("values", [{"tp": 3, "sequence_parallel": True}, {"tp": 2, "sequence_parallel": 1}], ids=str)
def test_refusals(values: dict[str, object]) -> None:
    with pytest.raises(InputError) as refusal:
        require_buildable(dataclasses.replace(TINY, heads=6, kv_heads=6, hidden=36, ffn=66), configured(**values))
    assert "sequence_parallel" in refusal.value.message + refusal.value.hint
    require_buildable(FAMILIES["own"], configured(sequence_parallel=True))  # without tensor parallelism, it does not matter
