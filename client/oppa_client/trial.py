"""Report a trial's steps and its end to oppa through the trial's folder.

OPPA_TRIAL names the folder. RANK and WORLD_SIZE state the rank and the number of ranks, as torchrun sets them.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from oppa_client import run_files
from oppa_client.failures import ran_out_of_memory

SPEC, STOP, LAST_STEP, OUTCOME, OPENED = "trial.json", "stop", "last_step", "outcome.json", "opened"
"""Files of a trial's folder: what to run, a request to end, the last step of rank 0, the trial's end, and that ranks report."""


class Trial:
    """Represents the folder of one trial for one rank of the program."""

    def __init__(self, folder: str | os.PathLike[str], *, rank: int = 0, world: int = 1) -> None:
        self.folder, self.rank, self.world = Path(folder), rank, world
        self.spec: dict[str, Any] = run_files.read(self.folder, SPEC)
        self.next_step = 0

    def require_its_ranks(self) -> None:
        """End the program if the launch line starts more or fewer ranks than the trial has; oppa would measure something else."""
        values = self.spec["configuration"]
        further = [name for name, facts in values.get("knobs", {}).items() if facts.get("degree")]
        of = math.prod(values[name] for name in ("dp", "tp", "pp", *further))
        if "WORLD_SIZE" in os.environ and self.world != of:
            cause = f"the launch line starts {self.world} ranks, but the trial has {of}"
            self.end("failed", cause=cause, rank=self.rank)
            raise SystemExit(f"{cause}: write `--nproc-per-node {{devices_per_host}}` for torchrun, or omit the option")

    def step(self, step_time_s: float, *, memory_bytes: int | None = None, **facts: Any) -> bool:
        """End one optimizer step, which rank 0 reports; return False after the last step.

        If oppa asks to stop, rank 0 writes that the next step is the last, before it begins that step. No rank can end a step that rank 0
        has not begun. All ranks therefore find it written in time, without a message.

        Args:
            step_time_s: Wall-clock seconds of the step.
            memory_bytes: Peak memory so far, maximum over ranks.
            facts: Further values of the step, such as `loss`.
        """
        step = self.next_step
        if self.rank == 0:
            self.measured(step_time_s, memory_bytes=memory_bytes, **facts)
        self.next_step = step + 1
        goes_on = self.next_step < int(self.spec["steps"]) and step < self._last_step(step)
        if self.rank == 0 and not goes_on:
            self.end("completed")
        return goes_on

    def measured(self, step_time_s: float, *, memory_bytes: int | None = None, **facts: Any) -> None:
        """Report one optimizer step without checking for the end; rank 0 calls it if the ranks agree by themselves on when to end."""
        line = {"step": self.next_step, "step_time_s": step_time_s, "memory_bytes": memory_bytes, **facts}
        self.next_step += 1
        with (self.folder / run_files.MEASUREMENTS).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _last_step(self, step: int) -> int:
        """Return the number of the last step, as far as it is known after `step`."""
        if self.world == 1:
            return step if self.stop_requested() else step + 1
        names = run_files.names_in(self.folder)
        if LAST_STEP in names:
            return int(run_files.read(self.folder, LAST_STEP))
        if self.rank == 0 and STOP in names:
            run_files.write(self.folder, LAST_STEP, step + 1)
        return step + 1

    def stop_requested(self) -> bool:
        """Return True if oppa has requested that the trial end at a step boundary."""
        return STOP in run_files.names_in(self.folder)

    def end(self, outcome: str = "completed", *, cause: str = "", rank: int | None = None, error: BaseException | None = None) -> None:
        """Report how the trial ended: `completed`, `out_of_memory` or `failed`. Only the first report of all ranks counts."""
        values: dict[str, Any] = {"outcome": outcome, "cause": cause, "rank": rank, "time": time.time()}
        if error is not None:  # with all arguments, which Python 3.9 requires
            values["cause"] = cause or traceback.format_exception_only(type(error), error)[0].strip()
            values["traceback"] = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        draft = run_files.draft(self.folder, OUTCOME, values)
        try:
            os.link(draft, self.folder / OUTCOME)
        except FileExistsError:
            pass
        finally:
            draft.unlink()


def open_trial() -> Trial | None:
    """Return the trial that this process is a rank of, or None outside a trial; later, uncaught errors are also reported to oppa."""
    folder = os.environ.get("OPPA_TRIAL")
    if not folder:
        return None
    trial = Trial(folder, rank=int(os.environ.get("RANK", "0")), world=int(os.environ.get("WORLD_SIZE", "1")))
    trial.require_its_ranks()
    (trial.folder / OPENED).touch()  # what the program prints are no steps then
    shown = sys.excepthook

    def show_and_report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, trace)
        if isinstance(error, Exception):
            trial.end("out_of_memory" if ran_out_of_memory(error) else "failed", rank=trial.rank, error=error)

    sys.excepthook = show_and_report
    return trial
