"""End what a test has started, also after a failure, so that no test waits for it without a limit."""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

A = TypeVar("A")
R = TypeVar("R")


@contextlib.contextmanager
def ending(process: "subprocess.Popen[Any]") -> Iterator["subprocess.Popen[Any]"]:
    """Kill a process after the block unless it has ended; `with process` alone would wait for it."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def end(process: "subprocess.Popen[Any]", *, grace_s: float = 10) -> None:
    """Wait for a process that has been asked to end, and kill it if it does not."""
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def join(process: BaseProcess, *, grace_s: float = 30) -> None:
    """Wait for a process that is about to end, and kill it if it does not."""
    process.join(grace_s)
    process.kill()
    process.join()


def at_once(work: Callable[[A], R], arguments: Iterable[A], *, limit_s: float = 120) -> list[R]:
    """Return the results for all arguments, which threads compute at once; a thread that never ends is left behind."""
    futures: list[Future[R]] = []
    for argument in arguments:
        futures.append(future := Future())
        threading.Thread(target=_fulfil, args=(future, work, argument), daemon=True).start()
    return [future.result(limit_s) for future in futures]


def _fulfil(future: "Future[R]", work: Callable[[A], R], argument: A) -> None:
    try:
        future.set_result(work(argument))
    except BaseException as error:  # noqa: BLE001 (the caller gets it)
        future.set_exception(error)
