"""A study whose file is damaged, removed or replaced: what is readable is used, the rest is named, and no success is claimed for it."""

import contextlib
import dataclasses
import itertools
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.faults.inputs import studies
from experiments.faults.law import judge
from oppa.errors import StudyError
from oppa.problem.configuration import Configuration
from oppa.study import Prediction, Study, database

A = Configuration(dp=2, global_batch=8, micro_batch=1)
B = dataclasses.replace(A, micro_batch=2)
COMPLETED = studies.completed()


@pytest.fixture
def study(tmp_path: Path):
    with Study.create(tmp_path / "study", {"name": "a problem"}, "fingerprint") as made:
        for configuration in (A, B):
            lease = made.claim(configuration, prediction=Prediction(steps_per_s=1.5, log_stddev=0.2))
            made.finish(lease, COMPLETED)
        yield made


def changed(study: Study, **values: object) -> None:
    """Write values into the first trial's row, from outside."""
    with contextlib.closing(sqlite3.connect(study.folder / database.FILE)) as connection, connection:
        names = ", ".join(f"{name} = ?" for name in values)
        connection.execute(f"UPDATE trials SET {names} WHERE id = 1", tuple(values.values()))


@pytest.mark.parametrize(
    "values",
    [
        {"step_times_s": "[1e-300, 1e-300]"},
        {"step_times_s": "[1, 1e308]"},
        {"step_times_s": "[1, NaN]"},
        {"step_times_s": "[" * 100_000},
        {"step_times_s": '{"a": 1}'},
        {"steps_per_s": 1e300},
        {"steps_per_s": -1.0},
        {"steps_per_s": "fast"},
        {"variance": -0.1},
        {"variance": float("inf")},
        {"memory_bytes": 2**62},
        {"memory_bytes": b"\xff\xfe"},
        {"rank": -1},
        {"outcome": "finished"},
        {"purpose": "searcg"},
        {"cause": 7.5, "outcome": b"completed"},
        {"configuration": "{}"},
        {"configuration": "null"},
        {"configuration": '{"dp": "2", "global_batch": 8, "micro_batch": 1}'},
        {"configuration": '{"dp": 0, "global_batch": 8, "micro_batch": 1}'},
        {"configuration": '{"dp": 2, "global_batch": 8, "micro_batch": 1, "cp": 2, "knobs": {"cp": {"short": "../../x"}}}'},
        {"configuration": '{"dp": 2, "global_batch": 8, "micro_batch": 1, "cp": 2, "knobs": {"cp": {"degree": 1}}}'},
        {"configuration": '{"dp": 2, "global_batch": 8, "micro_batch": 1, "cp": 2, "knobs": {"cp": 5}}'},
        {"configuration": '{"dp": 2, "global_batch": 8, "micro_batch": 1, "cp": 2, "knobs": ["cp"]}'},
        {"configuration": '{"dp": 2, "global_batch": 8, "micro_batch": 1, "cp": [2]}'},
        {"configuration": '{"dp": 2, "global_batch": 8, "micro_batch": 1, "c p": 2}'},
        {"configuration": '{"dq": 2, "global_batch": 8, "micro_batch": 1}'},
        {"configuration": "\ud800".encode("utf-8", "surrogatepass")},
        {"prediction": '{"steps_per_s": 0, "log_stddev": 1}'},
        {"prediction": "[]"},
        {"started_at": "yesterday"},
        {"seconds": -1.0},
    ],
    ids=lambda values: ", ".join(f"{name}={value!r:.40}" for name, value in values.items()),
)
def test_a_damaged_row_is_set_apart_and_the_rest_is_used(study: Study, values: dict[str, object]) -> None:
    changed(study, **values)
    for _ in range(2):
        assert [trial.configuration for trial in study.trials()] == [B]
        assert list(study.damaged()) == [1] and study.damaged()[1]
    assert study.claim(A) is not None, "its configuration can be tried again"


def test_a_stored_cause_carries_no_escapes(study: Study) -> None:
    changed(study, outcome="failed", cause="\x1b]0;evil\x07[/b]<b>", traceback="\x1b[2J")
    (first, _) = study.trials()
    assert "\x1b" not in first.cause + first.traceback and "[/b]<b>" in first.cause


def test_damaged_facts_of_sessions_and_leases_cost_nothing_else(study: Study) -> None:
    study.open_session({"command": "oppa tune"})
    study.claim(dataclasses.replace(A, micro_batch=4))
    with contextlib.closing(sqlite3.connect(study.folder / database.FILE)) as connection, connection:
        connection.execute("UPDATE sessions SET facts = '[', seen_at = 'later'")
        connection.execute("UPDATE trials SET tuner = 'nobody', lease_until = 'soon', configuration = '?' WHERE outcome IS NULL")
    with Study(study.folder) as other:
        assert other.sessions() == [] and other.spent_s() == 0 and other.running() == []
        assert other.recover() == [3] and list(other.damaged()) == [] and len(other.trials()) == 2 and list(other.damaged()) == [3]


def test_facts_of_the_study_that_are_damaged_are_an_error(study: Study) -> None:
    with contextlib.closing(sqlite3.connect(study.folder / database.FILE)) as connection, connection:
        connection.execute("UPDATE meta SET value = '[1' WHERE key = 'problem'")
    study.close()
    with pytest.raises(StudyError, match="facts of the study are damaged"):
        Study(study.folder)


def test_a_problem_that_is_none_is_an_error(study: Study) -> None:
    with pytest.raises(StudyError, match="the problem of the study in"):
        _ = study.problem


def test_a_problem_that_was_changed_is_an_error(study: Study) -> None:
    with contextlib.closing(sqlite3.connect(study.folder / database.FILE)) as connection, connection:
        connection.execute("UPDATE meta SET value = json_set(value, '$.name', 'another') WHERE key = 'problem'")
    with Study(study.folder) as other, pytest.raises(StudyError, match="was changed after oppa stored it"):
        _ = other.problem


@pytest.mark.slow
def test_hostile_studies_with_knobs_are_used_or_refused() -> None:
    verdicts = [judge(case, studies.read) for case in itertools.islice(studies.cases(seed=0), 60)]
    assert [verdict for verdict in verdicts if verdict.answer not in ("accepted", "clear")] == []
    assert {verdict.answer for verdict in verdicts} == {"accepted", "clear"}


def removed(path: Path) -> None:
    path.unlink()


def removed_with_its_log(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()


def removed_with_its_folder(path: Path) -> None:
    removed_with_its_log(path)
    path.parent.rmdir()


def only_its_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def replaced_by_nonsense(path: Path) -> None:
    (path.parent / "other").write_bytes(b"nonsense" * 1000)
    (path.parent / "other").replace(path)


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replaced_by_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replaced_by_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def replaced_by_another_study(path: Path) -> None:
    Study.create(path.parent / "other", {"name": "another"}, "another").close()
    path.unlink()
    (path.parent / "other" / path.name).rename(path)


def overwritten(path: Path) -> None:
    path.write_bytes(b"nonsense" * 1000)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


WAYS = [
    removed,
    removed_with_its_log,
    removed_with_its_folder,
    only_its_log,
    replaced_by_nonsense,
    replaced_by_a_folder,
    replaced_by_a_fifo,
    replaced_by_a_link,
    replaced_by_another_study,
    overwritten,
    emptied,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_file_that_a_trial_removes_or_replaces_is_written_again(study: Study, way: Callable[[Path], None]) -> None:
    lease = study.claim(dataclasses.replace(A, micro_batch=4))
    way(study.folder / database.FILE)
    study.finish(lease, COMPLETED)
    study.check()
    with Study(study.folder) as other:
        assert len(other.trials()) == 3 and not other.damaged() and other.uuid == study.uuid


def test_two_tuners_go_on_in_one_file(study: Study) -> None:
    with Study(study.folder) as other:
        ours, theirs = (each.claim(dataclasses.replace(A, dp=dp)) for each, dp in ((study, 4), (other, 8)))
        removed_with_its_log(study.folder / database.FILE)
        study.finish(ours, COMPLETED)
        other.finish(theirs, COMPLETED)
        assert [trial.configuration.dp for trial in study.trials()] == [2, 2, 4, 8]
        other.check()
        study.check()


LOOK = """
import sys
from pathlib import Path
from oppa.study import Study
with Study(Path(sys.argv[1])) as study:
    print(len(study.trials()))
    if len(sys.argv) > 2:
        study.open_session({"command": sys.argv[2]})
"""


def look(study: Study, *command: str) -> None:
    """Open and close the study in a process of its own, as `oppa show` or another tuner does."""
    subprocess.run([sys.executable, "-c", LOOK, str(study.folder), *command], check=True, capture_output=True)


@pytest.mark.slow
def test_another_process_neither_removes_the_log_nor_loses_what_it_wrote(study: Study) -> None:
    """Locks of an open study hold against other processes, whatever this one reads of its files."""
    for number in range(3):
        study.claim(dataclasses.replace(A, dp=number + 3))
        look(study)
        look(study, f"another {number}")
        study.check()
    assert [each["command"] for each in study.sessions()] == ["another 0", "another 1", "another 2"]
    assert len(study.running()) == 3 and not list(study.folder.glob("*.replaced-*"))


def test_a_clock_that_steps_back_damages_nothing(tmp_path: Path) -> None:
    now = iter([1000.0] * 3 + [990.0] * 10)
    with Study.create(tmp_path / "s", {"name": "a problem"}, "f", clock=lambda: next(now)) as study:
        study.interrupt(study.claim(A), "asked to")
        assert [trial.outcome for trial in study.trials()] == ["interrupted"] and not study.damaged()


HOLD = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'rb'), fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 120)"
"""Takes the lock of SQLite's writers in the index of its log, as any reader of that file can."""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize(
    "command", [["cat"], ["touch"], ["rm", "-f"], ["/usr/bin/python3", "-c", HOLD]], ids=["cat", "touch", "rm", "hold"]
)
def test_another_user_reads_and_holds_nothing_of_a_study(command: list[str], open_to_all: Path) -> None:
    with Study.create(open_to_all / "study", {"name": "a problem"}, "fingerprint") as study:
        files = sorted(study.folder.glob(f"{database.FILE}*"))
        tried = [subprocess.run([*command, path], user=65534, group=65534, extra_groups=[], capture_output=True) for path in files]
        study.finish(study.claim(A), COMPLETED)
        assert files == sorted(study.folder.glob(f"{database.FILE}*")) and len(files) == 3
        (study.folder / database.FILE).unlink()
        study.check()
        assert (study.folder / database.FILE).stat().st_mode & 0o777 == 0o600, "also when it was written again"
    assert all(each.returncode != 0 and b"ermission denied" in each.stderr for each in tried)


def test_a_file_that_nobody_can_read_is_no_success(study: Study) -> None:
    study._connection.execute("PRAGMA shrink_memory")
    for name in (database.FILE, f"{database.FILE}-wal"):
        path = study.folder / name
        path.write_bytes(b"\xa5" * max(8192, path.stat().st_size))
    with pytest.raises(StudyError, match="cannot be used"):
        study.check()


@pytest.mark.slow
def test_any_flipped_byte_is_found_or_harmless(study: Study, tmp_path: Path) -> None:
    """The law of a damaged file: a clear error, or every trial is read, or set apart."""
    study.close()
    whole = (study.folder / database.FILE).read_bytes()
    dice = random.Random(1)
    folder = tmp_path / "flipped"
    for _ in range(500):
        folder.mkdir(exist_ok=True)
        body = bytearray(whole)
        for _ in range(dice.choice((1, 1, 1, 8))):
            body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
        for each in folder.iterdir():
            each.unlink()
        (folder / database.FILE).write_bytes(body)
        try:
            with Study(folder) as found:
                found.trials(), found.running(), found.sessions(), found.spent_s(), found.recover()
                assert len(found.trials()) + len(found.running()) <= 2
                found.damaged()
        except StudyError as error:
            assert error.message and error.hint
