"""A layout whose ranks share each sequence trains the same model as one process, in less memory."""

import dataclasses
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.problem.configuration import ExtraValue
from oppa.problem.model import Model
from oppa.training.parallel.supported_layouts import require_buildable, require_measurable, require_runnable
from oppa.training.replica import same_layout
from tests.sampling import nightly, sampled
from tests.training.conftest import Trials
from tests.training.families import FAMILIES, GROUPED, TINY, TOLERANCE, Alone, apart, configured, id_of, kinds
from tests.training.rank_pool import RankPool, chain
from tests.training.runs import CLOSE, Runs, events, losses
from tests.training.trained_weights import differing, weights_after

MODELS = {**{name: model for name, model in FAMILIES.items() if not (model.patch or model.entry_point)}, "grouped": GROUPED}


LAYOUTS = [
    {"cp": 2},
    {"cp": 4, "micro_batch": 8},
    {"cp": 2, "dp": 2},
    {"cp": 2, "dp": 2, "zero_stage": 1, "micro_batch": 1},
    {"cp": 2, "zero_stage": 2, "recompute": "full"},
    {"cp": 2, "dp": 2, "zero_stage": 3},
    {"cp": 2, "tp": 2, "recompute": "selective"},
    {"cp": 2, "pp": 2},
    {"cp": 2, "pp": 2, "zero_stage": 2, "schedule": "interleaved", "model_chunks": 2},
    {"cp": 2, "pp": 2, "schedule": "zb-v", "model_chunks": 2},
    {"cp": 2, "dp": 2, "tp": 2, "zero_stage": 3},
    {"cp": 2, "tp": 2, "pp": 2, "schedule": "interleaved-zb", "model_chunks": 2},
]
SPREAD = [{"cp": 2, "dp": 2, "ep": 2, "zero_stage": stage} for stage in range(4)]


def fits(model: Model, values: dict[str, object]) -> bool:
    try:
        require_buildable(model, configured(**values))
        require_runnable(model, configured(**values))
    except InputError:
        return False
    return True


CASES = [
    *((family, values) for family, model in MODELS.items() for values in LAYOUTS if fits(model, values)),
    *((family, values) for family in ("mixture", "switch") for values in SPREAD),
]


def shown(family: str, values: dict[str, object]) -> set[object]:
    return {*apart(values), family}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "values"), sampled(CASES, shown, quick=lambda _, values: kinds(values)), ids=id_of)
def test_parts_of_sequences_train_the_same_model(family: str, values: dict[str, object], pool: RankPool, alone: Alone) -> None:
    assert pool.losses(configured(**values), MODELS[family]) == pytest.approx(alone(MODELS[family]), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["grouped", *nightly("encoder", "mixture")])
def test_the_weights_are_those_of_one_process(family: str, pool: RankPool, tmp_path: Path) -> None:
    one = weights_after(pool, configured(micro_batch=8), MODELS[family], tmp_path / "alone.pt")
    for values in ({"cp": 4}, {"cp": 2, "dp": 2, "zero_stage": 3}, {"cp": 2, "tp": 2}):
        assert not differing(one, weights_after(pool, configured(**values), MODELS[family], tmp_path / "others.pt")), values
    first = weights_after(pool, configured(micro_batch=8, global_batch=16), MODELS[family], tmp_path / "more.pt")
    assert differing(one, first)


@pytest.mark.slow
def test_a_layout_with_parts_of_sequences_is_one_like_all_others(pool: RankPool, alone: Alone, tmp_path: Path) -> None:
    """State moves to it and from it, and a checkpoint of it resumes in others."""
    walk = [configured(**values) for values in ({"dp": 4}, {"cp": 4}, {"tp": 2, "cp": 2}, {"cp": 2, "dp": 2, "zero_stage": 3}, {"pp": 4})]
    alone_longer = alone(GROUPED, 5)
    assert pool.chain(chain(GROUPED, [*walk[:4]], [1, 1, 1, 2])) == pytest.approx(alone_longer, rel=TOLERANCE)
    saved = {"checkpoint": str(tmp_path / "saved")}
    first = pool.chain(chain(GROUPED, [configured(cp=2, dp=2, zero_stage=1)], [2], **saved))
    assert pool.chain(chain(GROUPED, [configured(cp=4)], [3], **saved)) == pytest.approx(alone_longer, rel=TOLERANCE)
    assert first == pytest.approx(alone_longer[:2], rel=TOLERANCE)


@pytest.mark.parametrize(("values", "alike"), [({}, True), ({"dp": 2}, False), ({"cp": 2}, False)], ids=str)
def test_replicas_of_a_pipeline_are_built_again_if_another_schedule_averages_gradients_otherwise(
    values: dict[str, object], alike: bool
) -> None:
    """DDP averages gradients of whole backward passes, and is not there for split ones."""
    split, unsplit = (configured(pp=2, schedule=schedule, **values) for schedule in ("zb-h1", "1f1b"))
    assert same_layout(split, unsplit) == same_layout(unsplit, split) == alike


@pytest.mark.slow
def test_bf16_follows_fp32(pool: RankPool, alone: Alone) -> None:
    for values in ({"cp": 2, "pp": 2}, {"cp": 2, "dp": 2, "zero_stage": 3}):
        assert pool.losses(configured(**values), GROUPED, precision="bf16") == pytest.approx(alone(GROUPED), rel=1e-2)


LONG = dataclasses.replace(TINY, layers=2, seq_len=512)


@pytest.mark.slow
def test_activations_are_divided_by_the_ranks_that_share_a_sequence(trials: Trials) -> None:
    one, two, four = (trials(configured(micro_batch=8, cp=cp), LONG, steps=2).memory_bytes for cp in (1, 2, 4))
    assert two < 0.6 * one and four < 0.6 * two


@pytest.mark.slow
def test_a_run_with_parts_of_sequences_has_the_losses_of_one_rank(made: Runs) -> None:
    options = {"statistics_every": 0, "samples": 48, "validation": 8, "validate_every": 24}
    plan = [(16, configured(tp=2, cp=2, micro_batch=1)), (32, configured(cp=4, micro_batch=2))]
    folders = [
        made.new(configured(cp=2, dp=2, zero_stage=2, micro_batch=1), *plan, **options),
        made.new(configured(micro_batch=1), **options),
    ]
    for folder in folders:
        made.train(folder)
    (steps, looks), (steps_alone, looks_alone) = ([events(folder, name) for name in ("step", "validated")] for folder in folders)
    assert len(steps) == 6 and len(looks) == 2
    assert losses(steps) == pytest.approx(losses(steps_alone), abs=CLOSE)
    assert losses(looks) == pytest.approx(losses(looks_alone), abs=CLOSE)


REFUSED = [
    (FAMILIES["vit"], {"cp": 17}, "class token"),
    (FAMILIES["own"], {"cp": 2}, "attention"),
    (TINY, {"cp": 3}, "divide seq_len"),
    (TINY, {"cp": 8}, "heads"),
    (TINY, {"cp": 2, "tp": 4}, "heads"),
]


@pytest.mark.parametrize(("model", "values", "reason"), REFUSED, ids=lambda part: str(part) if isinstance(part, dict) else "")
def test_refusals(model: Model, values: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as refusal:
        require_buildable(model, configured(**values))
    assert reason in refusal.value.hint


@pytest.mark.parametrize(
    "extra", [ExtraValue(name="cp", value=2), ExtraValue(name="xp", value=2, degree=True), ExtraValue(name="cp", value="two")], ids=repr
)
def test_a_degree_that_the_core_lacks_or_that_is_no_number_is_refused(extra: ExtraValue) -> None:
    with pytest.raises(InputError):
        require_buildable(TINY, dataclasses.replace(configured(), extras=(extra,)))


def test_no_gradient_statistics_without_the_gradients_of_whole_sequences() -> None:
    require_measurable(configured(cp=2), 0)
    with pytest.raises(InputError, match="noise scale") as refusal:
        require_measurable(configured(cp=2), 1)
    assert "statistics_every = 0" in refusal.value.hint
    with pytest.raises(InputError, match="cannot divide"):
        require_runnable(TINY, configured(cp=2, dp=2), [4, 4])
