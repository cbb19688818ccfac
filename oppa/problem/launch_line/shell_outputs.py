"""Compute what usual commands inside `$(...)` print, without running them: numbers, parts of paths, the number of GPUs, and the date."""

import functools
import posixpath
import re
import time
from collections.abc import Sequence

from oppa.problem.launch_line.shell_arithmetic import compute

COMPUTES = re.compile(r"\s*(expr|dirname|basename)\s")
"""Commands that print what follows from their words alone."""

_BY_TORCH = re.compile(r"""\s*python3?\s+-c\s+(["'])\s*import torch\s*;\s*print\(torch\.cuda\.device_count\(\)\)\s*;?\s*\1\s*""")
_BY_DRIVER = re.compile(r"\s*nvidia-smi\s+(-L|--list-gpus|--query-gpu=\w+ --format=csv,noheader)\s*\|\s*wc\s+-l\s*")
_DATE = re.compile(r"""\s*date\s+(?P<utc>-u\s+)?(?P<quote>["']?)\+(?P<format>(?:%[YmdHMSsyjFTBbuV]|[\w.:-])+)(?P=quote)\s*""")


def computed(words: Sequence[str]) -> str:
    """Return what `expr`, `dirname` or `basename` prints; empty for other words than a sum, a product or one path."""
    match words:
        case ["expr", *terms]:
            known = all(re.fullmatch(r"[0-9]+|[-+*/%()]", each) for each in terms)
            number = compute(" ".join(terms)) if known else None
            return "" if number is None else str(number)
        case ["dirname", path]:
            return posixpath.dirname(path.rstrip("/") or "/") or "."
        case ["basename", path]:
            return posixpath.basename(path.rstrip("/")) or path[:1]
        case ["basename", path, suffix]:
            name = posixpath.basename(path.rstrip("/"))
            return name.removesuffix(suffix) or name
    return ""


def counts_visible_gpus(command: str) -> bool:
    """Return whether a command prints the number of GPUs as torch counts them, which CUDA_VISIBLE_DEVICES restricts."""
    return _BY_TORCH.fullmatch(command) is not None


def counts_gpus(command: str) -> bool:
    """Return whether a command prints the number of all GPUs of a host."""
    return _BY_DRIVER.fullmatch(command) is not None


def printed_date(command: str) -> str:
    """Return what `date +FORMAT` printed when oppa first read a script; empty for any other command."""
    match = _DATE.fullmatch(command)
    if match is None:
        return ""
    now = time.gmtime(_first_read_s()) if match["utc"] else time.localtime(_first_read_s())
    return time.strftime(match["format"], now)


@functools.cache
def _first_read_s() -> float:
    """Return one time for all dates, so that a script that is read twice starts the same."""
    return time.time()
