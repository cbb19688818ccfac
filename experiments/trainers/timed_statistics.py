"""Gradient statistics that read the clocks when each step begins, for a comparison of measured steps with the others."""

import dataclasses
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from oppa.training import GradientStatistics

LONGEST_RUN = 9
"""Steps that are measured in a row before one is left out, if all are cheap enough: without others there is no comparison."""


class TimedStatistics(GradientStatistics):
    """Chooses the measured steps as always, but never more than LONGEST_RUN in a row."""

    begins: ClassVar[list[tuple[float, float]]] = []
    """CPU seconds and seconds of the wall clock at the beginning of each step."""
    measured: ClassVar[list[bool]] = []
    """States for each step if it was measured."""

    def begin(self, plan: Any, replicas: int) -> Any:
        """Begin a step, whose plan is that of a trial; return the plan that states its micro-batches."""
        self.begins.append((time.process_time(), time.perf_counter()))
        taken = super().begin(dataclasses.replace(plan, statistics_every=None), replicas)
        if self.measured[-LONGEST_RUN:] == [True] * LONGEST_RUN:
            self.pause()
        self.measured.append(not self.paused)
        return taken


def write_times() -> None:
    """Write the seconds of this rank's steps but the last into a file of the trial's folder, and which of them were measured."""
    steps = [(after[0] - begin[0], after[1] - begin[1]) for begin, after in itertools.pairwise(TimedStatistics.begins)]
    found = {"cpu": [cpu for cpu, _ in steps], "wall": [wall for _, wall in steps], "measured": TimedStatistics.measured[:-1]}
    Path(os.environ["OPPA_TRIAL"], f"times-{os.environ['RANK']}.json").write_text(json.dumps(found))
