"""Derive the throughput of a run's configurations from its step times, to refine the table from which they were chosen."""

from collections.abc import Iterable, Iterator

from oppa.problem.configuration import Configuration
from oppa.table.refinement import StepTimeObservation
from oppa.training.run import ledger
from oppa.training.run.ledger import Line

WARM_UP = 1
"""Steps after a start or a change that are not counted, as in a trial, because they create buffers and connections."""


def observations(lines: Iterable[Line]) -> list[StepTimeObservation]:
    """Return one observation for each segment of a ledger in one configuration that has two or more counted steps."""
    counted = ((configuration, times_s[WARM_UP:]) for configuration, times_s in _segments(lines))
    return [StepTimeObservation.of(configuration, times_s) for configuration, times_s in counted if len(times_s) > 1]


def _measures(step: Line, present: Configuration) -> bool:
    """Return True if a step tells the speed of its configuration: one with local batches, or a micro-batch taken in two, does not."""
    is_in_two = present.has_one_micro_batch and step.get("variance_ratio") is not None
    return not step.get("local_batches") and not is_in_two


def _segments(lines: Iterable[Line]) -> Iterator[tuple[Configuration, list[float]]]:
    """Yield the configuration of each segment, in order, and its step times."""
    present, times_s = None, list[float]()
    for line in lines:
        if line["event"] == ledger.STEP:
            if present is not None and _measures(line, present):
                times_s.append(line["step_time_s"])
        elif line["event"] in (ledger.STARTED, ledger.CHANGED, ledger.ROLLED_BACK):
            if present is not None:
                yield present, times_s
            present = Configuration.from_dict(line["configuration"] if line["event"] == ledger.STARTED else line["after"])
            times_s = []
    if present is not None:
        yield present, times_s
