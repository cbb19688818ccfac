"""Define what a search maximises: the throughput of a job, or a number that its program prints."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Describes the objective. A trial stores a rate, of which more is better: the objective, or its reciprocal if lower is better."""

    unit: str = "steps/s"
    better: Literal["higher", "lower"] = "higher"
    is_throughput: bool = True

    def of(self, rate: float) -> float:
        """Return the objective, in its unit, of a trial's rate."""
        return rate if self.better == "higher" else 1 / rate

    def stddev_of(self, rate: float, stddev: float) -> float:
        """Return the standard deviation of the objective, in its unit, from that of the rate (delta method)."""
        return stddev if self.better == "higher" else stddev / rate**2

    @property
    def rate_unit(self) -> str:
        """Return the unit of rates, as axes and columns have it."""
        return self.unit if self.better == "higher" else f"1/{self.unit}" if self.unit.isalnum() else f"1/({self.unit})"

    def to_dict(self) -> dict[str, str]:
        """Return JSON values."""
        return {"unit": self.unit, "better": self.better}
