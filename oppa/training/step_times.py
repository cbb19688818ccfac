"""What the steps of a run say of the throughput of its configurations, for the table that they were chosen from."""

from collections.abc import Iterable, Iterator

from oppa.problem.configuration import Configuration
from oppa.table.refinement import Observation
from oppa.training import ledger
from oppa.training.ledger import Line

WARM_UP = 1
"""Steps behind a start or a change that are not counted, as in a trial: buffers and connections are made in them."""


def observations(lines: Iterable[Line]) -> list[Observation]:
    """One for each stretch of steps in one configuration that is long enough to say anything, from a ledger's lines."""
    counted = ((configuration, times_s[WARM_UP:]) for configuration, times_s in _stretches(lines))
    return [Observation.of(configuration, times_s) for configuration, times_s in counted if len(times_s) > 1]


def _stretches(lines: Iterable[Line]) -> Iterator[tuple[Configuration, list[float]]]:
    """Configurations, in the order in which they were trained in, and the step times of each."""
    present, times_s = None, list[float]()
    for line in lines:
        if line["event"] == ledger.STEP and not line.get("local_batches"):  # these say nothing of a configuration
            times_s.append(line["step_time_s"])
        elif line["event"] in (ledger.STARTED, ledger.CHANGED, ledger.ROLLED_BACK):
            if present is not None:
                yield present, times_s
            present = Configuration.from_dict(line["configuration"] if line["event"] == ledger.STARTED else line["after"])
            times_s = []
    if present is not None:
        yield present, times_s
