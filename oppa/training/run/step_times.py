"""Derive the throughput of a run's configurations from its step times, to refine the table from which they were chosen."""

from collections.abc import Iterable, Iterator

from oppa.problem.configuration import Configuration
from oppa.table.refinement import StepTimeObservation
from oppa.training.run import ledger
from oppa.training.run.ledger import Line

WARM_UP = 1
"""Steps after a start or a change that are not counted, as in a trial, because they create buffers and connections."""


def observations(lines: Iterable[Line]) -> list[StepTimeObservation]:
    """Return one observation for each segment of a ledger in one configuration that has two or more counted steps.

    A single micro-batch that was taken in two to be measured took longer. Such steps count only if there are no others.
    """
    found = []
    for configuration, steps in _segments(lines):
        counted = steps[WARM_UP:]
        plain = [step for step in counted if not (configuration.has_one_micro_batch and step.get("variance_ratio") is not None)]
        times_s = [step["step_time_s"] for step in (plain if len(plain) > 1 else counted)]
        if len(times_s) > 1:
            found.append(StepTimeObservation.of(configuration, times_s))
    return found


def _segments(lines: Iterable[Line]) -> Iterator[tuple[Configuration, list[Line]]]:
    """Yield the configuration of each segment, in order, and its steps; those with local batches do not measure a configuration."""
    present, steps = None, list[Line]()
    for line in lines:
        if line["event"] == ledger.STEP and not line.get("local_batches"):
            steps.append(line)
        elif line["event"] in (ledger.STARTED, ledger.CHANGED, ledger.ROLLED_BACK):
            if present is not None:
                yield present, steps
            present = Configuration.from_dict(line["configuration"] if line["event"] == ledger.STARTED else line["after"])
            steps = []
    if present is not None:
        yield present, steps
