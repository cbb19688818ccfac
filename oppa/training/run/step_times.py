"""Derive the throughput of a run's configurations from its step times, to refine the table from which they were chosen."""

from array import array
from collections.abc import Iterable, Sequence

from oppa.problem.configuration import Configuration
from oppa.table.refinement import StepTimeObservation, with_common_variance
from oppa.training.run import ledger
from oppa.training.run.ledger import Line

WARM_UP = 1
"""Steps after a start or a change that are not counted, as in a trial, because they create buffers and connections."""

_SEARCHED = {ledger.REORDERED: WARM_UP + 1, ledger.ORDER_TAKEN_UP: WARM_UP}
"""Steps after each event of a schedule that are not counted. A new schedule is used only after the next step."""


def observations(lines: Iterable[Line]) -> list[StepTimeObservation]:
    """Return one observation for each segment of a ledger in one configuration that has two or more counted steps.

    A single micro-batch that was taken in two to be measured took longer. Such steps count only if there are no others. If a schedule was
    found for a configuration, its steps before that do not count.
    """
    segments = _segments(lines)
    return with_common_variance(StepTimeObservation.of(each.configuration, each.times_s) for each in segments if len(each.times_s) > 1)


class _Segment:
    """Keeps the step times of a segment after its warm-up, but nothing else: a run takes millions of steps."""

    def __init__(self, configuration: Configuration, *, skip: int = WARM_UP, is_searched: bool = False) -> None:
        self.configuration, self._skip, self.is_searched = configuration, skip, is_searched
        self._all_s, self._plain_s = array("d"), array("d")

    def took(self, step: Line) -> None:
        """Count a step."""
        if self._skip:
            self._skip -= 1
            return
        self._all_s.append(step["step_time_s"])
        if not (self.configuration.has_one_micro_batch and step.get("variance_ratio") is not None):
            self._plain_s.append(step["step_time_s"])

    @property
    def times_s(self) -> Sequence[float]:
        """Return the seconds of the steps that count."""
        return self._plain_s if len(self._plain_s) > 1 else self._all_s


def _segments(lines: Iterable[Line]) -> list[_Segment]:
    """Return the segments in order; steps with local batches do not measure a configuration."""
    found = list[_Segment]()
    for line in lines:
        if line["event"] == ledger.STEP and not line.get("local_batches") and found:
            found[-1].took(line)
        elif line["event"] in (ledger.STARTED, ledger.CHANGED, ledger.ROLLED_BACK):
            found.append(_Segment(Configuration.from_dict(line["configuration"] if line["event"] == ledger.STARTED else line["after"])))
        elif line["event"] in _SEARCHED and found:
            present = found[-1].configuration
            found = [each for each in found if each.is_searched or each.configuration != present]
            found.append(_Segment(present, skip=_SEARCHED[line["event"]], is_searched=True))
    return found
