"""Start a measurement: as a rank of the launch that oppa is in, or with ranks of its own on this host."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from oppa.errors import EnvironmentLackingError, InputError
from oppa.launchers.measurement.figures import MOST_FIGURES, HardwareMeasurement
from oppa.launchers.measurement.ranks import LaunchedRank, launched
from oppa.problem.detect import Machine, this_machine
from oppa.trials import logs, processes
from oppa.trials.guarded_process import GuardedProcess

_PROGRAM = "oppa.launchers.measurement.local_ranks"
_GRACE_S, _POLL_S, _PATIENCE_S = 2.0, 0.05, 900.0
_CPU_RANKS = 4
Tell = Callable[[str], None]


def measure(*, ranks: int | None, figure_s: float, tell: Tell) -> HardwareMeasurement | None:
    """Measure the devices and links that this process was started on.

    Args:
        ranks: Number of ranks on this host; None: one for each GPU, or on CPUs one for each core, from 2 to 4.
        figure_s: Least time of each figure.
        tell: Receives the name of each step that begins.

    Returns:
        The figures; None on every rank but the first of a launch by torchrun or srun.

    Raises:
        InputError: `ranks` is given, but a launcher has started the ranks.
        EnvironmentLackingError: there are fewer GPUs than ranks; or ranks do not come, fail, or take too long.
    """
    own, machine = launched(), this_machine()
    if own is None:
        return _measure_here(_count(ranks, machine), figure_s=figure_s, on_cuda=machine.gpus > 0, tell=tell)
    if ranks is not None:
        raise InputError(f"`--ranks {ranks}` has no effect: the launcher has started {own.world} ranks", hint="remove it")
    return _measure_launched(own, machine, figure_s=figure_s, tell=tell)


def _count(ranks: int | None, machine: Machine) -> int:
    if machine.gpus and ranks is not None and ranks > machine.gpus:
        message = f"`--ranks {ranks}` needs as many GPUs, and this host has {machine.gpus}"
        raise EnvironmentLackingError(message, hint=f"use at most {machine.gpus}")
    return ranks or machine.gpus or max(2, min(_CPU_RANKS, int(machine.cores)))


def _measure_launched(own: LaunchedRank, machine: Machine, *, figure_s: float, tell: Tell) -> HardwareMeasurement | None:
    from oppa.launchers.measurement.one_rank import measure_rank  # it imports torch

    return measure_rank(own, figure_s=figure_s, on_cuda=machine.gpus > 0, tell=tell)


def _measure_here(ranks: int, *, figure_s: float, on_cuda: bool, tell: Tell) -> HardwareMeasurement:
    from oppa.launchers.measurement.local_ranks import ANSWER, FAILURE, PROGRESS

    with tempfile.TemporaryDirectory(prefix="oppa-measure-") as name:
        folder, log = Path(name), Path(name) / "ranks.log"
        words = [str(ranks), name, str(figure_s), "cuda" if on_cuda else "cpu"]
        command = [sys.executable, "-P", "-c", processes.program(_PROGRAM), *words]
        guard = GuardedProcess("the measurement", command, environment=os.environ, grace_s=_GRACE_S, log=log)
        try:
            how = _ended(guard, folder / PROGRESS, tell, patience_s=_PATIENCE_S + MOST_FIGURES * figure_s)
        finally:
            guard.close()
        if (folder / ANSWER).exists():
            return HardwareMeasurement.from_dict(json.loads((folder / ANSWER).read_text()))
        if (folder / FAILURE).exists():
            raise EnvironmentLackingError(**json.loads((folder / FAILURE).read_text()))
        raise EnvironmentLackingError(f"{ranks} ranks cannot measure this host: {how}", hint=logs.last_words(log))


def _ended(guard: GuardedProcess, progress: Path, tell: Tell, *, patience_s: float) -> str:
    """Return how the ranks ended, and report their progress until then."""
    give_up_at, shown = time.monotonic() + patience_s, ""
    while not (how := guard.ended()) and time.monotonic() < give_up_at:
        step = progress.read_text() if progress.exists() else ""
        if step and step != shown:
            tell(shown := step)
        time.sleep(_POLL_S)
    return how or f"they took more than {patience_s:g} s"
