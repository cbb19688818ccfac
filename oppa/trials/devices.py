"""Device memory that a dead trial has not given back yet would make the next one run out of memory: wait for it."""

import logging
import shutil
import subprocess
import time

_SLACK_BYTES = 512 << 20
_PATIENCE_S = 10.0
_log = logging.getLogger(__name__)


def used_bytes() -> int | None:
    """Memory in use on all CUDA devices of this host; None where `nvidia-smi` cannot tell."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
        return sum(int(line) << 20 for line in answer.stdout.split())
    except (subprocess.SubprocessError, ValueError):
        return None


def wait_until_released(before_bytes: int | None) -> None:
    """Return when no more memory is in use than before our first trial, or, with a warning, when that takes too long."""
    if before_bytes is None:
        return
    deadline = time.monotonic() + _PATIENCE_S
    while (used := used_bytes()) is not None and used > before_bytes + _SLACK_BYTES:
        if time.monotonic() > deadline:
            _log.warning("%d MiB of device memory are still in use after the last trial ended", (used - before_bytes) >> 20)
            return
        time.sleep(0.2)
