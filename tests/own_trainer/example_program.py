"""Run `examples/own_trainer.py` as a rank, write oppa's requests in given steps, and note the inputs that the rank takes."""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import oppa_client.run
import torch
import torch.distributed.checkpoint.state_dict  # forked ranks need not import what the example does
from oppa_client import run_files
from torch import nn
from torch.distributed.checkpoint import FileSystemWriter

import oppa.training  # noqa: F401
from experiments.trainers.reference import INPUTS
from tests.rank_arguments import rank_arguments

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_trainer.py"


def asked_run(asked: dict[int, list[int]], leave_at: int | None, first_number: int, steps: list[Any]) -> type[oppa_client.run.Run]:
    """Return a run whose rank 0 writes requests, as oppa does, and that begins a list of inputs for each step.

    Args:
        asked: For each step, the global batch and the micro-batch to ask for.
        leave_at: Step at which to ask to leave.
        first_number: Number of the first plan to ask for.
        steps: Inputs of each step so far.
    """

    class Asked(oppa_client.run.Run):
        def step(self, **facts: Any) -> None:
            if self._trial.rank == 0 and self._step in asked:
                number, (batch, micro_batch) = first_number + sorted(asked).index(self._step), asked[self._step]
                request = {"number": number, "global_batch": batch, "micro_batch": micro_batch, "accumulation": 1}
                run_files.write(self._trial.folder, run_files.ASKED.format(number), request)
            if self._trial.rank == 0 and self._step == leave_at:
                run_files.write(self._trial.folder, run_files.LEAVE, {"reason": "layout", "deadline_s": 60.0})
            super().step(**facts)
            steps.append([])

        def saved(self, checkpoint: Any, **facts: Any) -> None:
            assert (Path(checkpoint) / ".metadata").exists(), "rank 0 writes it once all ranks have written their part"
            super().saved(checkpoint, **facts)
            with (self._trial.folder / "stated.txt").open("a") as stated:
                stated.write(f"{facts['step']} {self._step}\n" * (self._trial.rank == 0))

    return Asked


def write_slowly(seconds: float) -> None:
    """Write each part of a checkpoint so much later."""
    write = FileSystemWriter.write_data

    def slow(*arguments: Any) -> Any:
        time.sleep(seconds)
        return write(*arguments)

    FileSystemWriter.write_data = slow  # type: ignore[method-assign]


def main() -> None:
    folder, name, options = rank_arguments()
    asked = {int(step): sizes for step, sizes in options["asked"].items()}
    steps: list[list[torch.Tensor]] = [[]]

    def note(module: nn.Module, inputs: Any) -> None:
        if isinstance(module, nn.Linear) and module.in_features == INPUTS:
            steps[-1] += inputs[0].unbind()

    write_slowly(options.get("writing_s", 0.0))
    nn.modules.module.register_module_forward_pre_hook(note)
    oppa_client.run.Run = asked_run(asked, options["leave_at"], options["first_number"], steps)  # type: ignore[misc]
    sys.argv = [str(EXAMPLE), "--late-start", "--checkpoints", str(folder / "trained"), *options["words"]]
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    torch.save(steps[:-1], folder / f"{name}-{os.environ['RANK']}.pt")
