"""Run independent parts of a benchmark in processes of their own, which end with this one."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

from oppa.errors import EnvironmentLackingError
from oppa.trials.processes import die_with_parent


@contextlib.contextmanager
def worker_pool(workers: int | None = None) -> Iterator[concurrent.futures.Executor]:
    """Yield a pool of processes, which are killed if the block fails; by default there is one for each core that this process may use.

    Raises:
        EnvironmentLackingError: a process of the pool was killed.
    """
    count, context = workers or len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(count, context, initializer=_settle, initargs=(os.getpid(),))
    try:
        yield pool
    except BaseException as error:
        for worker in multiprocessing.active_children():  # the next call repeats their work
            worker.kill()
        if isinstance(error, BrokenProcessPool):
            hint = "check with `dmesg` whether the machine is out of memory, and use fewer cores: `taskset -c 0`"
            raise EnvironmentLackingError("a process of the benchmark was killed", hint=hint) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _settle(parent: int) -> None:
    """Make a worker end with its parent and ignore SIGINT, which the parent handles."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
