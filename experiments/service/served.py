"""Run the control service as a process, and send what its jobs send."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect

from oppa.control.service.tokens import Tokens
from oppa.errors import EnvironmentLackingError
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Hello, Welcome, from_service

EVERY = 20
"""Messages of a job between two decisions."""
START_S = 30.0
_RSS = "VmRSS:"
PRESENT = Configuration(dp=1, pp=2, global_batch=16, micro_batch=4)


def hello(job: str) -> Hello:
    """Return the first message of a job."""
    return Hello(job=job, configuration=PRESENT, total_samples=None)


def facts(number: int) -> dict[str, Any]:
    """Return the fields of a step's message."""
    seen = {"step": number - 1, "samples": 16 * number, "configuration": PRESENT, "step_time_s": 0.1, "elapsed_s": 0.1 * number}
    return {**seen, "noise_scale": 100.0, "health": "healthy", "loss": 3.0, "learning_rate": 1e-3}


class Served:
    """Runs `oppa control` as a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self._process: subprocess.Popen[bytes] | None = None
        self.tokens = Tokens.of(folder / "control")

    def __enter__(self) -> "Served":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(signal.SIGTERM)

    def start(self) -> None:
        """Start the service, on the port of the previous start if there was one."""
        words = ["control", "--table", str(self.folder / "table"), "--folder", str(self.folder / "control")]
        command = [sys.executable, "-m", "oppa", *words, "--port", str(self.port), "--decision-interval", str(EVERY)]
        log = self.folder / "log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"})
        deadline = time.monotonic() + START_S
        while "127.0.0.1:" not in (text := log.read_text()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise EnvironmentLackingError(f"the service did not start: {text.strip()}", hint="run `oppa control` to see its error")
            time.sleep(0.02)
        self.port = int(text.partition("127.0.0.1:")[2].partition(",")[0])

    @property
    def runs(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def resident_bytes(self) -> int:
        """Return the resident memory of the process, in bytes."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition(_RSS)[2].split()[0]) << 10

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process and wait until it ends."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(20)

    def steps_known(self) -> dict[str, float]:
        """Return the steps that the service has counted, by job, from its metrics."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/metrics", headers={"Authorization": f"Bearer {self.tokens.of_watcher()}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [each for family in families for each in family.samples if each.name == "oppa_job_steps_total"]
        return {each.labels["job"]: each.value for each in samples}

    @contextlib.asynccontextmanager
    async def line(self, job: str) -> Any:
        """Open a job's connection, and complete its handshake."""
        headers = {"Authorization": f"Bearer {self.tokens.of_job(job)}"}
        async with connect(
            f"ws://127.0.0.1:{self.port}/job/{job}", additional_headers=headers, compression=None, proxy=None, open_timeout=60
        ) as opened:
            await opened.send(hello(job).to_json())
            assert isinstance(from_service(await opened.recv()), Welcome)
            yield opened
