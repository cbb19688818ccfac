"""Run programs on ranks that are forked from one process, after all imports.

Started as `python -P rank_server.py` by `ServerProcess`. A line on stdin is a request, `{"number": ..., "program": ..., "folder": ...,
"world": ..., "limit_s": ...}`. The answer is a line on stdout: its number, and the ranks' exit codes. Each rank writes its result to
`<rank>.json` in the folder, and its output to `stderr.log`. Ranks that run after `limit_s` are killed.

Standing ranks serve many requests: they keep their rendezvous and create new process groups for every layout. If one of them fails, all of
them end, and the next request forks others. The programs in `FRESH` run on ranks of their own, which end with the request.
"""

import contextlib
import functools
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import train

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.training.parallel.mesh import open_mesh
from tests.training import chain_ranks, gradient_ranks, memory_ranks, mixtures, resuming_ranks
from tests.training.rank_exits import exit_codes
from tests.training.standing import Ranks

TIMEOUT_S = 60.0
"""Longest time for which standing ranks wait for each other."""
OPEN = set[int]()
"""Pipes of this process to standing ranks, which no other rank may hold open."""


def trial(folder: Path, rank: int, world: int) -> int:
    """Run one rank of a trial as the torch runner does."""
    os.environ["OPPA_RENDEZVOUS"] = f"file://{folder}/rendezvous"
    return int(train.run(folder, rank, world))


def hang(*_: object) -> None:
    time.sleep(3600)


STANDING = {"chain": chain_ranks.run, "standing, stuck": hang, "nothing": lambda *_: None, **gradient_ranks.STANDING}
FRESH = {"memory": memory_ranks.run, "moe": mixtures.run, "resuming": resuming_ranks.run, "stuck": hang, **gradient_ranks.FRESH}


def redirect(folder: Path) -> None:
    log = os.open(folder / "stderr.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def fork(work: Callable[[], int]) -> int:
    """Fork a rank that ends with the exit code that `work` returns; return its process id."""
    if child := os.fork():
        return child
    code = 70
    try:
        code = work()
    except Exception:  # noqa: BLE001 - this log is where it is read
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def fresh(request: dict, rank: int) -> int:
    folder, world = Path(request["folder"]), request["world"]
    for pipe in OPEN:
        os.close(pipe)
    redirect(folder)
    if request["program"] == "trial":
        return trial(folder, rank, world)
    (folder / f"{rank}.json").write_text(json.dumps(FRESH[request["program"]](folder, rank, world)))
    return 0


class StandingRanks:
    """Serves requests on standing ranks, as many as `world`."""

    def __init__(self, world: int, folder: Path) -> None:
        pipes = [(os.pipe(), os.pipe()) for _ in range(world)]
        OPEN.update(end for pair in pipes for both in pair for end in both)
        self._ranks = [fork(functools.partial(self._serve, rank, world, *pipes[rank], folder)) for rank in range(world)]
        self._requests, self._answers = [orders[1] for orders, _ in pipes], [answers[0] for _, answers in pipes]
        for orders, answers in pipes:
            self._close([orders[0], answers[1]])

    def run(self, request: dict, until: float) -> list[int]:
        """Return the exit codes of a request; a code other than 0 means that the ranks are gone, as they are at the time `until`."""
        try:
            for pipe in self._requests:
                os.write(pipe, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:  # a rank has ended since the last request
            return self.end()
        waiting = set(self._answers)
        while waiting:
            answered = select.select(list(waiting), [], [], max(0.0, until - time.monotonic()))[0]
            if not answered:
                return self.end()
            for pipe in answered:
                if not os.read(pipe, 1):
                    return self.end()
                waiting.remove(pipe)
        for pipe in self._requests:
            os.write(pipe, b"\n")  # all have answered, so that they may rest
        return [0] * len(self._ranks)

    def end(self) -> list[int]:
        for rank in self._ranks:
            os.kill(rank, signal.SIGKILL)
        self._close([*self._requests, *self._answers])
        return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in self._ranks]

    def _serve(self, rank: int, world: int, orders: tuple[int, int], answers: tuple[int, int], folder: Path) -> int:
        for pipe in OPEN - {orders[0], answers[1]}:
            os.close(pipe)
        alone = Configuration(dp=world, global_batch=world, micro_batch=1)
        cluster, rendezvous = Cluster(devices_per_host=world, memory_limit_bytes=1 << 30), f"file://{folder}/standing"
        with open_mesh(alone, cluster, rank=rank, world=world, rendezvous=rendezvous, timeout_s=TIMEOUT_S) as mesh:
            ranks = Ranks(mesh)
            del mesh
            for line in os.fdopen(orders[0]):
                if not line.strip():
                    ranks.rest()
                    continue
                request = json.loads(line)
                redirect(Path(request["folder"]))
                found = STANDING[request["program"]](Path(request["folder"]), ranks)
                Path(request["folder"], f"{rank}.json").write_text(json.dumps(found))
                os.write(answers[1], b".")
        return 0

    @staticmethod
    def _close(pipes: list[int]) -> None:
        for pipe in pipes:
            os.close(pipe)
            OPEN.discard(pipe)


def main() -> None:
    """Serve requests until stdin ends."""
    print(json.dumps(len(list(Path("/proc/self/task").iterdir()))), flush=True)  # threads, of which a fork would keep one
    gc.freeze()  # ranks collect their own objects alone
    standing = dict[int, StandingRanks]()
    for line in sys.stdin:
        request = json.loads(line)
        world, until = request["world"], time.monotonic() + request["limit_s"]
        if request["program"] in STANDING:
            if world not in standing:
                standing[world] = StandingRanks(world, Path(request["folder"]))
            if any(codes := standing[world].run(request, until)):
                del standing[world]
        else:
            ranks = [fork(functools.partial(fresh, request, rank)) for rank in range(world)]
            codes = exit_codes(ranks, until)
        print(json.dumps({"number": request["number"], "codes": codes}), flush=True)
    for ranks in standing.values():
        with contextlib.suppress(ProcessLookupError):
            ranks.end()
    os._exit(0)  # saves the second that tearing torch down takes


if __name__ == "__main__":
    main()
