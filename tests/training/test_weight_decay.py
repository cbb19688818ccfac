"""Weight decay: matrices decay, norms and biases do not, and every layout learns the same."""

import functools
from collections.abc import Callable

import pytest
import torch

from oppa.problem.training import Training
from oppa.training.parallel.optimizer import groups_of, update_rule
from tests.sampling import sampled
from tests.training.families import FAMILIES, TOLERANCE, apart, configured, kinds, name_of
from tests.training.rank_pool import RankPool

DECAYED = {"weight_decay": 1.0, "learning_rate": 1e-2}
"""Matrices lose 1% in each step, on top of their updates."""


HALF = [Training(weight_decay=0.5), Training(optimizer="sgd", momentum=0.0, weight_decay=0.5), Training(weight_decay=0.5, decay_all=True)]


@pytest.mark.parametrize("training", HALF, ids=["adamw", "sgd", "all"])
def test_without_a_gradient_matrices_shrink_and_other_weights_stay(training: Training) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    make, options = update_rule(training)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    make(groups_of(model.parameters(), training), **options).step()
    for name, parameter in model.named_parameters():
        shrunk = 1 - training.learning_rate * 0.5 if training.decay_all or name == "0.weight" else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * shrunk)


def test_a_job_without_weight_decay_has_that_of_torch() -> None:
    assert Training().decay == torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"]
    assert Training(optimizer="sgd").decay == torch.optim.SGD([torch.zeros(1)]).defaults["weight_decay"] == 0
    assert "weight_decay" not in Training().to_dict() and Training(weight_decay=0.0).to_dict()["weight_decay"] == 0


Reference = Callable[[str], list[float]]


@pytest.fixture(scope="module")
def decayed_alone(pool: RankPool) -> Reference:
    """Return the losses of a family's model on one rank."""
    return functools.cache(lambda family: pool.losses(configured(), FAMILIES[family], **DECAYED))


def test_it_changes_what_is_learned(pool: RankPool, decayed_alone: Reference) -> None:
    plain = pool.losses(configured(), FAMILIES["encoder"], **{**DECAYED, "weight_decay": 0.0})
    assert plain[-1] != pytest.approx(decayed_alone("encoder")[-1], rel=10 * TOLERANCE)


LAYOUTS: list[dict[str, object]] = [
    *({"dp": 2, "zero_stage": stage} for stage in range(4)),
    {"dp": 4, "zero_stage": 1},
    {"tp": 2, "pp": 2},
    {"dp": 2, "tp": 2, "zero_stage": 1},
    {"dp": 2, "tp": 2, "zero_stage": 3},
    {"dp": 2, "pp": 2, "zero_stage": 2},
]
CASES = [
    *((family, values) for family in ("encoder", "tied") for values in LAYOUTS),
    *(("mixture", values) for values in ({"dp": 2, "ep": 2}, {"dp": 4, "ep": 2, "zero_stage": 1}, {"dp": 4, "ep": 2, "zero_stage": 2})),
]


def shown(family: str, values: dict[str, object]) -> set[object]:
    return {family, *apart(values)}


@pytest.mark.parametrize(
    ("family", "values"),
    sampled(CASES, shown, quick=lambda _, values: kinds(values)),
    ids=lambda part: name_of(part) if isinstance(part, dict) else part,
)
def test_every_layout_decays_alike(family: str, values: dict[str, object], pool: RankPool, decayed_alone: Reference) -> None:
    assert pool.losses(configured(**values), FAMILIES[family], **DECAYED) == pytest.approx(decayed_alone(family), rel=TOLERANCE)
