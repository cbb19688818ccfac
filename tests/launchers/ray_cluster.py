"""A real Ray cluster of three nodes on this machine, on loopback and with a token; with Ray Jobs where their packages are installed.

What runs on it: `oppa tune`, and the phases in which a node or the tuner can die.
"""

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import psutil

from oppa.trials import processes, trial_folder
from tests.launchers.study_laws import Tuner
from tests.ports import free_ports

START_S = 90
JOBS = ("aiohttp", "aiohttp_cors", "colorful", "grpc", "opencensus", "opentelemetry", "smart_open", "virtualenv")
"""Packages of `ray[default]` that the dashboard, and with it Ray Jobs, imports."""


def ray_lacking() -> str:
    """Return what is missing for a cluster; empty if nothing is."""
    return "" if importlib.util.find_spec("ray") else "Ray is not installed (the extra `ray`)"


def jobs_lacking() -> str:
    """Return what is missing for Ray Jobs; empty if nothing is."""
    missing = [name for name in JOBS if importlib.util.find_spec(name) is None]
    return f"Ray Jobs need `ray[default]`: no {', '.join(missing)}" if missing else ""


class RayCluster:
    """Nodes `n0`, the head, `n1` and `n2`, with two CPUs each; or fewer."""

    def __init__(self, nodes: int = 3) -> None:
        self._names = tuple(f"n{number}" for number in range(nodes))
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets are short
        self.address, self.dashboard = (f"127.0.0.1:{port}" for port in free_ports(2))
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        self.environment = {**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": str(START_S)}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.restart()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._nodes)):
            self.kill(name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, name: str, *, cpus: int = 2) -> None:
        """Start a node, and return when the cluster has it."""
        host, port = self.address.split(":")
        listening = ["--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard.split(':')[1]}"]
        board = ["--include-dashboard=false"] if jobs_lacking() else listening
        head = ["--head", f"--port={port}", f"--temp-dir={self._folder}", *board]
        words = head if name == "n0" else [f"--address={self.address}"]
        store = 80_000_000
        command = ["-m", "ray.scripts.scripts", "start", *words, f"--node-name={name}", f"--node-ip-address={host}", f"--num-cpus={cpus}"]
        log = Path(self._folder, f"{name}.log")
        with log.open("wb") as output:
            ending_with_us = ["setpriv", "--pdeathsig", "TERM"]  # should we be killed
            argv = [*ending_with_us, sys.executable, *command, f"--object-store-memory={store}", "--disable-usage-stats", "--block"]
            self._nodes[name] = subprocess.Popen(argv, env=self.environment, stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + START_S
        while b"started" not in log.read_bytes():
            assert self._nodes[name].poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def restart(self) -> None:
        """Kill all nodes that there are, and start all; the address stays."""
        for name in reversed(list(self._nodes)):
            self.kill(name)
        for name in self._names:
            self.start(name)

    def kill(self, name: str) -> None:
        """End a node at once, with all its processes, as if its power had failed."""
        node = self._nodes.pop(name)
        family = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)] if node.poll() is None else []
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        node.wait()


class RayTuner(Tuner):
    """Runs `oppa tune` on this cluster."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what a test that failed has left running."""
        for running in self._started:
            running.kill()
            running.communicate()

    def start(self, *options: str) -> subprocess.Popen[str]:
        ray = ("--set", "launcher.name=ray", "--set", f"launcher.options.address={self.cluster.address}")
        words = [sys.executable, "-m", "oppa", "tune", "job.toml", "--study", "S", "--designer", "random", *ray, *options]
        pipe = subprocess.PIPE
        running = subprocess.Popen(words, cwd=self.folder, env=self.cluster.environment, stdout=pipe, stderr=pipe, text=True)
        self._started.append(running)
        return running

    def finished(self, running: subprocess.Popen[str], code: int = 0) -> str:
        out, err = running.communicate(timeout=280)
        assert running.returncode == code, err
        return out + err

    def is_in(self, phase: str, running: subprocess.Popen[str]) -> bool:
        """Return True if a tuner is in this phase of a study of two hosts."""
        assert running.poll() is None, running.communicate()
        holds, steps = _runs(running, "holder", '"hosts": 2'), _runs(running, "step")
        trial = max((self.folder / "S" / "trials").glob("*"), default=self.folder)
        measured = trial / trial_folder.MEASUREMENTS
        match phase:
            case "placement":
                return holds
            case "agent start":
                return steps
            case "rendezvous":
                return steps and measured.exists() and not measured.stat().st_size
            case "steps":
                return measured.exists() and bool(measured.stat().st_size)
            case "collection":
                return (trial / trial_folder.REPORT).exists()
        assert phase == "end"
        return holds and not steps and (self.folder / "S" / "study.db").exists() and len(self.counted()) >= TRIALS


PHASES = ("placement", "agent start", "rendezvous", "steps", "collection", "end")
TRIALS = 3
"""Trials of a study that is disturbed in one of these phases."""


def _runs(running: subprocess.Popen[str], program: str, argument: str = "") -> bool:
    """Return True if one of our programs runs below a tuner."""
    for process in processes.descendants(running.pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process.pid}/cmdline").read_text()
            if f"ray import {program}" in words and argument in words:
                return True
    return False
