"""Wait until the device memory of a dead trial is released; otherwise the next trial would run out of memory."""

import logging
import os
import re
import shutil
import subprocess
import time

_SLACK_BYTES = 512 << 20
_PATIENCE_S = 10.0
_NAMED = re.compile(r"(\d+|GPU(-[0-9a-f]+){5})(,(\d+|GPU(-[0-9a-f]+){5}))*")
"""Devices as both CUDA and `nvidia-smi` name them; CUDA also takes the beginning of a UUID."""
_log = logging.getLogger(__name__)


def used_bytes() -> int | None:
    """Return the memory in use on the CUDA devices that this process sees, in bytes, or None if `nvidia-smi` does not report it.

    CUDA_VISIBLE_DEVICES names them, by indices or whole UUIDs; given anything else, all devices of this host count.
    """
    if shutil.which("nvidia-smi") is None:
        return None
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    visible = [f"--id={named}"] if _NAMED.fullmatch(named) else []
    query = ["nvidia-smi", *visible, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
        return sum(int(line) << 20 for line in answer.stdout.split())
    except (subprocess.SubprocessError, ValueError):
        return None


def wait_until_released(before_bytes: int | None) -> None:
    """Wait until at most 512 MiB more device memory is in use than before the first trial; after 10 s, log a warning and return.

    Args:
        before_bytes: Memory in use before the first trial; None: do not wait.
    """
    if before_bytes is None:
        return
    deadline = time.monotonic() + _PATIENCE_S
    while (used := used_bytes()) is not None and used > before_bytes + _SLACK_BYTES:
        if time.monotonic() > deadline:
            _log.warning("%d MiB of device memory are still in use after the last trial ended", (used - before_bytes) >> 20)
            return
        time.sleep(0.2)
