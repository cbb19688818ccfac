"""Time all-reduces among ranks over loopback. It starts as a program, under a guard that ends all its processes.

    python -m experiments.timings.allreduce_ranks RANKS FOLDER REPEATS BYTES...

This process imports torch, then forks each rank. Rank 0 writes the seconds of each size to `FOLDER/seconds.json`.
"""

import datetime
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ANSWER = "seconds.json"
_WARM_UP = 5
_TIMEOUT = datetime.timedelta(seconds=60)


def main(ranks: int, folder: Path, repeats: int, sizes: list[int]) -> int:
    """Fork the ranks and wait for all of them. Return the first nonzero exit code, or 0."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo resolves the host's own name, which may fail
    children = [pid for rank in range(ranks) if (pid := _fork(rank, ranks, folder, repeats, sizes))]
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in children]
    return next(filter(None, codes), 0)


def _fork(rank: int, ranks: int, folder: Path, repeats: int, sizes: list[int]) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks, timeout=_TIMEOUT)
        seconds = [_timed(torch.zeros(size // 4), repeats) for size in sizes]
        if rank == 0:
            (folder / ANSWER).write_text(json.dumps(seconds))
        dist.barrier()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _timed(values: torch.Tensor, repeats: int) -> list[float]:
    """Return the seconds of each all-reduce of these values, run back to back."""
    seconds = []
    for _ in range(_WARM_UP + repeats):
        start = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - start)
    return seconds[_WARM_UP:]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(size) for size in sys.argv[4:]]))
