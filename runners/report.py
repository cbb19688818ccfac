"""How a training program talks to oppa: three lines in its loop, the standard library alone.

    trial = report.open_trial()              # None outside a trial
    ...
    if trial and not trial.step(step_time_s, memory_bytes=peak, loss=loss):    # rank 0, after each optimizer step
        break                                # oppa asks to stop (tell the other ranks)

oppa puts this folder on PYTHONPATH and names the trial's folder in OPPA_TRIAL.
"""

import json
import os
import time
import traceback
from pathlib import Path


class Trial:
    """The folder of one trial, as the program sees it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.spec = json.loads((self.folder / "trial.json").read_text())
        self.next_step = 0

    def step(self, step_time_s, *, memory_bytes=None, **facts):
        """Report one optimizer step (seconds; peak bytes, maximum over ranks); False when oppa asks to stop here."""
        line = {"step": self.next_step, "step_time_s": step_time_s, "memory_bytes": memory_bytes, **facts}
        self.next_step += 1
        with (self.folder / "measurements.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return not self.stop_requested()

    def stop_requested(self):
        """Whether oppa asked the trial to end at a step boundary."""
        return (self.folder / "stop").exists()

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
    """The trial that this process belongs to, or None."""
    folder = os.environ.get("OPPA_TRIAL")
    return Trial(folder) if folder else None
