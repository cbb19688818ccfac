"""A rank that hangs ends by a deadline, and a server that hangs is replaced."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.rank_exits import exit_codes
from tests.training.rank_pool import RankPool
from tests.training.server_process import ServerProcess

SERVER = """
import json, sys, time
print(json.dumps({"threads": 1}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(request["sleep_s"])
    print(json.dumps({"number": request["number"] - request["late"], "codes": [request["code"]]}), flush=True)
time.sleep(60)
"""


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    made = ServerProcess([sys.executable, "-c", SERVER], os.environ)
    yield made
    made.end(grace_s=0.0)


def test_ranks_that_run_at_the_deadline_are_killed() -> None:
    ranks = []
    for pause_s, code in ((60.0, 1), (0.0, 7)):
        if not (child := os.fork()):
            time.sleep(pause_s)
            os._exit(code)
        ranks.append(child)
    assert exit_codes(ranks, time.monotonic() + 0.2) == [-signal.SIGKILL, 7]


def test_after_a_request_that_was_broken_off_the_next_one_gets_its_own_answer(server: ServerProcess) -> None:
    assert server.request(sleep_s=0, late=0, code=3) == [3] and server.greeting == {"threads": 1}
    before = signal.signal(signal.SIGUSR1, lambda *_: pytest.fail("the test takes too long"))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    with pytest.raises(pytest.fail.Exception, match="too long"):
        server.request(sleep_s=60, late=0, code=4)
    signal.signal(signal.SIGUSR1, before)
    assert server.request(sleep_s=0, late=0, code=5) == [5]


def test_the_answer_to_another_request_is_an_error_and_the_server_is_replaced(server: ServerProcess) -> None:
    with pytest.raises(AssertionError, match="answers request 0 instead of 1"):
        server.request(sleep_s=0, late=1, code=3)
    assert server.request(sleep_s=0, late=0, code=4) == [4]


def test_a_server_that_does_not_end_with_its_input_is_killed(server: ServerProcess) -> None:
    server.request(sleep_s=0, late=0, code=0)
    begin_s = time.monotonic()
    server.end(grace_s=0.1)
    assert time.monotonic() - begin_s < 30


@pytest.mark.slow
@pytest.mark.parametrize("program", ["stuck", "standing, stuck"])
def test_programs_that_hang_are_killed_and_the_next_request_runs(program: str, pool: RankPool, tmp_path: Path) -> None:
    assert pool.request(program, 2, pool.new_folder(), limit_s=1.0) == [-signal.SIGKILL] * 2
    assert pool.request("nothing", 2, pool.new_folder()) == [0, 0]
