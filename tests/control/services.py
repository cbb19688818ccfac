"""Run a control service during a test, and jobs that talk to it."""

import contextlib
import json
import time
from pathlib import Path

from websockets.sync.client import connect

from oppa.control.service.factory import ControllerFactory
from oppa.control.service.server import Service
from oppa.control.service.thread import serve_in_thread
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Hello, StepTaken, from_service
from oppa.protocol.worker import WorkerState

PRESENT = Configuration(dp=1, pp=2, global_batch=64, micro_batch=4)


@contextlib.contextmanager
def serving(folder: Path, table, policy_of, port: int = 0, policy: str = "", titles: dict[str, str] | None = None):
    """A service, and its port, while this lasts."""
    service = Service(folder, ControllerFactory(table, policy_of, every=5, policy=policy), titles=titles or {})
    try:
        with serve_in_thread(service, port) as own:
            yield service, own
    finally:
        service.close()


def hello(job: str = "a-job", **changes) -> Hello:
    """Return the first message of a job."""
    return Hello(**{"job": job, "configuration": PRESENT, "total_samples": None, **changes})


def step(count: int, **changes) -> StepTaken:
    """A step."""
    values = {
        "number": count,
        "step": count - 1,
        "samples": 64 * count,
        "configuration": PRESENT,
        "step_time_s": 0.3,
        "elapsed_s": 0.3 * count,
        "noise_scale": 100.0,
        "health": "healthy",
        "loss": 3.0,
        "learning_rate": 1e-3,
    }
    return StepTaken(**{**values, **changes})


def worker(**changes) -> WorkerState:
    """Return what a worker reports of a window."""
    values = {
        "local_batch": 32,
        "throughput_bytes_per_s": 1e6,
        "retransmissions": 0,
        "cpu_ratio": 0.5,
        "memory_share": 0.01,
        "compute_s": 0.1,
        "wait_s": 0.2,
        "accuracy": 0.5,
        "accuracy_deviation": 0.1,
        "accuracy_gain": -0.5,
    }
    return WorkerState(**{**values, **changes})


@contextlib.contextmanager
def line(port: int, token: str, job: str = "a-job", **headers):
    """A bare connection of a job, before it has said anything."""
    with connect(
        f"ws://127.0.0.1:{port}/job/{job}", additional_headers={"Authorization": f"Bearer {token}", **headers}, proxy=None
    ) as opened:
        yield opened


def heard(opened, timeout=5.0):
    """The next message of the service."""
    return from_service(opened.recv(timeout=timeout))


def until(condition, timeout_s=10.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.01)


def said_to_watcher(port: int, token: str, origin=None) -> dict:
    """Return what the live page would be sent first."""
    with connect(f"ws://127.0.0.1:{port}/watch", origin=origin, proxy=None) as opened:
        opened.send(token)
        return json.loads(opened.recv(timeout=5))
