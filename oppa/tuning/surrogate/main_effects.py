"""Extend a prior mean by the main effects of parameters that no formula covers: a factor for each of their values.

    log y = mean + sum over parameters of spread * shift[value]

Each factor is integrated out like a coefficient of the cost model. So what one trial teaches about a value counts for all candidates with
that value. The residual's kernel adds what neighbouring values share, and how parameters interact.
"""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from oppa.cost.coefficients import Belief
from oppa.problem.candidates import Candidates
from oppa.problem.space import Parameter
from oppa.tuning.surrogate.cost_model import MeanFunction

RATE_SPREAD, MEMORY_SPREAD = 0.3, 0.1
"""Standard deviations of the logarithm of a value's factor on throughput, a third more or less, and on memory."""
MOST_VALUES = 16
"""Most values of a parameter that gets main effects; with more, neighbours teach more than the value itself."""


class MainEffects:
    """Models a quantity by another prior mean, and a factor for each value of some parameters."""

    def __init__(self, mean: MeanFunction, candidates: Candidates, parameters: Collection[Parameter], *, spread: float) -> None:
        """Extend a prior mean.

        Args:
            mean: The prior mean without the effects, all N candidates.
            candidates: The N candidates.
            parameters: Those whose values get factors.
            spread: Standard deviation of the logarithm of a factor.
        """
        self._mean, self._known, self._spread = mean, len(mean.names), spread
        columns, names = [torch.zeros((len(candidates), 0), dtype=torch.float64)], []
        for parameter in parameters:
            taken, level = np.unique(candidates.codes[parameter.name], return_inverse=True)
            columns.append(torch.nn.functional.one_hot(torch.from_numpy(level), len(taken)).double())
            names += [f"{parameter.name}={parameter.values[code]}" for code in taken]
        self._slopes = spread * torch.cat(columns, dim=1)
        factor = Belief(median=1.0, spread=spread, what="factor of this value", source="the effect of a value that no formula contains")
        self.beliefs: Mapping[str, Belief] = {**mean.beliefs, **dict.fromkeys(names, factor)}
        self.names = tuple(self.beliefs)

    def coefficients(self, shift: Tensor) -> dict[str, float]:
        """Return the values of the coefficients at a shift, the factors last."""
        factors = (self._spread * shift[self._known :]).exp().tolist()
        return self._mean.coefficients(shift[: self._known]) | dict(zip(self.names[self._known :], factors, strict=True))

    def at(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the value at candidates, by number, shape (n,). The shift is common to all, or each has its own, shape (n, k)."""
        return self._mean.at(shift[..., : self._known], rows) + (self._slopes[rows] * shift[..., self._known :]).sum(dim=1)

    def linearised(self, shift: Tensor, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the value and the slopes at candidates, by number, shapes (n,) and (n, k)."""
        value, slopes = self._mean.linearised(shift[: self._known], rows)
        return value + self._slopes[rows] @ shift[self._known :], torch.cat([slopes, self._slopes[rows]], dim=1)


def with_effects(mean: MeanFunction, candidates: Candidates, parameters: Collection[Parameter], *, spread: float) -> MeanFunction:
    """Return the prior mean with main effects of these parameters; the mean itself if there are none."""
    return MainEffects(mean, candidates, parameters, spread=spread) if parameters else mean


def varying(candidates: Candidates) -> list[Parameter]:
    """Return the parameters that vary and whose values can have factors."""
    counted = ((known, len(np.unique(candidates.codes[known.name]))) for known in candidates.space.parameters)
    return [known for known, count in counted if 1 < count <= MOST_VALUES]


def varying_extras(candidates: Candidates, known: Collection[str] = ()) -> list[Parameter]:
    """Return the extra parameters among them that the cost model does not read.

    Args:
        known: Names of extra parameters that the cost model reads.
    """
    return [parameter for parameter in varying(candidates) if parameter.is_extra and parameter.name not in known]
