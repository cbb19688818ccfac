"""The desired state of an elastic job, and what its starts and the scheduler's refusals have shown."""

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Any, Self

from oppa.units import with_noun

FRUITLESS = 3
"""Consecutive starts without a step after which a number of hosts is given up."""
FIRST_DELAY_S, LONGEST_DELAY_S = 60.0, 3600.0
"""Seconds after the first refusal of a number of hosts until it is requested again, which double with each further one, and their limit."""
STARTS = 5
"""Number of last starts whose median cost counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Records that the scheduler did not grant a number of hosts."""

    times: int
    """Consecutive refusals."""
    at: float
    """Unix time of the last one."""
    why: str = ""

    def delay_s(self, now: float) -> float:
        """Return the seconds until the hosts may be requested again; 0 if they may be now, or the clock has stepped back."""
        passed_s = now - self.at
        delay_s = min(FIRST_DELAY_S * 2.0 ** min(self.times - 1, 20), LONGEST_DELAY_S)
        return max(0.0, delay_s - passed_s) if passed_s >= 0 else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class DesiredState:
    """Holds the desired state of a job, and the result of its starts so far."""

    hosts: int
    """Number of hosts from the next start on."""
    failed_starts: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Consecutive starts without a step, by number of hosts."""
    start_s: float | None = None
    """Median cost of the last starts, in seconds; None if unknown."""
    launches: int = 0
    """Number of launches of a supervisor."""
    launched_at: float = 0.0
    """Unix time of the last launch."""
    learned: int = -1
    """Number of launches at which a result was last recorded."""
    refusals: Mapping[int, Refusal] = dataclasses.field(default_factory=dict)
    """Refusals of the scheduler, by the least number of hosts that they concern."""
    starts: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Costs of the last starts in seconds, by the size of the ledger before each."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the state of a JSON object; raises ValueError, KeyError, TypeError or AttributeError if it is damaged."""
        return cls(
            hosts=int(values["hosts"]),
            failed_starts={int(hosts): int(starts) for hosts, starts in values.get("failed_starts", values.get("vain", {})).items()},
            start_s=finite(values["start_s"]) if values["start_s"] is not None else None,
            launches=int(values["launches"]),
            launched_at=finite(values["launched_at"]),
            learned=int(values.get("learned", -1)),
            refusals={
                int(hosts): Refusal(int(each["times"]), finite(each["at"]), str(each["why"]))
                for hosts, each in values.get("refusals", {}).items()
            },
            starts={int(size): finite(cost) for size, cost in values.get("starts", {}).items()},
        )

    def keeps_failing(self, hosts: int) -> bool:
        """Return True if too many starts on this number of hosts have failed."""
        return self.failed_starts.get(hosts, 0) >= FRUITLESS

    def delay_s(self, hosts: int, now: float) -> float:
        """Return the seconds until this number of hosts may be requested; 0 if it may be now."""
        return max((each.delay_s(now) for least, each in self.refusals.items() if least <= hosts), default=0.0)

    def put_off(self, now: float) -> str:
        """Return which hosts the scheduler has refused, why, and for how long none are requested; empty if none are put off."""
        least, refusal = max(self.refusals.items(), key=lambda each: each[1].delay_s(now), default=(0, Refusal(0, 0.0)))
        if not (delay_s := refusal.delay_s(now)):
            return ""
        refused = f"a request for {with_noun(least, 'host')} or more was not granted ({refusal.why})"
        return f"{refused}; the next try follows in {math.ceil(delay_s / 60)} min"

    def refused(self, least: int, why: str, now: float) -> dict[int, Refusal]:
        """Return the refusals after a further one, which concerns all numbers of hosts from `least` on."""
        before = self.refusals.get(least)
        return {**self.refusals, least: Refusal(before.times + 1 if before else 1, now, why)}

    def granted(self, hosts: int) -> dict[int, Refusal]:
        """Return the refusals that remain after this number of hosts was granted."""
        return {least: each for least, each in self.refusals.items() if least > hosts}

    def with_start(self, size: int, cost_s: float) -> dict[str, Any]:
        """Return the fields that change by a start which cost so many seconds."""
        starts = dict(sorted({**self.starts, size: cost_s}.items())[-STARTS:])
        return {"starts": starts, "start_s": statistics.median_low(starts.values())}


def finite(value: Any) -> float:
    """Return a number; raises ValueError if it is not finite."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"`{value}` is not finite")
    return number
