"""Measure how unlike two jobs on one device are, as the variance by which their coefficients of the cost model differ.

A coefficient has its value in each job. Jobs that have nothing in common draw it twice from its prior, so its logarithms differ by twice
the prior's variance. Another framework, or another precision, counts as one such draw. Sizes differ by degrees: as in a random walk, each
doubling adds the same variance. The widest range of sizes within one source of the prior counts as one draw.
"""

import dataclasses
import math
from typing import Self

from oppa.cost.beliefs import framework_of
from oppa.problem.problem import Problem

MODEL_DOUBLINGS = 9.0
"""Doublings of model size within the runs of llm-foundry, the widest range of one source: 125 million to 70 billion parameters."""
CLUSTER_DOUBLINGS = 6.0
"""Doublings of cluster size within the runs of nanotron: 8 to 512 devices, on 1 to 64 hosts."""
DRAWS = 2.0
"""Variance by which two independent draws of a coefficient differ, in variances of its prior."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """States how two jobs on one device differ."""

    framework: bool
    """They train with different frameworks."""
    precision: bool
    model_doublings: float
    """Doublings of the number of weights between their models."""
    cluster_doublings: float
    """Doublings of devices or of hosts between their clusters, whichever are more."""

    @classmethod
    def between(cls, one: Problem, other: Problem) -> Self:
        """Return the distance of two jobs; raises JobError if one states no model."""
        sizes = [each.model.layers_parameter_count for each in (one, other)]
        clusters = one.cluster, other.cluster
        return cls(
            framework=framework_of(one) != framework_of(other),
            precision=one.training.precision != other.training.precision,
            model_doublings=_doublings(*sizes),
            cluster_doublings=max(_doublings(*(c.devices for c in clusters)), _doublings(*(c.hosts for c in clusters))),
        )

    @property
    def variance(self) -> float:
        """Return the variance by which a coefficient differs between the jobs, in variances of its prior; 0 for like jobs."""
        degrees = self.model_doublings / MODEL_DOUBLINGS + self.cluster_doublings / CLUSTER_DOUBLINGS
        return DRAWS * (self.framework + self.precision + degrees)

    @property
    def likeness(self) -> float:
        """Return the share of a well-known coefficient's deviation from its prior that the other job takes over: 1 for like jobs."""
        return 1 / (1 + self.variance)

    @property
    def differences(self) -> list[str]:
        """Return the differences in words."""
        named = {"another framework": self.framework, "another precision": self.precision}
        sizes = {"model": self.model_doublings, "cluster": self.cluster_doublings}
        return [name for name, differs in named.items() if differs] + [
            f"{name} size {2**doublings:.3g}x" for name, doublings in sizes.items() if doublings
        ]


def _doublings(one: float, other: float) -> float:
    return abs(math.log2(one / other))
