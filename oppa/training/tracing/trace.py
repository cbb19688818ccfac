"""Trace the module of a job in a process of its own, within limits of time and memory; the user's code runs there alone."""

import contextlib
import dataclasses
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from oppa.problem.devices import CPU
from oppa.problem.problem import Problem
from oppa.problem.trace import ModelTrace
from oppa.regular_file import read_json
from oppa.trials.guarded_process import GuardedProcess

LONGEST_S = 60.0
"""Seconds that a trace may take; most take three, to import torch."""
GRACE_S = 1.0
_POLL_S = 0.02
_MOST_CHARACTERS, _MOST_BYTES = 300, 1 << 20
_log = logging.getLogger(__name__)


def traced(problem: Problem, *, longest_s: float = LONGEST_S) -> Problem:
    """Return the problem with the trace of its module.

    It is unchanged if it has a trace, or no prior and no module to trace. If the module cannot be traced, a warning names the reason, and
    the prior uses the dimensions of `[model]`.
    """
    model = problem.stated_model
    if problem.trace or not problem.has_prior or model is None or not model.is_traceable:
        return problem
    request = {"model": model.to_dict(), "precision": problem.training.precision, "on_cpu": problem.cluster.device == CPU}
    answer = _answer(request, longest_s)
    try:
        trace = ModelTrace.from_dict(answer)
    except (KeyError, TypeError, ValueError):
        name = model.entry_point.partition(":")[2] or model.config
        reason = str(answer.get("error", "its trace has no counts"))[:_MOST_CHARACTERS]
        hint = f"; {answer['hint']}" if answer.get("hint") else ""
        _log.warning("`%s` cannot be traced: %s%s. The prior uses the dimensions of [model] instead", name, reason, hint)
        return problem
    return dataclasses.replace(problem, trace=trace)


def _answer(request: dict[str, Any], longest_s: float) -> dict[str, Any]:
    """Return what the tracing program answers; if it does not, how it ended."""
    with tempfile.TemporaryDirectory(prefix="oppa-trace-") as folder:
        asked, answer, log = (Path(folder, name) for name in ("request.json", "trace.json", "log"))
        asked.write_text(json.dumps(request))
        argv = [sys.executable, "-P", "-m", "oppa.training.tracing.program", str(asked), str(answer)]
        process = GuardedProcess("the trace", argv, environment=os.environ, grace_s=GRACE_S, log=log)
        try:
            ended = _ended(process, longest_s)
        finally:
            process.close()
        with contextlib.suppress(FileNotFoundError):
            return _read(answer)
        return {"error": f"{ended or f'the trace took more than {longest_s:g} s'}{_last_line(log)}"}


def _read(answer: Path) -> dict[str, Any]:
    """Return what the user's process wrote, or what is wrong with it; raises FileNotFoundError if it wrote nothing."""
    try:
        return dict(read_json(answer, limit_bytes=_MOST_BYTES, links=False))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError) as error:
        return {"error": f"its answer cannot be read: {error}"}


def _ended(process: GuardedProcess, longest_s: float) -> str:
    """Return how the program ended; empty if it still runs after `longest_s`."""
    deadline = time.monotonic() + longest_s
    while not (ended := process.ended()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return ended


def _last_line(log: Path) -> str:
    *_, last = ["", *log.read_text(errors="replace").strip().splitlines()]
    return f": {last}" if last else ""
