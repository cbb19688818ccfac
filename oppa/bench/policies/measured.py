"""What it costs to decide, and how exact a gradient of uneven workers is: measured now."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from oppa.bench.step_overhead import ON_CPU, STATISTICS, overheads
from oppa.bench.training_gang import Order, TrainingGang
from oppa.control.background import in_background
from oppa.control.client import ControlClient
from oppa.control.job import controllers
from oppa.control.learned.actions import Actions
from oppa.control.learned.learner import layers_of, network
from oppa.control.learned.observation import NAMES
from oppa.control.learned.reward import Reward
from oppa.control.learned.weights import Weights
from oppa.control.policies import policy_of
from oppa.control.service import Service
from oppa.errors import EnvironmentLackingError
from oppa.places.network import LOOPBACK
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.protocol.messages import Hello
from oppa.protocol.worker import WorkerState
from oppa.training.worker import Worker

WINDOW, WORKERS, BATCH = 20, 8, 256
PATIENCE_S = 10.0
PAIRS, DECISIONS = 120, 50
SHARES = (13, 5, 2, 1)
MODEL = Model(name="small", layers=2, hidden=32, heads=4, kv_heads=4, ffn=48, vocab=256, seq_len=16)


def norm_test_overhead(tell: Callable[[str], None]) -> float:
    """What a step that is tested takes longer than one that is not, as a share of it: median of pairs on two data-parallel ranks."""
    return overheads(STATISTICS, ON_CPU[:1], PAIRS, tell)[0].median


def weighted_gradient_error() -> float:
    """How far the gradient of workers with local batches of their own is from one process's over all samples, as a share of its length."""
    layout = Configuration(dp=len(SHARES), global_batch=sum(SHARES), micro_batch=4)
    with TrainingGang() as gang:
        answers: tuple[float, ...] = gang.run(Order(program="share", model=MODEL, layouts=(layout,), local_batches=SHARES)).answers
    return max(answers)


def decision_ms() -> float:
    """What a window's collection, round trip and inference take, for each of its steps: median over decisions, in milliseconds.

    Raises:
        EnvironmentLackingError: if the service does not answer.
    """
    present = Configuration(dp=WORKERS, global_batch=WORKERS * BATCH, micro_batch=64)
    times_s = list[float]()
    worker = Worker(nn.Linear(2, 2), torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), controllers(None, policy_of("rl", _growing())))
        try:
            with in_background(service) as port:
                hello = Hello(job="bench", configuration=present, total_samples=None)
                with ControlClient(f"{LOOPBACK}:{port}", service.tokens.of_job("bench"), hello) as client:
                    times_s = [_one(worker, client, present, number) for number in range(DECISIONS)]
        finally:
            service.close()
    return statistics.median(times_s) / WINDOW * 1e3


def _one(worker: Worker, client: ControlClient, present: Configuration, number: int) -> float:
    """Seconds that a decision takes beside training: account of a window's steps, its sum, and the answer."""
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
    client.step(
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
    while client.wanted(present) is None:
        if time.perf_counter() - begin_s > PATIENCE_S:
            raise EnvironmentLackingError(f"no decision within {PATIENCE_S:g} s", hint="is the machine busy?")
        time.sleep(5e-5)
    return collecting_s + time.perf_counter() - begin_s


def _growing() -> Weights:
    """As large a network as is learned, whose workers always want more."""
    layers = layers_of(network(len(NAMES), 5))
    layers[-1][1][4] = 1e3
    ones = np.ones(len(NAMES))
    return Weights(layers=layers, mean=0 * ones, deviation=ones, actions=Actions(), reward=Reward(), window=WINDOW, provenance={})
