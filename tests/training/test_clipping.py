"""Gradient clipping: as torch does it on one process, and the same under every layout."""

import functools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from oppa.problem.configuration import Configuration
from oppa.training.parallel.clipping import Clipping
from tests.sampling import sampled
from tests.training.families import FAMILIES, TOLERANCE, apart, kinds
from tests.training.rank_pool import RankPool

SGD = {"optimizer": "sgd", "learning_rate": 0.3}
"""AdamW is almost invariant to the scale of gradients, so SGD shows the clipping."""
CLIPPED = {**SGD, "gradient_clipping": 0.3}
"""Less than the norm of any step."""


def configured(**values: object) -> Configuration:
    return Configuration(**{"dp": 1, "global_batch": 8, "micro_batch": 1, **values})  # type: ignore[arg-type]


def alone(most: float, model: torch.nn.Module) -> Clipping:
    axis = SimpleNamespace(size=1, index=0, group=None)
    axes = dict.fromkeys(("dp", "tp", "pp", "cp", "replicas", "shard", "copies", "ep", "expert_dp"), axis)
    mesh = SimpleNamespace(device=torch.device("cpu"), world=1, **axes)
    return Clipping([model], mesh, tied=False, most=most)  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [0.1, 1e3])
def test_it_is_what_torch_does(most: float) -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    inputs = torch.randn(4, 5)
    for model in (ours, theirs):
        model(inputs).square().sum().backward()
    assert alone(most, ours).clip()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), most)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_norm_that_is_no_number_changes_nothing(wrong: float) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[1.0, wrong]])
    assert not alone(0.1, model).clip()
    assert float(model.weight.grad[0, 0]) == 1.0


Reference = Callable[[str, int], list[float]]


@pytest.fixture(scope="module")
def clipped_alone(pool: RankPool) -> Reference:
    """Return the losses of a family's model on one rank, by its micro-batch."""
    return functools.cache(lambda family, micro_batch: pool.losses(configured(micro_batch=micro_batch), FAMILIES[family], **CLIPPED))


@pytest.mark.parametrize("family", ["tied", "own", "mixture"])
def test_it_does_clip(family: str, pool: RankPool, clipped_alone: Reference) -> None:
    free = pool.losses(configured(micro_batch=8), FAMILIES[family], **SGD)
    assert free[-1] != pytest.approx(clipped_alone(family, 8)[-1], rel=10 * TOLERANCE)


LAYOUTS = [
    *({"dp": 2, "zero_stage": stage} for stage in range(4)),
    {"pp": 2, "schedule": "zb-v", "model_chunks": 2},
    {"dp": 2, "pp": 2, "zero_stage": 2},
    {"dp": 2, "pp": 2, "zero_stage": 1, "schedule": "search"},
]
CASES = [
    *((family, 8, values) for family in ("tied", "own") for values in LAYOUTS),
    *(("tied", 1, values) for values in ({"tp": 2}, {"dp": 2, "tp": 2, "zero_stage": 3}, {"tp": 2, "pp": 2})),
    *(("mixture", 8, {**values, "micro_batch": 2}) for values in ({"dp": 2, "ep": 2}, {"dp": 4, "ep": 2, "zero_stage": 2})),
]


def shown(family: str, _: int, values: dict[str, object]) -> set[object]:
    return {family, *apart(values)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "micro_batch", "values"),
    sampled(CASES, shown, quick=lambda _, __, values: kinds(values)),
    ids=lambda part: configured(**part).id if isinstance(part, dict) else str(part),
)
def test_every_layout_clips_alike(
    family: str, micro_batch: int, values: dict[str, object], pool: RankPool, clipped_alone: Reference
) -> None:
    one = clipped_alone(family, micro_batch)
    assert pool.losses(configured(**values), FAMILIES[family], **CLIPPED) == pytest.approx(one, rel=TOLERANCE)
