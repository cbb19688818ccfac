"""Detect a rank that never ends a step, because the program calls `run.step` on rank 0 alone.

Such a rank would train on the samples of its first step again and again.
"""

from __future__ import annotations

import json
from pathlib import Path

from oppa_client.run_files import MEASUREMENTS, ContractError

READS = 64
"""Reads of `run.leaving` within one step after which another rank compares its step with that of rank 0; a loop reads it once a step."""
TAIL_BYTES = 1 << 13
"""Bytes at the end of the reports that hold the last line."""


class RankCheck:
    """Compares the step of a rank with that of rank 0, which cannot be further than `lead` steps ahead."""

    def __init__(self, folder: Path, rank: int, *, lead: int) -> None:
        self._folder, self._rank, self._lead = folder, rank, lead
        self._step, self._reads = -1, 0

    def begun(self, step: int) -> None:
        """Count that the rank begins a step, or asks whether to; raise ContractError if rank 0 is too far ahead."""
        self._step, self._reads = step, self._reads + 1 if step == self._step else 1
        if self._rank and self._reads % READS == 0 and self._last_reported() > step + self._lead:
            last = self._last_reported()
            message = f"rank {self._rank} is at step {step}, but rank 0 has ended step {last}"
            raise ContractError(f"{message}: call `run.step` on every rank, after each optimizer step")

    def _last_reported(self) -> int:
        """Return the last step that rank 0 has reported; -1 before the first, and if it cannot be read now."""
        try:
            with (self._folder / MEASUREMENTS).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                *lines, _ = file.read().split(b"\n")
                return int(json.loads(lines[-1])["step"])
        except (OSError, ValueError, LookupError):
            return -1
