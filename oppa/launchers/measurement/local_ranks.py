"""Measure on this host with ranks of its own. It starts as a program, under a guard that ends all its processes.

This process imports torch, then forks each rank. Rank 0 writes its progress and its measurement into the folder.
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from oppa.errors import OppaError
from oppa.launchers.measurement.one_rank import measure_rank
from oppa.launchers.measurement.ranks import LaunchedRank

ANSWER, PROGRESS, FAILURE = "measurement.json", "progress.txt", "failure.json"


def main() -> None:
    """Fork the ranks, wait for all of them, and exit with the first nonzero code."""
    ranks, folder, figure_s, on_cuda = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "cuda"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo resolves the host's own name, which may fail
    children = [pid for rank in range(ranks) if (pid := _fork(rank, ranks, folder, figure_s, on_cuda=on_cuda))]
    codes: list[int] = []
    while len(codes) < len(children):
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
        if codes[-1]:
            break  # the guard ends the others, which would wait for this one
    sys.exit(abs(next(filter(None, codes), 0)))


def _fork(rank: int, ranks: int, folder: Path, figure_s: float, *, on_cuda: bool) -> int:
    """Return the process of a rank. In that process, measure and exit."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        own = LaunchedRank(rank=rank, world=ranks, local=rank, host=socket.gethostname())
        found = measure_rank(own, figure_s=figure_s, on_cuda=on_cuda, meeting=f"file://{folder}/rendezvous", tell=_teller(folder))
        if found:
            (folder / ANSWER).write_text(json.dumps(found.to_dict()))
        code = 0
    except OppaError as error:
        (folder / FAILURE).write_text(json.dumps({"message": error.message, "hint": error.hint}))
    except Exception as error:  # noqa: BLE001 (a fork must not return into the parent's code)
        sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _teller(folder: Path) -> Callable[[str], None]:
    def tell(what: str) -> None:
        (folder / PROGRESS).write_text(what)

    return tell
