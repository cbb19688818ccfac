"""Trace the module of a request, and write the trace or an error as JSON.

It runs as `python -m oppa.training.tracing.program REQUEST ANSWER`.
"""

import json
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from oppa.errors import OppaError
from oppa.problem.model import Model
from oppa.training.tracing.recorder import TracedKernels

MEMORY_BYTES = 4 << 30
"""Bytes that a trace may allocate in addition to the libraries that it imports."""


def main(request: Path, answer: Path) -> None:
    """Answer the request in a file by a file."""
    values = json.loads(request.read_text())
    try:
        found = _traced(Model(**values["model"]), values["precision"], on_cpu=values["on_cpu"])
    except OppaError as error:
        found = {"error": error.message, "hint": error.hint}
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, and the reason must reach the user
        traceback.print_exc()
        found = {"error": _words(error), "hint": ""}
    answer.write_text(json.dumps(found))


def _traced(model: Model, precision: str, *, on_cpu: bool) -> dict[str, Any]:
    """Return the trace as JSON values; raises what the module raises."""
    torch.set_num_threads(1)
    with TracedKernels(fused_norms=not on_cpu):
        if model.entry_point:
            from oppa.training.tracing.user_parts import trace_user_module

            _limit_memory()
            return trace_user_module(model, precision).to_dict()
        from oppa.training.tracing.transformers_model import trace_transformers

        _limit_memory()
        return trace_transformers(model, precision).to_dict()


def _limit_memory() -> None:
    """Bound what this process allocates from now on; real weights in place of fake ones then end in an error."""
    used = next(int(line.split()[1]) << 10 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES, resource.RLIM_INFINITY))


def _words(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    first, *_ = [*str(error).strip().splitlines(), ""]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
