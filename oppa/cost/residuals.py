"""State the errors of the cost model's formulas that no coefficient explains."""

from collections.abc import Callable

from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.workload import Workload

TIME_RESIDUAL, MEMORY_RESIDUAL = 0.1, 0.05
"""Standard deviations of logarithms."""
Formula = Callable[[Workload, Coefficients], Tensor]
