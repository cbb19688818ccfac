"""Fork the ranks of one program of these tests from a process that has imported it, with the environment that torchrun gives them.

Started as `python -P rank_server.py MODULE` by `ServerProcess`. A line on stdin is a request, `{"number": ..., "words": ..., "world": ...,
"log": ..., "environment": ..., "limit_s": ...}`. The answer is a line on stdout: its number, and the ranks' exit codes. The output of all
ranks goes to the file `log`. Ranks that run after `limit_s` are killed.
"""

import importlib
import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.training.rank_exits import exit_codes


def main() -> None:
    """Serve requests until stdin ends."""
    program = importlib.import_module(sys.argv[1])
    importlib.import_module("torch._dynamo")  # which every optimizer loads at its first step
    print(json.dumps(sys.argv[1]), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        until, threads = time.monotonic() + request["limit_s"], len(list(Path("/proc/self/task").iterdir()))
        assert threads == 1, f"a fork would keep one of {threads} threads"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = [_fork(program, request, rank, port) for rank in range(request["world"])]
        print(json.dumps({"number": request["number"], "codes": exit_codes(ranks, until)}), flush=True)


def _fork(program: Any, request: dict[str, Any], rank: int, port: int) -> int:
    """Fork a rank that runs the program; return its process id."""
    if child := os.fork():
        return child
    code = 1
    try:
        for descriptor in (1, 2):
            os.dup2(os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        os.environ.update(request["environment"] | _torchruns(rank, request["world"], port))
        sys.argv = [program.__file__, *request["words"]]
        program.main()
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must not go on as a second server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _torchruns(rank: int, world: int, port: int) -> dict[str, str]:
    """Return the variables of a rank under torchrun on one host."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    sizes = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "ROLE_WORLD_SIZE": world, "GROUP_WORLD_SIZE": 1}
    elastic = {"TORCHELASTIC_RUN_ID": "tests", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    values = {**ranks, **sizes, **elastic, "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in values.items()}


if __name__ == "__main__":
    main()
