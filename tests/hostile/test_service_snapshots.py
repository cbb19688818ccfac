"""A service that starts again has the state of a full replay, whatever its snapshots are, and replays few messages where they are whole."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.registry import POLICIES, policy_of
from oppa.control.service.burst_log import BurstLog
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.job import ControlledJob
from oppa.control.service.job_store import LEAST, UNSAVED, JobStore
from oppa.control.service.journal import FILE, Journal
from oppa.control.service.tokens import Tokens
from oppa.errors import InputError
from oppa.protocol.messages import Ack, Changed, Decided, StepTaken, Welcome
from tests.control.services import PRESENT, heard, hello, line, serving, step, worker
from tests.sampling import nightly

CUTS = (1, 57, 250, 311, 400)
Take = Callable[[StepTaken | Changed], Decided | None]


def simulate_run(take: Take, steps: int) -> list[StepTaken | Changed]:
    """Do most of what is decided, with failures, a loss spike and a growing noise scale; return all messages."""
    random_, present, said = random.Random(1), PRESENT, list[StepTaken | Changed]()

    def tell(message: StepTaken | Changed) -> Decided | None:
        said.append(message)
        return take(message)

    for number in range(steps):
        facts = {"configuration": present, "step_time_s": random_.uniform(0.1, 0.5), "noise_scale": 10 * 1.01**number}
        ratios = {"variance_ratio": 50 * 1.01**number, "worker_variance_ratio": 0.5, "loss": 30.0 if 300 < number < 330 else 3.0}
        workers = [worker()] if number % 20 == 0 else []
        decided = tell(step(len(said) + 1, **facts, **ratios, workers=workers))
        if decided is not None and decided.command != "no_op" and random_.random() < 0.9:
            failure = "out of memory" if random_.random() < 0.3 else ""
            changed = {"before": present, "after": decided.configuration, "local_batches": decided.local_batches, "seconds": 1.0}
            tell(Changed(number=len(said) + 1, **changed, failure=failure))
            present = present if failure or decided.local_batches else decided.configuration
    return said


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_restored_goes_on_as_if_nothing_had_happened(name: str, table) -> None:
    control = ControllerFactory(table, policy_of(name), every=5, policy=name)
    whole, texts = ControlledJob(hello(total_samples=10**6), control), dict[int, str]()

    def take(message: StepTaken | Changed) -> Decided | None:
        decided = whole.take(message)
        texts[len(texts) + 1] = json.dumps(whole.snapshot()) if len(texts) + 1 in CUTS else ""
        return decided

    said = simulate_run(take, 500)
    for cut in CUTS:
        restored = ControlledJob(hello(total_samples=10**6), control)
        restored.restore(json.loads(texts[cut]))
        for message in said[cut:]:
            restored.take(message)
        assert restored.snapshot() == whole.snapshot() and restored.history.points == whole.history.points


def filled(folder: Path, messages: int, jobs: int = 1) -> None:
    """A journal of so many messages of each job."""
    journal = Journal(folder)
    for name in (f"job-{number}" for number in range(jobs)):
        journal.begin(name, hello(name).to_json())
        said = simulate_run(lambda message: None, messages)
        journal.add((name, message.number, message.to_json()) for message in said)
    journal.close()


def started(folder: Path, table, policy: str = "goodput") -> tuple[dict[str, dict], dict[str, int]]:
    """The state of each job after a start, and the messages that were replayed since its snapshot; then the service is killed."""
    store = JobStore(folder, ControllerFactory(table, GoodputPolicy, every=5, policy=policy), BurstLog())
    found = {name: job.snapshot() for name, job in store.jobs.items()}, {name: job.unsaved for name, job in store.jobs.items()}
    store._disk.submit(store._journal.close).result()
    store._disk.shutdown()
    return found


def test_a_second_start_replays_nothing_and_knows_as_much(tmp_path: Path, table) -> None:
    filled(tmp_path, 300, jobs=2)
    first, _ = started(tmp_path, table)
    again, replayed = started(tmp_path, table)
    without, _ = started(tmp_path, table, policy="")
    assert first == again == without and first["job-0"]["number"] == 300
    assert replayed == {"job-0": 0, "job-1": 0}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("messages", [5_000, *nightly(1_000_000)])
def test_a_start_replays_nothing_whatever_the_age_of_the_journal(messages: int, tmp_path: Path, table) -> None:
    """The first start is the full replay. `oppa bench service` measures how long both take."""
    said, journal = simulate_run(lambda message: None, 500)[:500], Journal(tmp_path)
    journal.begin("job-0", hello("job-0").to_json())
    for first in range(0, messages, len(said)):
        journal.add(("job-0", first + each.number, each.model_copy(update={"number": first + each.number}).to_json()) for each in said)
    journal.close()
    full, _ = started(tmp_path, table)
    found, replayed = started(tmp_path, table)
    assert found == full and found["job-0"]["number"] == messages and replayed == {"job-0": 0}


def test_only_the_messages_after_the_snapshot_are_replayed(tmp_path: Path, table) -> None:
    filled(tmp_path, 300)
    started(tmp_path, table)
    journal = Journal(tmp_path)
    journal.add(("job-0", number, step(number).to_json()) for number in range(301, 341))
    journal.close()
    state, replayed = started(tmp_path, table)
    assert replayed == {"job-0": 40} and state == started(tmp_path, table, policy="")[0]


DAMAGE = {
    "its state": "update snapshots set state = replace(state, '0.', '1.')",
    "a state that is cut": "update snapshots set state = substr(state, 1, 1000)",
    "its number": "update snapshots set number = number - 1",
    "its digest": "update snapshots set digest = ''",
    "its job": "insert into jobs values ('other', (select hello from jobs)); update snapshots set job = 'other'",
    "a message that the journal lacks": "delete from messages where number = 300",
    "no state": "update snapshots set state = ''",
    "numbers": "update snapshots set state = 1, digest = 2",
    "bytes": "update snapshots set state = x'ff00', digest = x'ff'",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_snapshot_is_ignored(kind: str, tmp_path: Path, table) -> None:
    filled(tmp_path, 300)
    started(tmp_path, table)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.executescript(DAMAGE[kind].replace("(select hello from jobs)", f"'{hello('other').to_json()}'"))
    db.close()
    found, _ = started(tmp_path, table)
    assert found == started(tmp_path, table, policy="")[0]


def test_a_damaged_message_costs_no_other_message(tmp_path: Path, table, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 300)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("update messages set text = '{\x1b[2J' where number in (7, 8)")
    db.close()
    state, replayed = started(tmp_path, table, policy="")
    assert state["job-0"]["number"] == 300 and replayed == {"job-0": 298}
    assert caplog.text.count("a message in the journal is damaged") == 1 and "\x1b" not in caplog.text


@pytest.mark.parametrize("damage", ["update jobs set hello = '{'", "update jobs set name = 'other'", "update jobs set hello = x'ff'"])
def test_a_damaged_hello_is_an_error_that_names_the_journal(damage: str, tmp_path: Path, table) -> None:
    filled(tmp_path, 3)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute(damage)
    db.close()
    with pytest.raises(InputError, match=r"journal\.db` is damaged") as error:
        started(tmp_path, table)
    assert "move it away" in error.value.hint
    Journal(tmp_path).close()


@pytest.mark.parametrize("changed", ["policy", "table", "interval"])
def test_the_snapshot_of_another_policy_table_or_interval_is_ignored(changed: str, tmp_path: Path, table, table_of) -> None:
    filled(tmp_path, 300)
    started(tmp_path, table)
    other = table_of(table.rows[1:]) if changed == "table" else table
    policy, every = "static" if changed == "policy" else "goodput", 7 if changed == "interval" else 5
    states = []
    for name in (policy, ""):
        store = JobStore(tmp_path, ControllerFactory(other, policy_of(policy), every=every, policy=name), BurstLog())
        states.append(store.jobs["job-0"].snapshot())
        store.close()
    assert states[0] == states[1]


def test_a_service_takes_snapshots_while_it_runs(tmp_path: Path, table) -> None:
    """A start after a kill then replays few messages."""
    filled(tmp_path, 300)
    with serving(tmp_path, table, GoodputPolicy, policy="goodput") as (service, port):
        for number in range(UNSAVED // LEAST):  # so many jobs share what a start replays
            service.jobs.setdefault(f"idle-{number}", ControlledJob(hello(f"idle-{number}"), service._store._control))
        with line(port, service.tokens.of_job("job-0"), "job-0") as opened:
            opened.send(hello("job-0").to_json())
            assert heard(opened) == Welcome(number=300)
            for number in range(301, 301 + 2 * LEAST):
                opened.send(step(number).to_json())
            while not (isinstance(said := heard(opened), Ack) and said.number == 300 + 2 * LEAST):
                pass
            stored = service._store._disk.submit(service._store._journal.snapshot, "job-0").result()
            assert stored is not None and stored.number >= 300 + LEAST


PROGRAM = """
import contextlib, pathlib, sys, threading
from oppa.control.policies.goodput import GoodputPolicy
from oppa.table import Table
from tests.control.services import serving
with serving(pathlib.Path(sys.argv[1]), Table.read(folder=pathlib.Path(sys.argv[2])), GoodputPolicy, policy="goodput") as (_, port):
    print(port, flush=True)
    threading.Event().wait()
"""


@pytest.mark.slow
def test_what_was_acknowledged_outlives_any_kill(tmp_path: Path, table, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed at any moment, while it writes snapshots."""
    table.write(tmp_path / "table")
    token, random_, acknowledged = Tokens.of(tmp_path / "control").of_job("a-job"), random.Random(2), 0
    for _ in range(6):
        words = [sys.executable, "-c", PROGRAM, tmp_path / "control", tmp_path / "table"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            try:
                with line(int(running.stdout.readline()), token) as opened:
                    opened.send(hello().to_json())
                    welcome = heard(opened)
                    assert isinstance(welcome, Welcome) and welcome.number >= acknowledged
                    last, ends = welcome.number, welcome.number + random_.randrange(50, 400)
                    for number in range(last + 1, last + 600):
                        opened.send(step(number).to_json())
                    while acknowledged < ends:
                        acknowledged = said.number if isinstance(said := heard(opened), Ack) else acknowledged
                    running.send_signal(signal.SIGKILL)
            except ConnectionClosed:
                pass
            finally:
                running.kill()
    states = [started(tmp_path / "control", table, policy)[0] for policy in ("goodput", "")]
    assert states[0] == states[1] and states[0]["a-job"]["number"] >= acknowledged
