"""How a training program talks to oppa: three lines in its loop, the standard library alone.

    trial = report.open_trial()              # None outside a trial
    ...
    if trial and not trial.step(step_time_s, memory_bytes=peak, loss=loss):    # every rank, after each optimizer step
        break                                # the trial is over: all ranks are told so behind the same step

oppa puts this folder on PYTHONPATH, in which nothing else lies, and names the trial's folder in OPPA_TRIAL. Which rank this is says RANK,
as torchrun sets it.
"""

import json
import math
import os
import sys
import time
import traceback
from pathlib import Path

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "alloc_cpu.cpp", "std::bad_alloc")


class Trial:
    """The folder of one trial, as one rank of the program sees it."""

    def __init__(self, folder, *, rank=0, world=1):
        self.folder, self.rank, self.world = Path(folder), rank, world
        self.spec = json.loads((self.folder / "trial.json").read_text())
        self.next_step = 0

    def require_its_ranks(self):
        """End the program if the launch line starts more or fewer ranks than the trial is of: something else would be measured."""
        of = math.prod(self.spec["configuration"][name] for name in ("dp", "tp", "pp"))
        if "WORLD_SIZE" in os.environ and self.world != of:
            cause = f"the launch line starts {self.world} ranks, and the trial is of {of}"
            self.end("failed", cause=cause, rank=self.rank)
            raise SystemExit(f"{cause}: torchrun wants `--nproc-per-node` {{devices_per_host}}, or none")

    def step(self, step_time_s, *, memory_bytes=None, **facts):
        """End one optimizer step, which rank 0 reports (seconds; peak bytes, maximum over ranks); False when it was the last one.

        Where oppa asks to stop, rank 0 writes down that the next step is the last, before it begins that step. No rank can end a step that
        rank 0 has not begun, so all find it written in time, without a message.
        """
        step = self.next_step
        if self.rank == 0:
            self.measured(step_time_s, memory_bytes=memory_bytes, **facts)
        self.next_step = step + 1
        goes_on = self.next_step < self.spec["steps"] and step < self._last_step(step)
        if self.rank == 0 and not goes_on:
            self.end("completed")
        return goes_on

    def measured(self, step_time_s, *, memory_bytes=None, **facts):
        """Report one optimizer step, and nothing else: for rank 0 of a program whose ranks agree by themselves on when to end."""
        line = {"step": self.next_step, "step_time_s": step_time_s, "memory_bytes": memory_bytes, **facts}
        self.next_step += 1
        with (self.folder / "measurements.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _last_step(self, step):
        """The number of the last step, as far as it is known now."""
        if self.world == 1:
            return step if self.stop_requested() else step + 1
        name = self.folder / "last_step"
        if self.rank == 0 and self.stop_requested() and not self._lists("last_step"):
            draft = self.folder / ".last_step"
            draft.write_text(str(step + 1))
            draft.rename(name)
        return int(name.read_text()) if self._lists("last_step") else step + 1

    def stop_requested(self):
        """Whether oppa asked the trial to end at a step boundary."""
        return self._lists("stop")

    def _lists(self, name):
        """Whether the folder has such a file. A network file system remembers what was missing, and looks again where a folder is read."""
        return self.folder / name in self.folder.iterdir()

    def end(self, outcome="completed", *, cause="", rank=None, error=None):
        """Say how the trial ended: `completed`, `out_of_memory` or `failed`. The first rank that says so is believed."""
        values = {"outcome": outcome, "cause": cause, "rank": rank, "time": time.time()}
        if error is not None:
            values["cause"] = cause or traceback.format_exception_only(error)[0].strip()
            values["traceback"] = "".join(traceback.format_exception(error))
        draft = self.folder / f".outcome.{os.getpid()}"
        draft.write_text(json.dumps(values) + "\n")
        try:
            os.link(draft, self.folder / "outcome.json")
        except FileExistsError:
            pass
        finally:
            draft.unlink()


def open_trial():
    """The trial that this process is a rank of, or None; from now on an error that nobody catches is told to oppa, too."""
    folder = os.environ.get("OPPA_TRIAL")
    if not folder:
        return None
    trial = Trial(folder, rank=int(os.environ.get("RANK", "0")), world=int(os.environ.get("WORLD_SIZE", "1")))
    trial.require_its_ranks()
    shown = sys.excepthook

    def tell(kind, error, trace):
        shown(kind, error, trace)
        if isinstance(error, Exception):
            trial.end("out_of_memory" if ran_out_of_memory(error) else "failed", rank=trial.rank, error=error)

    sys.excepthook = tell
    return trial


def ran_out_of_memory(error):
    """Whether an allocation failed, whichever library says so, in `error` or what caused it."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY):
            return True
        error = error.__cause__
    return False
