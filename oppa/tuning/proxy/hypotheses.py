"""State what the smaller size cannot show: whether hosts of the full size stall."""

from oppa.cost.step_time import stalled_probability, without_stalls
from oppa.cost.workload import Workload


def hypotheses(work: Workload) -> list[Workload]:
    """Return the work on hosts that stall as recorded of the framework, and on hosts that do not; once if it has no stalls."""
    return [work, without_stalls(work)] if stalled_probability(work).any() else [work]
