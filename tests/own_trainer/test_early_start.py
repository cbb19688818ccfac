"""The ranks of a new layout start while those of the present one still train; whatever becomes of them, no sample is lost."""

from pathlib import Path

import pytest
from oppa_client import run_files

from experiments.trainers.stop_after import StopAfter
from oppa.control.own_trainer.contract import Abilities, have_all_started
from oppa.control.own_trainer.early_start import can_start_early
from oppa.training.run import ledger
from oppa.training.run.run_folder import ATTEMPTS
from tests.own_trainer.own_runs import OwnRun

LAYOUTS = {(8, "none"): 100.0, (8, "full"): 900.0}
"""Steps per second of a table in which another layout pays."""
WORDS = ("--noise", "5000", "--early-start")
ABLE = Abilities(batch="both", micro_batch=True, restart=True, elastic=True, early_start=True)


def trained(folder: Path, *words: str, ranks: int = 2) -> tuple[OwnRun, StopAfter]:
    """Train until some steps after the change of layout, and return what happened."""
    own = OwnRun(folder, *WORDS, *words, ranks=ranks, samples=10**6)
    seen = StopAfter(5, attempt=2)
    result = own.train("recompute=none", table=own.table(folder / "t", LAYOUTS), policy="goodput", callback=seen)
    assert result.outcome.ending.value == "stopped", result.outcome.last.cause
    assert own.samples() == list(range(ledger.require_whole(result.lines)))
    return own, seen


@pytest.mark.slow
def test_the_new_ranks_open_their_run_before_the_present_ones_leave(tmp_path):
    own, seen = trained(tmp_path)
    (change,) = own.events(ledger.CHANGED)
    assert change["after"]["recompute"] == "full"
    assert [each.name for each in seen.attempts] == ["0001", "0002"]
    waited, asked = ((seen.attempts[index] / name).stat().st_mtime_ns for index, name in ((1, run_files.ABILITIES), (0, run_files.LEAVE)))
    assert waited < asked


@pytest.mark.slow
def test_ranks_that_cannot_start_early_start_once_the_present_ones_have_left(tmp_path):
    own, seen = trained(tmp_path, "--misbehave", "dies-if-early")
    (failed,), (change,) = own.events("early_start_failed"), own.events(ledger.CHANGED)
    assert "the port is taken" in failed["failure"] and change["after"]["recompute"] == "full"
    assert [each.name for each in seen.attempts] == ["0001", "0003"] and not own.events("undone")


@pytest.mark.slow
def test_ranks_that_wait_end_with_a_run_that_ends_before_them(tmp_path):
    own = OwnRun(tmp_path, *WORDS, "--misbehave", "slow-if-early", samples=1600)
    result = own.train("recompute=none", table=own.table(tmp_path / "t", LAYOUTS), policy="goodput")
    assert result.finished and result.outcome.attempts == 1 and own.samples() == list(range(1600))
    assert [path.name for path in (own.run / ATTEMPTS).iterdir()] == ["0001"]


@pytest.mark.parametrize(
    ("words", "able", "can"),
    [
        ((), {}, True),
        ((), {"early_start": False}, False),
        (("--rdzv-endpoint=host:29400",), {}, False),
        (("--master_port", "29500"), {}, False),
    ],
)
def test_ranks_start_early_only_if_the_trainer_declares_it_and_two_starts_do_not_meet(tmp_path, words, able, can):
    problem = OwnRun(tmp_path, *words).problem
    assert can_start_early(ABLE.model_copy(update=able), problem) is can


def test_a_client_that_knows_no_early_start_declares_none():
    assert not Abilities.model_validate({"batch": "up", "micro_batch": True, "restart": True, "elastic": False}).early_start


@pytest.mark.parametrize(
    ("files", "started"),
    [
        ((), False),
        (("abilities.json",), True),
        (("abilities.json", "waiting-0-of-2.json"), False),
        (("waiting-0-of-2.json", "waiting-1-of-2.json"), True),
        (("waiting-0-of-1.json",), True),
        (("waiting-0-of-many.json",), False),
    ],
)
def test_ranks_have_started_once_each_waits(files, started, tmp_path):
    """An older client has the file of rank 0's abilities alone."""
    for name in files:
        (tmp_path / name).touch()
    assert have_all_started(tmp_path) is started
