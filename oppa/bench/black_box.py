"""Make tasks of programs whose model nobody states: a launch line with knobs of its own, and synthetic throughput and memory.

The logarithm of throughput is a sum of effects of values, of interactions between pairs, and of a deviation of each configuration. That of
memory is a sum of effects alone. The configurations that need most memory do not fit. The user's own has the first value of each knob, and
fits.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oppa.problem.candidates import Candidates
from oppa.problem.job import load_job
from oppa.random_streams import stream
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.replay import Record, Replay, ReplayNoise

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "loader": ("{workers=1:1,2,4,8}", "{fused=0:0,1}", "{prefetch=none:none,one,two}"),
    "compiler": ("{mode=off:off,default,tuned}", "{bucket=1:1,4,16,64}", "{fused=0:0,1}", "{graph=0:0,1}"),
    "kernels": ("{block=16:16,32,64,128}", "{warps=1:1,2,4,8}", "{stages=1:1,2,3}", "{layout=row:row,column}"),
    "transfers": ("{channels=1:1,2,4,8,16}", "{chunk=64:64,256,1024,4096}", "{protocol=simple:simple,fast,direct}", "{pinned=0:0,1}"),
    "allocator": ("{arena=1:1,2,4,8}", "{trim=never:never,lazy,eager}", "{pages=small:small,huge}", "{threads=1:1,2,4}", "{batch=1:1,2,4}"),
}
"""Knobs of each program, as its launch line states them: the user's own value first, then the choices."""
JOB = '[cluster]\ndevices_per_host = 1\ndevice = "CPU"\nmemory_limit = "16 GiB"\n[limits]\ntrial_time = "10 min"\nq_min = 5\nq_max = 30\n'
EFFECT, INTERACTION, DEVIATION, MEMORY_EFFECT = 0.25, 0.08, 0.03, 0.2
"""Standard deviations of logarithms."""
FITTING = 0.85
"""Share of the configurations that fit."""
NOISE = ReplayNoise(trial=0.02, step=0.03, setup_s=30.0)


def black_box_tasks() -> Iterator[BenchmarkTask]:
    """Yield one task per program; its throughput and memory depend on its name alone."""
    for name, knobs in PROGRAMS.items():
        problem = load_job(Path(f"{name}.toml"), text=JOB, argv=["program", *knobs])
        candidates = problem.candidates()
        rates, sizes = np.exp(_log_rates(name, candidates)), np.exp(_log_sizes(name, candidates))
        assert problem.baseline is not None, "its launch line states the values of the knobs"
        own = float(sizes[candidates.index_of(problem.baseline)])
        limit = max(own, float(np.quantile(sizes, FITTING)))
        scale = problem.cluster.usable_bytes / limit
        records = {
            configuration: Record(outcome="completed", steps_per_s=float(rate), memory_bytes=math.floor(scale * size))
            if size <= limit
            else Record(outcome="out_of_memory")
            for configuration, rate, size in zip(candidates, rates, sizes, strict=True)
        }
        yield BenchmarkTask(name=name, problem=problem, candidates=candidates, simulator=Replay(records=records, noise=NOISE))


def _log_rates(name: str, candidates: Candidates) -> NDArray[np.float64]:
    random, total = stream(0, f"deviation {name}"), np.zeros(len(candidates))
    for knob in _knobs(candidates):
        total += _effects(name, candidates, (knob,), EFFECT)
    for pair in itertools.combinations(_knobs(candidates), 2):
        total += _effects(name, candidates, pair, INTERACTION)
    return total + DEVIATION * random.standard_normal(len(candidates))


def _log_sizes(name: str, candidates: Candidates) -> NDArray[np.float64]:
    effects = [_effects(f"memory {name}", candidates, (knob,), MEMORY_EFFECT) for knob in _knobs(candidates)]
    return np.asarray(np.sum(effects, axis=0))


def _effects(name: str, candidates: Candidates, knobs: tuple[str, ...], stddev: float) -> NDArray[np.float64]:
    """Return the effect that the values of some knobs have together on each candidate, shape (n,)."""
    shape = tuple(len(candidates.space[knob].values) for knob in knobs)
    table = stddev * stream(0, f"effects {name} {knobs}").standard_normal(shape)
    return np.asarray(table[tuple(candidates.codes[knob] for knob in knobs)])


def _knobs(candidates: Candidates) -> list[str]:
    return [parameter.name for parameter in candidates.space.parameters if parameter.is_extra]
