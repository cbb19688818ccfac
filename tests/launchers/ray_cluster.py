"""A real Ray cluster of three nodes on this machine, on loopback and with a token; with Ray Jobs where their packages are installed."""

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import psutil

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
    """Nodes `n0`, the head, `n1` and `n2`, with two CPUs each."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets are short
        self.address, self.dashboard = (f"127.0.0.1:{_free_port()}" for _ in range(2))
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        self.environment = {**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": str(START_S)}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for name in ("n0", "n1", "n2"):
                self.start(name)
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

    def kill(self, name: str) -> None:
        """End a node at once, with all its processes, as if its power had failed."""
        node = self._nodes.pop(name)
        family = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)] if node.poll() is None else []
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        node.wait()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
