"""The ranks of a new layout start while those of the present one still train; whatever becomes of them, no sample is lost."""

import contextlib
from pathlib import Path

import pytest
from oppa_client import run_files

from experiments.trainers.stop_after import StopAfter
from oppa.control.own_trainer.contract import Abilities, AttemptTerms, PlanTerms, have_all_started
from oppa.control.own_trainer.early_start import EarlyStart, can_start_early
from oppa.control.own_trainer.rank_launchers import RankLaunchers
from oppa.control.own_trainer.resizing import Resizing
from oppa.control.own_trainer.run_book import RunBook
from oppa.problem.trial_values import CACHES
from oppa.training.run import ledger
from oppa.training.run.run_folder import ATTEMPTS, RunSpec
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from tests.own_trainer.own_runs import OwnRun
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, script_spec

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


class Waiting:
    """Ranks that wait for their terms, and the launcher that starts them."""

    ended = False

    def start_early(self, *_: object) -> "Waiting":
        return self

    def poll(self) -> None:
        return None

    def end(self, grace_s: float) -> None:
        assert not self.ended
        self.ended = True


def test_ranks_whose_terms_cannot_be_written_are_ended(tmp_path):
    own, waiting, folder = OwnRun(tmp_path), Waiting(), tmp_path / "attempts" / "0002"
    plan = PlanTerms.first(own.configuration(), own.problem.run_options)
    places = {"step": 0, "samples": 0, "checkpoint": None, "saved_by": None}
    terms = AttemptTerms(run="u", configuration=own.configuration(), total_samples=None, plan=plan, leave_timeout_s=1.0, **places)
    early = EarlyStart(folder, script_spec(), lambda _: waiting)
    early.state(terms)
    (folder / run_files.ATTEMPT).mkdir()  # no file can have this name
    with pytest.raises(OSError, match="directory"):
        early.start(folder, script_spec())
    assert waiting.ended


@pytest.fixture
def launcher():
    with LocalLauncher(load_runner(SCRIPT_RUNNER), study=STUDY, grace_s=1) as launcher:
        yield launcher


def test_a_folder_that_cannot_be_prepared_for_an_early_start_is_noted_and_the_run_goes_on(tmp_path, launcher):
    own = OwnRun(tmp_path, "--early-start")
    run = RunSpec(uuid="u", problem=own.problem, configuration=own.configuration())
    run.write(own.run)
    (own.run / CACHES).touch()  # no folder can have this name
    with contextlib.closing(RunBook(own.run, run)) as book:
        assert not RankLaunchers(launcher, book, Resizing(own.run, None, 1)).start_early(ABLE, run)
    assert "cannot be written" in own.events("early_start_failed")[0]["failure"]
