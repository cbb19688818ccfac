"""A run reports its damaged or replaced files, and the controller of a spool keeps the other jobs going."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs.controller import ClusterController
from oppa.cluster.elastic_jobs.spool import ARRIVALS, ELASTIC, ENDING, HELD, STARTED, WANTED, ElasticJob
from oppa.cluster.elastic_jobs.status import status_of
from oppa.cluster.scaling import Settings
from oppa.errors import CheckpointError
from oppa.report.run import render
from oppa.training.run import ledger
from oppa.training.run.run_folder import SPEC, RunSpec
from oppa.training.run.step_times import observations
from oppa.trials.trial_folder import write_json
from tests.cluster.conftest import held, scales  # noqa: F401 - fixtures
from tests.cluster.spools import Held, InMemoryScheduler, put, started
from tests.hostile.damage import REPLACED, edits, flipped, said
from tests.table.conftest import origin, problem  # noqa: F401 - fixtures

OURS = (ELASTIC, WANTED, STARTED, ENDING, ARRIVALS)


@pytest.fixture
def spool(scales: Path) -> Path:  # noqa: F811
    """A spool of one job that has been started, and one that has not."""
    mine = put(scales, name="mine")
    put(scales, name="other")
    started(mine, 1)
    mine.set_desired(hosts=2, launches=0, failed_starts={1: 1}, start_s=3.0)
    write_json(mine.folder / ENDING, {"ending": "stopped"})
    write_json(scales.parent / "spool" / ARRIVALS, {"since": 1e9, "known": ["7"], "came": [[1e9, 2]]})
    return scales.parent / "spool"


def stepped(spool: Path) -> list[str]:
    """Names of the jobs that a controller starts."""
    (spool / "other" / WANTED).unlink(missing_ok=True)  # what it was in earlier steps does not count
    scheduler = InMemoryScheduler(idle=4)
    ClusterController(spool, scheduler, Settings(), launch_s=0.0).step()
    return [name for name, _ in scheduler.starts]


def place(spool: Path, name: str) -> Path:
    return spool / name if name == ARRIVALS else spool / "mine" / name


@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("name", OURS)
def test_what_stands_in_place_of_a_file_stops_no_other_job(name: str, replace: Callable[[Path], None], spool: Path) -> None:
    replace(place(spool, name))
    assert "other" in stepped(spool)


@pytest.mark.parametrize("name", OURS)
def test_no_field_of_a_file_stops_another_job(name: str, spool: Path) -> None:
    path = place(spool, name)
    values = json.loads(path.read_text())
    for number, _ in enumerate(edits(values, wrongs=19)):
        if number % 7 and name == ELASTIC:
            continue  # they are many, and alike
        path.write_text(json.dumps(values))
        if name == ARRIVALS:
            assert "other" in stepped(spool)
        else:
            said(lambda: status_of(ElasticJob.read(spool / "mine")))
            said(lambda: ElasticJob.read(spool / "mine").excuse())
            said(lambda: ElasticJob.read(spool / "mine").set_desired(launches=1))
    assert "other" in stepped(spool)


@pytest.mark.parametrize("replace", REPLACED)
def test_a_lock_that_is_no_file_does_not_block(replace: Callable[[Path], None], spool: Path) -> None:
    (spool / "mine" / HELD).touch()
    replace(spool / "mine" / HELD)
    assert "other" in stepped(spool)


@pytest.mark.parametrize("name", ["steps.jsonl", SPEC])
@pytest.mark.parametrize("replace", REPLACED)
def test_what_stands_in_place_of_a_file_of_a_run_is_refused(name: str, replace: Callable[[Path], None], held: Held) -> None:  # noqa: F811
    replace(held.job.run / name)
    if name == SPEC or replace.__name__ not in (
        "dangling",
        "empty",
        "scalar",
        "a_list",
        "zeros",
        "deep",
        "deep_object",
        "digits",
        "no_text",
    ):
        assert said(lambda: (RunSpec.read(held.job.run), ledger.read(held.job.run))), "only a line without its end is no damage"
    said(lambda: status_of(held.job))


def test_a_flipped_bit_of_a_run_s_description_is_refused_or_another_value(held: Held) -> None:  # noqa: F811
    path = held.job.run / SPEC
    for damaged in flipped(path.read_bytes(), 150):
        path.write_bytes(damaged)
        said(lambda: RunSpec.read(held.job.run))


def test_no_field_of_a_run_s_description_has_another_type(held: Held) -> None:  # noqa: F811
    path = held.job.run / SPEC
    values = json.loads(path.read_text())
    for _ in edits(values, wrongs=3):
        path.write_text(json.dumps(values))
        said(lambda: RunSpec.read(held.job.run))


LINES = [
    {"event": "started", "step": 0, "samples": 0, "time": 1.0, "configuration": {"dp": 1, "global_batch": 8, "micro_batch": 1}},
    {
        "event": "step",
        "step": 0,
        "samples": [0, 8],
        "shares": [[0, 8, 7]],
        "time": 2.0,
        "elapsed_s": 1.0,
        "step_time_s": 0.5,
        "loss": 1.0,
        "noise_scale": 3.0,
        "health": "healthy",
        "global_batch": 8,
        "micro_batch": 1,
        "configuration": "dp1_tp1_pp1_z0_mbs1",
        "updated": True,
        "learning_rate": 0.1,
        "signal": 1.0,
        "noise": 1.0,
        "variance_ratio": None,
        "accuracy": None,
    },
    {"event": "validated", "step": 0, "samples": 8, "time": 3.0, "elapsed_s": 1.5, "loss": 1.0, "accuracy": 0.5, "seconds": 0.1},
    {
        "event": "changed",
        "step": 1,
        "samples": 8,
        "time": 3.0,
        "before": {"dp": 1, "global_batch": 8, "micro_batch": 1},
        "after": {"dp": 2, "global_batch": 8, "micro_batch": 1},
        "seconds": {"move": 0.1},
        "received_bytes": 1,
        "failure": "",
        "reason": "faster",
        "weighed": {"current": {"goodput": 1.0}, "chosen": {"goodput": 2.0}, "best": []},
    },
    {"event": "ended", "step": 1, "samples": 8, "time": 4.0, "finished": True},
]


def used(folder: Path) -> None:
    """Read a ledger in every way that readers do."""
    lines = ledger.standing(ledger.read(folder))
    ledger.require_whole(lines)
    observations(lines)
    ledger.first_step(folder, 0)
    for line in ledger.latest_steps(folder, 2):
        assert line["step"] + 1 > 0 and line["samples"][1] + 1 > 0 and isinstance(float(line["time"]), float)


def write(folder: Path, lines: list[dict[str, object]]) -> None:
    (folder / ledger.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
def test_no_field_of_a_ledger_has_another_type(held: Held) -> None:  # noqa: F811
    folder, lines = held.job.run, json.loads(json.dumps(LINES))
    write(folder, lines)
    used(folder)
    render(folder)
    for line in lines:
        for number, _ in enumerate(edits(line)):
            write(folder, lines)
            said(lambda: used(folder))
            said(lambda: status_of(held.job))
            if number % 20 == 0:
                said(lambda: render(folder))


def test_a_flipped_bit_of_a_ledger_is_refused_or_another_value(held: Held) -> None:  # noqa: F811
    write(held.job.run, LINES)  # type: ignore[arg-type]
    whole = (held.job.run / ledger.FILE).read_bytes()
    for damaged in flipped(whole, 300):
        (held.job.run / ledger.FILE).write_bytes(damaged)
        said(lambda: used(held.job.run))


def test_a_field_that_a_line_lacks_is_damage_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / ledger.FILE).write_text('{"event": "step"}\n')
    (line,) = ledger.read(tmp_path)
    assert line.get("step") is None
    with pytest.raises(CheckpointError, match="a line of the event `step` has no `step`") as refusal:
        line["step"]
    assert refusal.value.hint


def test_a_ledger_without_an_end_of_line_is_found_out(tmp_path: Path) -> None:
    """A sparse gigabyte costs no memory."""
    with (tmp_path / ledger.FILE).open("wb") as file:
        file.truncate(1 << 32)
    assert said(lambda: ledger.read(tmp_path))
    assert said(lambda: ledger.first_step(tmp_path, 0))
    assert said(lambda: ledger.latest_steps(tmp_path, 1, end=1 << 32))
