"""Find the coefficient whose change explains a measurement: of all that can, the one that moves by the fewest of its spreads."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from oppa.cost.beliefs import Beliefs
from oppa.cost.coefficients import Coefficients
from oppa.cost.workload import Workload

FURTHEST = 4.0
"""Spreads by which a coefficient may move; further away, it explains nothing."""
POINTS = 401


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Describes the change of one coefficient that makes a prediction equal to a measurement."""

    name: str
    what: str
    """The meaning of the coefficient, in words."""
    present: float
    needed: float
    spreads: float
    """Distance from the present to the needed value, in standard deviations of the logarithm."""
    file: str
    """File that declares the coefficient."""
    declared: float
    """The median in this file."""
    source: str


def correction(
    formula: Callable[[Workload, Coefficients], Tensor],
    work: Workload,
    beliefs: Beliefs,
    present: Coefficients,
    measured: float,
    *,
    files: Mapping[str, str],
) -> Correction | None:
    """Return the smallest change of one coefficient by which the formula gives the measured value; None if there is none.

    Args:
        formula: Computes the step time or the memory.
        work: One configuration.
        beliefs: The coefficients of the formula.
        present: Their present values.
        measured: Measured seconds or bytes.
        files: The file that declares each coefficient.
    """
    moves = {name: _move(formula, work, present, name, belief.spread, measured) for name, belief in beliefs.items()}
    if not moves or not math.isfinite(moves[name := min(moves, key=lambda each: abs(moves[each]))]):
        return None
    belief = beliefs[name]
    return Correction(
        name=name,
        what=belief.what,
        present=float(present[name]),
        needed=float(present[name]) * math.exp(belief.spread * moves[name]),
        spreads=abs(moves[name]),
        file=files[name],
        declared=belief.median,
        source=belief.source,
    )


def _move(
    formula: Callable[[Workload, Coefficients], Tensor],
    work: Workload,
    present: Coefficients,
    name: str,
    spread: float,
    measured: float,
) -> float:
    """Return the signed number of spreads by which one coefficient has to move; infinity if no value within FURTHEST suffices."""
    shifts = torch.linspace(-FURTHEST, FURTHEST, POINTS, dtype=torch.float64)
    c = {**present, name: present[name] * (spread * shifts).exp()}
    gaps = (formula(work.take(torch.zeros(POINTS, dtype=torch.long)), c) / measured).log()
    left, right = gaps[:-1], gaps[1:]
    crossing = (left * right <= 0) & (left != right)
    if not crossing.any():
        return math.inf
    zeros = (shifts[:-1] + (shifts[1] - shifts[0]) * left / (left - right))[crossing]
    return float(zeros[zeros.abs().argmin()])
