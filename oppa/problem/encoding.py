"""Encode configurations as points of the unit cube (OPPA section 4.1: e(H), each hyperparameter scaled by its feasible values).

Notation (n candidates, p columns):
    log2       degrees and sizes: a doubling is the same distance everywhere
    ordinal    stages and levels: equal distances in the order of the space file
    one-hot    kinds without an order: a corner for each

The search space declares the scale of a parameter, or its values imply it (`Parameter.scale`).
"""

import numpy as np
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.problem.space import Parameter


def encode(candidates: Candidates) -> NDArray[np.float64]:
    """Return all candidates as points in [0, 1]^p, shape (n, p).

    Different candidates have different points. A parameter that never varies has no column.
    """
    scales = _scales(candidates)
    points = np.empty((len(candidates), len(scales)))
    for column, (name, _, scale) in enumerate(scales):
        points[:, column] = scale[candidates.codes[name]]
    return points


def column_names(candidates: Candidates) -> list[str]:
    """Return the names of the columns of `encode`: `tp`, or `schedule=gpipe`."""
    return [label for _, label, _ in _scales(candidates)]


def _scales(candidates: Candidates) -> list[tuple[str, str, NDArray[np.float64]]]:
    """Return each column's parameter, label, and coordinates of all codes."""
    return [(parameter.name, *scale) for parameter in candidates.space.parameters for scale in _scales_of(parameter, candidates)]


def _scales_of(parameter: Parameter, candidates: Candidates) -> list[tuple[str, NDArray[np.float64]]]:
    codes = np.flatnonzero(np.bincount(candidates.codes[parameter.name], minlength=len(parameter.values)))
    if len(codes) < 2:
        return []
    if parameter.scale == "one-hot":
        corners = np.eye(len(parameter.values))
        return [(f"{parameter.name}={parameter.values[code]}", corners[code]) for code in codes]
    if parameter.scale == "ordinal":
        steps = np.arange(len(parameter.values), dtype=np.float64)
    else:
        steps = np.log2(np.array(parameter.values, dtype=np.float64))
    return [(parameter.name, np.clip((steps - steps[codes[0]]) / (steps[codes[-1]] - steps[codes[0]]), 0, 1))]
