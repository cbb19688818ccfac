"""Trials for the tests: the real program, in real trial folders, one process per rank forked from a warm one.

Started as `python -P gang.py`; each line on stdin is `{"folder": ..., "world": ...}`, each line on stdout the ranks' exit codes.
"""

import json
import os
import sys
from pathlib import Path

import train


def launch(folder: Path, rank: int, world: int) -> int:
    """Fork one rank; its process id."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.environ["OPPA_RENDEZVOUS"] = f"file://{folder}/rendezvous"
        log = os.open(folder / "stderr.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = train.run(folder, rank, world)
    finally:
        os._exit(code)


def main() -> None:
    """Run trials until stdin ends."""
    print(json.dumps({"threads": len(list(Path("/proc/self/task").iterdir()))}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        ranks = [launch(Path(order["folder"]), rank, order["world"]) for rank in range(order["world"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
