"""Detect a rank that never ends a step, because the program calls `run.step` on rank 0 alone, and one that counts other samples.

The first would train on the samples of its first step again and again, and the second on other ones than its share.
"""

from __future__ import annotations

import json
from pathlib import Path

from oppa_client.run_files import MEASUREMENTS, ContractError

READS = 64
"""Reads of `run.leaving` within one step after which another rank compares its step with that of rank 0; a loop reads it once a step."""
TAIL_BYTES = 1 << 13
"""Bytes at the end of the reports that hold the last two lines."""


class RankCheck:
    """Compares the step of a rank with that of rank 0, which cannot be further than `lead` steps ahead."""

    def __init__(self, folder: Path, rank: int, *, lead: int) -> None:
        self._folder, self._rank, self._lead = folder, rank, lead
        self._step, self._reads = -1, 0
        self._odd: tuple[int, int] | None = None
        """Last step and its samples, if they are not those of the plan."""

    def begun(self, step: int) -> None:
        """Count that the rank begins a step, or asks whether to; raise ContractError if rank 0 is too far ahead."""
        self._step, self._reads = step, self._reads + 1 if step == self._step else 1
        last = max(self._reported(), default=-1) if self._rank and self._reads % READS == 0 else -1
        if last > step + self._lead:
            message = f"rank {self._rank} is at step {step}, but rank 0 has ended step {last}"
            raise ContractError(f"{message}: call `run.step` on every rank, after each optimizer step")

    def ended(self, step: int, samples: int, planned: int) -> None:
        """Raise ContractError if the rank has counted other samples than rank 0 in a step before: it takes others from then on.

        Rank 0 has reported that step by now. What it counts is compared with the plan by oppa.
        """
        odd, self._odd = self._odd, (step, samples) if samples != planned else None
        first = self._reported().get(odd[0]) if self._rank and odd else None
        if odd and first not in (None, odd[1]):
            message = f"rank {self._rank} counted {odd[1]} samples in step {odd[0]}, but rank 0 counted {first}"
            raise ContractError(f"{message}: state those of all ranks together on each rank, as an all-reduce sums them")

    def _reported(self) -> dict[int, int]:
        """Return the samples of the last two steps that rank 0 has reported, by their numbers; none if they cannot be read now."""
        try:
            with (self._folder / MEASUREMENTS).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                lines = [json.loads(line) for line in file.read().split(b"\n")[-3:-1]]
            return {int(line["step"]): int(line["samples"]) for line in lines}
        except (OSError, ValueError, LookupError):
            return {}
