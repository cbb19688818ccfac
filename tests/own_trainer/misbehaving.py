"""Run a program whose trainer breaks its contract once, whatever library it uses: `misbehaving.py FAULT PROGRAM ARGUMENTS`.

The library trains as ever. Only the `Run` that it opens is another one.
"""

import dataclasses
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import oppa_client.run
from oppa_client import run_files

NEW_LAYOUT = ("--recompute", "--recompute-granularity", "--shard", "--zero-stage", "always")
"""Arguments that state the second layout of a program."""
IN_A_GROUP = ("own_trainer.py", "deepspeed_trainer.py", "megatron_on_cpu.py")
"""Programs that need the variables of a process group, which torchrun sets."""
LIE, WAIT = 2, 5
"""A step whose samples are miscounted, and the one after which the first attempt waits for oppa's request."""

fault, program, *words = sys.argv[1:]
if "RANK" not in os.environ and program.endswith(IN_A_GROUP):
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
in_new_layout = any(word in words for word in NEW_LAYOUT)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Misbehaving(oppa_client.run.Run):
    """Breaks its contract by `fault`; the last rank dies where one of them does, and rank 0 where it alone writes."""

    @property
    def _is_last(self):
        return self._trial.rank == self._trial.world - 1

    @property
    def _is_early(self):
        return self._trial.folder.name == "0001" and self._step >= WAIT

    @property
    def _is_leaving_layout(self):
        return self._leaving is not None and self._leaving.reason == "layout"

    def _as_before(self, plan):
        """Return a plan with the batch of the attempt's first one."""
        self._first = getattr(self, "_first", plan)
        return dataclasses.replace(self._first, step=plan.step, progress=plan.progress) if fault == "ignores" else plan

    @property
    def plan(self):
        if fault == "dies loaded" and in_new_layout and self._is_last:
            die()
        return self._as_before(super().plan)

    def following(self, plan):
        return self._as_before(super().following(plan))

    @property
    def resume(self):
        found = super().resume
        if found and in_new_layout and fault == "refuses":
            raise RuntimeError("this layout is not built")
        if found and in_new_layout and fault == "dies loading" and self._is_last:
            die()
        return found

    @property
    def leaving(self):
        if fault == "dies asked" and self._is_leaving_layout and self._is_last:
            die()
        return None if fault == "goes on" and self._is_leaving_layout else self._leaving

    def step(self, *, samples, **facts):
        if fault == "dies at first step" and in_new_layout and self._is_last:
            die()
        super().step(samples=samples + (fault == "lies" and self._step == LIE), **facts)
        asked, until = {run_files.LEAVE, run_files.ASKED.format(2)}, time.monotonic() + 1.0
        if fault == "goes on" and self._is_leaving_layout:
            time.sleep(0.1)  # it has to outlast its deadline
        while self._is_early and time.monotonic() < until and not asked & run_files.names_in(self._trial.folder):
            time.sleep(0.02)

    def leave(self, checkpoint=None, *, finished=False):
        if fault == "leaves nothing" and self._is_leaving_layout:
            return
        if fault == "dies saved" and self._is_leaving_layout and self._trial.rank == 0:
            die()
        super().leave(checkpoint, finished=finished)
        if fault == "dies left" and self._is_leaving_layout and self._trial.rank == 0:
            die()


def die_while_saving(event, arguments):
    """Die at the first file or folder of a checkpoint that a rank makes, or moves to its place, to leave for another layout."""
    makes = event == "os.mkdir" or (event == "open" and isinstance(arguments[1], str) and arguments[1][0] in "wax")
    place = arguments[0] if makes else arguments[1] if event == "os.rename" else ""
    if "/trained/" in str(place) and (Path(os.environ["OPPA_TRIAL"]) / run_files.LEAVING).exists():
        die()


if fault == "dies saving":
    sys.addaudithook(die_while_saving)
if fault == "dies starting" and in_new_layout:
    raise SystemExit("this layout does not start")
if fault.endswith(" client"):
    run_files.PROTOCOL = run_files.OLDEST = {"old client": 0, "new client": 9}[fault]
oppa_client.run.Run = Misbehaving
sys.argv = [program, *words]
runpy.run_path(program, run_name="__main__")
