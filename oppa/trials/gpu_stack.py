"""Find what trials run on below torch: the NVIDIA driver, the NCCL that a program's own interpreter loads, and the container image.

Each of them is empty if nothing states it. The driver is that of the host which starts the study.
"""

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from oppa.problem.containers import containers

OWN_IMAGE = "OPPA_IMAGE"
"""Variable in which a user names the image, with its digest, where the container's software does not."""
IMAGES = (OWN_IMAGE, "PYXIS_CONTAINER_IMAGE", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""Variables that hold the image: pyxis reads its own from the environment, Apptainer and Singularity set theirs inside the container."""
NGC = (("NVIDIA PyTorch", "NVIDIA_PYTORCH_VERSION"), ("build", "NVIDIA_BUILD_ID"))
"""Variables that NVIDIA's images set, however they are started: with docker, enroot or another program."""
EDGE = 1 << 20
"""Bytes at each end of an image's file that its digest covers, as all of many GiB would take minutes to read.

A squashfs has its time of creation at the start and its tables at the end. A SIF has its UUID at the start.
"""
DIGITS = 16
"""Digits of the digest that are kept."""
DRIVER_S, NCCL_S = 30.0, 120.0
"""Seconds to wait for `nvidia-smi`, and for an interpreter to load torch from a network file system."""
_ASK_NCCL = "import torch; print('.'.join(map(str, torch.cuda.nccl.version())))"


def driver() -> str:
    """Return the version of the NVIDIA driver that `nvidia-smi` reports; empty if there is none."""
    return _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], timeout_s=DRIVER_S)


def nccl(python: Path) -> str:
    """Return the version of NCCL that the interpreter's torch loads; empty if it loads none."""
    return _first_line([str(python), "-c", _ASK_NCCL], timeout_s=NCCL_S)


def image(words: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> str:
    """Return the image that a launch line or the environment states; empty if neither does.

    A file's digest follows its path, since a new image may have the path of an old one.
    """
    of_line = (each.image for each in containers(words) if each.image)
    if named := next(of_line, "") or next((environment[name] for name in IMAGES if environment.get(name)), ""):
        return f"{named}{_digest(Path(named))}"
    return ", ".join(f"{title} {environment[name]}" for title, name in NGC if environment.get(name))


def _digest(file: Path) -> str:
    """Return a digest of a file's size and both ends, as it follows the file's path; empty if it is no regular file here."""
    try:
        if not file.is_file():
            return ""
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            found = hashlib.sha256(str(size).encode())
            for at in (0, max(size - EDGE, 0)):
                opened.seek(at)
                found.update(opened.read(EDGE))
    except (OSError, ValueError):  # a name in a registry, or a path outside the container
        return ""
    return f" (sha256 of size and ends {found.hexdigest()[:DIGITS]})"


def _first_line(argv: Sequence[str], *, timeout_s: float) -> str:
    """Return the first line that a program prints; empty if it is missing, fails or prints nothing."""
    given = {**os.environ, "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            argv, env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return next((line.strip() for line in done.stdout.splitlines() if line.strip()), "")
