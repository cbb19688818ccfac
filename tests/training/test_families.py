"""Every family is built as described, and every layout of it trains the same model as one process."""

import dataclasses

import pytest
import torch

from oppa.errors import InputError
from oppa.problem.model import Model
from oppa.problem.presets import PRESETS
from oppa.training.model.stage import ModelStage
from oppa.training.model.tensor_parallel import Slice
from oppa.training.parallel.supported_layouts import require_buildable
from tests.sampling import sampled
from tests.training.families import FAMILIES, ROOT, TINY, TOLERANCE, Alone, apart, configured, kinds, name_of, own
from tests.training.rank_pool import RankPool

ALL_LAYOUTS = [
    {"dp": 2, "zero_stage": 1, "recompute": "full", "micro_batch": 1},
    {"dp": 4, "zero_stage": 2},
    {"dp": 2, "zero_stage": 3},
    {"tp": 2, "recompute": "selective"},
    {"pp": 2},
    {"pp": 2, "schedule": "zb-v", "model_chunks": 2},
    {"dp": 2, "pp": 2, "zero_stage": 2, "schedule": "interleaved", "model_chunks": 2},
    {"dp": 2, "tp": 2, "zero_stage": 3, "micro_batch": 4},
]
SPREAD = [
    {"dp": 2, "ep": 2, "zero_stage": 1, "recompute": "full"},
    {"dp": 2, "ep": 2, "zero_stage": 2},
    {"dp": 4, "ep": 2, "micro_batch": 1},
    {"dp": 4, "ep": 2, "zero_stage": 3, "recompute": "full"},
    {"dp": 2, "ep": 2, "tp": 2},
    {"dp": 2, "ep": 2, "pp": 2, "zero_stage": 3},
    {"dp": 2, "ep": 2, "pp": 2, "zero_stage": 1, "schedule": "interleaved-zb", "model_chunks": 2},
]


CASES = [
    *(
        (family, values)
        for family in FAMILIES
        for values in ALL_LAYOUTS
        if family != "own" or not ("tp" in values or values.get("recompute") == "selective")  # refused, see test_refusals
    ),
    *((family, values) for family in ("mixture", "switch") for values in SPREAD),
]


def shown(family: str, values: dict[str, object]) -> set[object]:
    """Return each family with each kind of parallelism, and each value once."""
    return {*apart(values), *((family, axis) for axis in ("tp", "pp", "ep") if axis in values)}


def id_of(part: object) -> str:
    return name_of(part) if isinstance(part, dict) else str(part)


@pytest.mark.parametrize(("family", "values"), sampled(CASES, shown, quick=lambda family, values: {family, *kinds(values)}), ids=id_of)
def test_a_family_trains_the_same_under_every_layout(family: str, values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    assert pool.losses(configured(**values), FAMILIES[family]) == pytest.approx(alone(FAMILIES[family]), rel=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_falls(family: str, pool: RankPool) -> None:
    longer = pool.losses(configured(micro_batch=8), FAMILIES[family], steps=17)
    assert min(longer[-4:]) < longer[0] - 0.1


IN_BF16 = [
    (family, values)
    for family in FAMILIES
    for values in ({"micro_batch": 8}, {"dp": 2, "pp": 2}, {"dp": 2, "zero_stage": 2}, {"dp": 2, "zero_stage": 3})
]


@pytest.mark.parametrize(
    ("family", "values"), sampled(IN_BF16, lambda family, values: {family, id_of(values)}, quick=lambda _, values: kinds(values)), ids=id_of
)
def test_bf16_follows_fp32(family: str, values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    # Twice the tolerance of test_layouts: a router may decide otherwise, and a ViT has a loss per image, not per token.
    assert pool.losses(configured(**values), FAMILIES[family], precision="bf16") == pytest.approx(alone(FAMILIES[family]), rel=2e-2)


MODELS = [*PRESETS.values(), *(dataclasses.replace(model, name=name) for name, model in FAMILIES.items() if not model.entry_point)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_module_has_as_many_weights_as_its_model(model: Model) -> None:
    with torch.device("meta"):
        stage = ModelStage(model, range(model.layers + 2), Slice())
    assert sum(parameter.numel() for parameter in stage.parameters()) == model.parameter_count


REFUSED = [
    ("mixture", {"dp": 4, "ep": 3}, "divide experts"),
    ("mixture", {"dp": 2, "ep": 4}, "divide dp"),
    ("encoder", {"tp": 8}, "tp"),
    ("own", {"tp": 2}, "tp == 1"),
    ("own", {"dp": 2, "ep": 2}, "ep"),
    ("own", {"recompute": "selective"}, "recompute"),
]


@pytest.mark.parametrize(("family", "values", "reason"), REFUSED)
def test_refusals(family: str, values: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as refusal:
        require_buildable(FAMILIES[family], configured(**values))
    assert reason in refusal.value.message + refusal.value.hint


@pytest.mark.parametrize("change", [{"causal": True}, {"tied": True}, {"token_types": 2}, {"seq_len": 18}])
def test_a_vit_that_is_none_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError) as refusal:
        require_buildable(dataclasses.replace(FAMILIES["vit"], **change), configured())  # type: ignore[arg-type]
    assert next(iter(change)) in refusal.value.hint


@pytest.mark.slow
def test_the_parts_of_a_users_module_share_no_weights_even_if_its_job_states_a_tied_embedding(pool: RankPool, alone: Alone) -> None:
    tied = dataclasses.replace(FAMILIES["own"], tied=True)
    for values in ({"pp": 2}, {"dp": 2, "pp": 2, "zero_stage": 2}):
        assert pool.losses(configured(**values), tied) == pytest.approx(alone(FAMILIES["own"]), rel=TOLERANCE)


@pytest.mark.slow
def test_a_rank_may_have_parts_of_a_users_module_without_weights(pool: RankPool, alone: Alone) -> None:
    for values in ({"pp": 2}, {"dp": 2, "pp": 2, "zero_stage": 1}, {"dp": 2, "pp": 2, "zero_stage": 3}):
        losses = pool.losses(configured(**values, stage_layout="Et*4|L"), own("Headless"))
        assert losses == pytest.approx(alone(own("Headless")), rel=TOLERANCE)


HEADS = dataclasses.replace(TINY, layers=6, entry_point=f"{ROOT / 'examples'}:multi_token:MultiToken")
"""Four layers, and two that predict further tokens."""


@pytest.mark.slow
def test_heads_that_predict_further_tokens_may_lie_in_any_stage(pool: RankPool) -> None:
    alone = pool.losses(configured(micro_batch=8), HEADS)
    for values in (
        {"pp": 4, "stage_layout": "Ett|ttt|t|L"},
        {"pp": 2, "stage_layout": "Et*5|tL", "schedule": "zb-h1"},
        {"pp": 2, "model_chunks": 4, "schedule": "interleaved"},
        {"dp": 2, "pp": 2, "zero_stage": 2, "stage_layout": "Ett|t*4L"},
    ):
        assert pool.losses(configured(**values), HEADS) == pytest.approx(alone, rel=TOLERANCE)


DIVIDED = dataclasses.replace(TINY, layers=8, entry_point=f"{ROOT / 'examples'}:multi_token:Divided")
"""Four layers, and two heads whose logits and losses are parts of their own."""


@pytest.mark.slow
def test_the_losses_of_heads_may_lie_in_any_stage_too(pool: RankPool) -> None:
    alone = pool.losses(configured(micro_batch=8), DIVIDED, steps=16)
    assert min(alone[-4:]) < alone[0] - 0.1
    for values in ({"pp": 4, "stage_layout": "Et*4|tt|tt|L"}, {"pp": 2, "stage_layout": "Et*5|t*3L"}):
        assert pool.losses(configured(**values), DIVIDED) == pytest.approx(alone[:4], rel=TOLERANCE)
