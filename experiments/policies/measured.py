"""Measure the cost of a decision, and the exactness of the gradient of uneven workers."""

import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments.control.step_overhead import ON_CPU, STATISTICS, overheads
from experiments.lib.rank_pool import PoolRequest, RankPool
from oppa.control.registry import policy_of
from oppa.control.rl.actions import Actions
from oppa.control.rl.learner import layers_of, network
from oppa.control.rl.observation import NAMES
from oppa.control.rl.reward import Reward
from oppa.control.rl.weights import Weights
from oppa.control.service.client import ControlClient
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.server import Service
from oppa.control.service.thread import serve_in_thread
from oppa.errors import EnvironmentLackingError
from oppa.launchers.network import LOOPBACK
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.protocol.messages import Hello, StepFacts
from oppa.protocol.worker import WorkerState
from oppa.training.statistics.worker_metrics import WorkerMetrics

WINDOW, WORKERS, BATCH = 20, 8, 256
PATIENCE_S = 60.0
PAIRS, DECISIONS = 120, 50
SHARES = (13, 5, 2, 1)
MODEL = Model(name="small", layers=2, hidden=32, heads=4, kv_heads=4, ffn=48, vocab=256, seq_len=16)


def norm_test_overhead(tell: Callable[[str], None]) -> float:
    """Return the extra time of a step with the norm test's statistics, as a fraction: the median of pairs on two data-parallel ranks."""
    return overheads(STATISTICS, ON_CPU[:1], PAIRS, tell)[0].median


def weighted_gradient_error() -> float:
    """Return the error of the gradient of uneven workers relative to the norm of one process's gradient over all samples.

    It is the largest value over the ranks.
    """
    layout = Configuration(dp=len(SHARES), global_batch=sum(SHARES), micro_batch=4)
    with RankPool() as pool:
        answers: tuple[float, ...] = pool.run(PoolRequest(program="share", model=MODEL, layouts=(layout,), local_batches=SHARES)).answers
    return max(answers)


def decision_ms() -> float:
    """Return the time of a decision in milliseconds per step of its window: the median over decisions.

    It includes the collection of a window's statistics, the round trip and the inference. Cores are kept busy, as they are in training,
    because waking a sleeping core takes as long as the decision itself.

    Raises:
        EnvironmentLackingError: the service does not start or answer.
    """
    present = Configuration(dp=WORKERS, global_batch=WORKERS * BATCH, micro_batch=64)
    hello = Hello(job="bench", configuration=present, total_samples=None)
    worker = WorkerMetrics(nn.Linear(2, 2), torch.device("cpu"))
    with _awake(), _served() as (address, token), ControlClient(address, token, hello) as client:
        times_s = [_one(worker, client, present, number) for number in range(DECISIONS)]
    return statistics.median(times_s) / WINDOW * 1e3


@contextlib.contextmanager
def _awake() -> Iterator[None]:
    """Keep every core busy with processes that yield to all others; do nothing if the kernel has no SCHED_IDLE."""
    idle: int | None = getattr(os, "SCHED_IDLE", None)
    with contextlib.ExitStack() as stack:
        for _ in range((os.cpu_count() or 1) if idle is not None else 0):
            turning = subprocess.Popen(
                [sys.executable, "-c", f"import os; os.sched_setscheduler(0, {idle}, os.sched_param(0))\nwhile True: pass"]
            )
            stack.callback(turning.wait)
            stack.callback(turning.kill)
        yield


@contextlib.contextmanager
def _served() -> Iterator[tuple[str, str]]:
    """Run the service with a learned policy in its own process, as it runs next to rank 0; yield its address and the job's token."""
    fresh = multiprocessing.get_context("spawn")
    here, there = fresh.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = fresh.Process(target=_serve, args=(Path(folder), there), daemon=True)
        process.start()
        there.close()
        try:
            yield here.recv()
        except EOFError:
            raise EnvironmentLackingError("the control service did not start", hint="see its output above") from None
        finally:
            here.close()
            process.join()


def _serve(folder: Path, line: Connection) -> None:
    """Run the service until the other end of the line is closed."""
    service = Service(folder, ControllerFactory(None, policy_of("rl", _growing())))
    try:
        with serve_in_thread(service) as port, contextlib.suppress(EOFError):
            line.send((f"{LOOPBACK}:{port}", service.tokens.of_job("bench")))
            line.recv()
    finally:
        service.close()


def _one(worker: WorkerMetrics, client: ControlClient, present: Configuration, number: int) -> float:
    """Return the seconds of a decision: the collection over a window's steps, their sum, and the answer."""
    output, targets = torch.zeros(BATCH, 10), torch.zeros(BATCH, dtype=torch.long)
    collecting_s = 0.0
    for _ in range(WINDOW):
        begin_s = time.perf_counter()
        worker.begin()
        worker._arrived(output)
        worker.answered(output, targets)
        worker.end(0.1)
        collecting_s += time.perf_counter() - begin_s
        time.sleep(1e-4)
    begin_s = time.perf_counter()
    states: list[WorkerState] = [worker.state(BATCH)] * WORKERS
    facts = StepFacts(
        step=number,
        samples=(number + 1) * present.global_batch,
        configuration=present,
        step_time_s=0.1,
        elapsed_s=0.1 * (number + 1),
        noise_scale=None,
        health="no_signal",
        variance_ratio=100.0,
        loss=1.0,
        learning_rate=1e-3,
        workers=states,
    )
    client.step(facts)
    while client.wanted(present) is None:
        if time.perf_counter() - begin_s > PATIENCE_S:
            raise EnvironmentLackingError(f"the service sent no decision within {PATIENCE_S:g} s", hint="run it on an idle machine")
        time.sleep(5e-5)
    return collecting_s + time.perf_counter() - begin_s


def _growing() -> Weights:
    """Return weights of the usual network size, whose workers always choose the largest growth."""
    layers = layers_of(network(len(NAMES), 5))
    layers[-1][1][4] = 1e3
    ones = np.ones(len(NAMES))
    return Weights(layers=layers, mean=0 * ones, deviation=ones, actions=Actions(), reward=Reward(), window=WINDOW, provenance={})
