"""Gradient clipping: as torch does it on one process, and the same under every layout."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from oppa.problem.configuration import Configuration
from oppa.training.parallel.clipping import Clipping
from tests.training.conftest import Trials
from tests.training.test_families import FAMILIES

SGD = {"optimizer": "sgd", "learning_rate": 0.3}
"""To Adam a norm means little."""
CLIPPED = {**SGD, "gradient_clipping": 0.3}
"""Less than the norm of any step."""
TOLERANCE = 1e-5
"""As in test_layouts; relative."""


def configured(**values: object) -> Configuration:
    return Configuration(**{"dp": 1, "global_batch": 8, "micro_batch": 1, **values})  # type: ignore[arg-type]


def alone(most: float, model: torch.nn.Module) -> Clipping:
    axis = SimpleNamespace(size=1, group=None)
    mesh = SimpleNamespace(device=torch.device("cpu"), world=1, dp=axis, tp=axis, pp=axis, ep=axis, expert_dp=axis)
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


LAYOUTS = [
    *({"dp": 2, "zero_stage": stage} for stage in range(4)),
    {"pp": 2, "schedule": "zb-v", "model_chunks": 2},
    {"dp": 2, "pp": 2, "zero_stage": 2},
    {"dp": 2, "pp": 2, "zero_stage": 1, "schedule": "search"},
]


@pytest.mark.slow
@pytest.mark.parametrize("values", LAYOUTS, ids=lambda values: configured(**values).id)
@pytest.mark.parametrize("family", ["tied", "own"])
def test_every_layout_clips_alike(values: dict[str, object], family: str, trials: Trials) -> None:
    model = dataclasses.replace(FAMILIES[family], layers=4)
    one = trials(configured(micro_batch=8), model, **CLIPPED).losses
    assert trials(configured(**values), model, **CLIPPED).losses == pytest.approx(one, rel=TOLERANCE)
    assert trials(configured(micro_batch=8), model, **SGD).losses[-1] != pytest.approx(one[-1], rel=10 * TOLERANCE), "it does clip"


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", [{"tp": 2}, {"dp": 2, "tp": 2, "zero_stage": 3}, {"tp": 2, "pp": 2}], ids=lambda values: configured(**values).id
)
def test_so_do_tensor_parallel_ranks(values: dict[str, object], trials: Trials) -> None:
    one = trials(configured(), FAMILIES["tied"], **CLIPPED).losses
    assert trials(configured(**values), FAMILIES["tied"], **CLIPPED).losses == pytest.approx(one, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("values", [{"dp": 2, "ep": 2}, {"dp": 4, "ep": 2, "zero_stage": 2}], ids=lambda values: configured(**values).id)
def test_so_do_ranks_that_share_experts(values: dict[str, object], trials: Trials) -> None:
    one = trials(configured(micro_batch=8), FAMILIES["mixture"], **CLIPPED).losses
    assert trials(configured(**values, micro_batch=2), FAMILIES["mixture"], **CLIPPED).losses == pytest.approx(one, rel=TOLERANCE)
