"""The coefficient that explains a measurement: the one that moves by the fewest of its spreads."""

import pytest
import torch

from oppa.cost.beliefs import beliefs_of
from oppa.cost.coefficients import Belief, medians
from oppa.cost.correction import correction
from oppa.cost.hardware import load_hardware
from oppa.cost.memory import memory
from oppa.cost.step_time import step_time
from tests.cost.conftest import work_of

SURE, UNSURE = (Belief(median=2.0, spread=spread, source="s") for spread in (0.1, 0.5))
FILES = {"sure": "a.toml", "unsure": "b.toml"}


def explained(formula, measured, **beliefs):
    return correction(formula, work_of({}), beliefs, medians(beliefs), measured, files=FILES)


def product(work, c):
    return (c["sure"] * c["unsure"]).expand(len(work))


def test_the_least_certain_of_two_equal_coefficients_is_named() -> None:
    found = explained(product, 8.0, sure=SURE, unsure=UNSURE)
    assert (found.name, found.file, found.present, found.declared) == ("unsure", "b.toml", 2.0, 2.0)
    assert found.needed == pytest.approx(4.0, rel=1e-3) and found.spreads == pytest.approx(1.386, rel=1e-3)


def test_too_far_a_change_explains_nothing() -> None:
    assert explained(product, 1e9, sure=SURE, unsure=UNSURE) is None
    assert explained(lambda work, c: torch.full((len(work),), 4.0), 8.0, sure=SURE) is None


@pytest.mark.parametrize(("formula", "position"), [(step_time, 0), (memory, 1)])
@pytest.mark.parametrize("factor", [0.97, 1.3])
def test_the_formula_gives_the_measurement_with_the_change(formula, position, factor) -> None:
    beliefs, work = beliefs_of(load_hardware("H100"))[position], work_of({})
    present = medians(beliefs)
    measured = factor * float(formula(work, present))
    found = correction(formula, work, beliefs, present, measured, files=dict.fromkeys(beliefs, "f"))
    changed = {**present, found.name: torch.tensor(found.needed, dtype=torch.float64)}
    assert float(formula(work, changed)) == pytest.approx(measured, rel=1e-3)
