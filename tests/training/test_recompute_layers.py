"""Recomputing some layers of each stage changes memory alone: the more layers, the less."""

import dataclasses

import pytest

from oppa.errors import InputError
from oppa.training.parallel.supported_layouts import require_buildable
from tests.sampling import sampled
from tests.training.conftest import Trials
from tests.training.families import FAMILIES, TINY, TOLERANCE, apart, configured, kinds, name_of
from tests.training.rank_pool import RankPool

FULL = {"recompute": "full"}
CASES = [
    *(
        (TINY, {**FULL, **values, "recompute_layers": layers})
        for values in ({}, {"pp": 2}, {"dp": 2, "zero_stage": 3})
        for layers in (1, 3)
    ),
    (TINY, {**FULL, "pp": 2, "schedule": "zb-v", "model_chunks": 2, "recompute_layers": 1}),
    (TINY, {**FULL, "cp": 2, "recompute_layers": 2}),
    (FAMILIES["own"], {**FULL, "pp": 2, "recompute_layers": 1}),
]


def shown(model: object, values: dict[str, object]) -> set[object]:
    return {model, *apart(values)}


@pytest.mark.parametrize(
    ("model", "values"),
    sampled(CASES, shown, quick=lambda _, values: kinds(values)),
    ids=lambda part: name_of(part) if isinstance(part, dict) else "",
)
def test_recomputing_some_layers_trains_the_same_model(model, values, pool: RankPool, alone) -> None:  # type: ignore[no-untyped-def]
    assert pool.losses(configured(**values), model) == pytest.approx(alone(model), rel=TOLERANCE)


@pytest.mark.slow
def test_memory_falls_with_the_number_of_layers(trials: Trials) -> None:
    model = dataclasses.replace(TINY, seq_len=128)
    configurations = [configured(micro_batch=8), *(configured(micro_batch=8, **FULL, recompute_layers=layers) for layers in (2, 4, 6, 0))]
    memory_bytes = [trials(configuration, model, steps=2).memory_bytes for configuration in configurations]
    assert memory_bytes == sorted(memory_bytes, reverse=True) and len(set(memory_bytes)) == 5
    assert memory_bytes[-1] < 0.5 * memory_bytes[0]
    assert trials(configured(micro_batch=8, **FULL), model, steps=2).memory_bytes == memory_bytes[-1], "0 is all, as without the knob"


@pytest.mark.parametrize("layers", [-1, True, "two", 1.5])
def test_what_is_no_number_of_layers_is_refused(layers: object) -> None:
    with pytest.raises(InputError, match="recompute_layers"):
        require_buildable(TINY, configured(**FULL, recompute_layers=layers))
