"""Measure the figures that `priors/hardware/CPU.toml` states for a machine's cores and loopback, on this machine."""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from experiments.timings import allreduce_ranks
from experiments.timings.interleaved import spread
from oppa.cost.beliefs import prior_beliefs
from oppa.cost.collectives import CollectiveGroup, all_reduce_time
from oppa.cost.facts import machine_of
from oppa.cost.hardware import load_hardware
from oppa.errors import EnvironmentLackingError
from oppa.report.record import Section
from oppa.trials import logs
from oppa.trials.guarded_process import GuardedProcess
from oppa.units import MIB, format_bytes

ROWS, WIDTHS = 512, (192, 512, 1024)
ADDED_BYTES = 64 * MIB
RANKS, SIZES, REDUCTIONS = (2, 4), (4, 4 * 1024, 64 * 1024, MIB, 8 * MIB), 30
AT_LEAST_S = 0.1
PATIENCE_S, GRACE_S = 120.0, 2.0


def machine(repeats: int) -> list[Section]:
    """Measure matrix products and memory of one core, and all-reduces over loopback, and compare them with the prior."""
    rows = [*_core(repeats), *(row for ranks in RANKS for row in _all_reduces(ranks))]
    made = Section(
        title="This machine, compared with the prior of a CPU",
        text=f"Median (minimum - maximum) of {repeats} repeats on one core in fp32, and of {REDUCTIONS} all-reduces by gloo over loopback.",
        columns=("what", "unit", ">measured", ">prior"),
        rows=rows,
    )
    return [made]


def all_reduces(ranks: int) -> list[list[float]]:
    """Return the seconds of each all-reduce of each of SIZES among ranks of this machine.

    The ranks end before this function returns, or with this process.

    Raises:
        EnvironmentLackingError: the ranks failed or took too long.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "ranks.log"
        command = [sys.executable, "-m", allreduce_ranks.__name__, str(ranks), name, str(REDUCTIONS), *map(str, SIZES)]
        guard = GuardedProcess("the benchmark's ranks", command, environment=os.environ, grace_s=GRACE_S, pass_fds=(), log=log)
        give_up_at = time.monotonic() + PATIENCE_S
        try:
            while not (how := guard.ended()) and time.monotonic() < give_up_at:
                time.sleep(0.02)
        finally:
            guard.close()
        if not (folder / allreduce_ranks.ANSWER).exists():
            reason = how or f"took over {PATIENCE_S:g} s"
            raise EnvironmentLackingError(f"{ranks} ranks cannot all-reduce over loopback: they {reason}", hint=logs.last_words(log))
        seconds: list[list[float]] = json.loads((folder / allreduce_ranks.ANSWER).read_text())
        return seconds


def _core(repeats: int) -> Iterator[tuple[str, ...]]:
    core = load_hardware("CPU")
    with _one_thread():
        for width in WIDTHS:
            rates = [_matmul_rate(width) for _ in range(repeats)]
            yield f"{ROWS} x {width} by {width} x {width}", "Gflop/s", spread(rates, 1e-9), f"{core.matmul_flops_per_s['fp32'] * 1e-9:.3g}"
        rates = [_addition_rate() for _ in range(repeats)]
        yield f"torch.add over {format_bytes(ADDED_BYTES)}", "GB/s", spread(rates, 1e-9), f"{core.memory_bandwidth_bytes_per_s * 1e-9:.3g}"


def _matmul_rate(width: int) -> float:
    """Return floating-point operations per second of a matrix product."""
    left, right, product = torch.randn(ROWS, width), torch.randn(width, width), torch.empty(ROWS, width)
    return 2 * ROWS * width**2 / _seconds(lambda: torch.mm(left, right, out=product))


def _addition_rate() -> float:
    """Return bytes read and written per second, for tensors larger than any cache."""
    left, right, total = (torch.ones(ADDED_BYTES // 4) for _ in range(3))
    return 3 * ADDED_BYTES / _seconds(lambda: torch.add(left, right, out=total))


def _all_reduces(ranks: int) -> Iterator[tuple[str, ...]]:
    core = load_hardware("CPU")
    members, payload = torch.full((len(SIZES),), float(ranks)), torch.tensor(SIZES)
    group = CollectiveGroup(members, members, torch.ones_like(members))
    expected = all_reduce_time(group, payload, machine_of(core, "fp32", len(SIZES)), prior_beliefs(core))
    for size, seconds, prior_s in zip(SIZES, all_reduces(ranks), expected.tolist(), strict=True):
        yield f"all-reduce of {format_bytes(size)} among {ranks} ranks", "ms", spread(seconds, 1e3), f"{prior_s * 1e3:.3g}"


def _seconds(operation: Callable[[], object]) -> float:
    """Return the mean seconds of an operation, repeated for AT_LEAST_S so that clock resolution does not matter."""
    operation()
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < AT_LEAST_S:
        operation()
        count += 1
    return elapsed / count


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
