"""Define what `oppa predict` returns: the configurations of a job, ranked by the prior."""

import dataclasses
from typing import TYPE_CHECKING

from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem

if TYPE_CHECKING:  # it is slow to import
    import pandas as pd


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictedConfiguration:
    """Holds a configuration and the prior's prediction for it."""

    configuration: Configuration
    step_time_s: float
    memory_bytes: int
    """Bytes on the fullest device."""
    fits: bool
    """True if these bytes fit into a device."""
    step_time_interval_s: tuple[float, float]
    """Ends of the interval that holds the step time with a probability of 90%."""
    memory_interval_bytes: tuple[int, int]
    """Ends of the same interval of the memory."""
    probability_fits: float

    @property
    def steps_per_s(self) -> float:
        """Return the predicted throughput, in steps per second."""
        return 1 / self.step_time_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictResult:
    """Ranks the configurations of a job by the prior: first those that fit, the fastest of them first."""

    problem: Problem
    candidates: Candidates
    frame: "pd.DataFrame"
    """A row per configuration, in this order; its index is the number of the candidate."""

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, rank: int) -> PredictedConfiguration:
        row = self.frame.iloc[rank]
        return PredictedConfiguration(
            configuration=self.candidates.configuration(int(self.frame.index[rank])),
            step_time_s=float(row["predicted_step_time_s"]),
            memory_bytes=int(row["predicted_memory_bytes"]),
            fits=bool(row["fits"]),
            step_time_interval_s=(float(row["predicted_step_time_low_s"]), float(row["predicted_step_time_high_s"])),
            memory_interval_bytes=(int(row["predicted_memory_low_bytes"]), int(row["predicted_memory_high_bytes"])),
            probability_fits=float(row["probability_fits"]),
        )
