"""A search goes on past trials that fail for their own reasons, and ends where every further one would fail in the same way."""

import dataclasses
from functools import partial

import pytest

from oppa.study.records import BASELINE, SEARCH, VERIFICATION
from oppa.trials import trial_folder
from oppa.trials.launcher import Exit
from oppa.trials.trial import run_trial
from oppa.tuning.designers import make_designer
from oppa.tuning.repeated_failures import RepeatedFailureError
from oppa.tuning.search import search
from oppa.tuning.stopping import make_rule
from tests.tuning.acted_search import LIMITS
from tests.tuning.acted_trials import CRASH, LOSS, ROOM, Actor, Actors


def crash(configuration):
    return CRASH, 0


@pytest.mark.parametrize("name", ["random", "exhaustive", "oppa"])
def test_three_failures_alike_before_the_first_step_end_the_search(name, run, prove, study) -> None:
    with pytest.raises(RepeatedFailureError, match=r"^3 trials in a row failed in the same way before their first step: launch"):
        run(name, law=crash)
    assert [trial.outcome for trial in study.trials()] == ["failed"] * 3


def test_the_error_for_the_old_module_names_the_new_one(session, study, limited, candidates) -> None:
    class Old(Actor):
        def poll(self) -> Exit:
            trial_folder.write_json(
                self.folder / trial_folder.REPORT,
                {"outcome": "failed", "cause": "ModuleNotFoundError: No module named 'report'", "rank": 0},
            )
            return self._exit(1)

    class OldPrograms(Actors):
        def start(self, folder, spec):
            return Old(folder, spec, *self.law(spec.configuration))

    executor = session()
    executor._run_trial = partial(run_trial, OldPrograms(crash))
    with pytest.raises(RepeatedFailureError) as caught:
        search(executor, candidates, make_designer("random", limited, candidates, seed=0), make_rule("sure", LIMITS))
    assert "write `import oppa_client` in place of `import report`" in caught.value.hint


@pytest.mark.slow
def test_a_program_that_was_mended_is_tried_again_in_the_same_study(run, study, candidates) -> None:
    with pytest.raises(RepeatedFailureError):
        run("exhaustive", law=crash, limits=dataclasses.replace(LIMITS, trials=None))
    assert run("exhaustive", limits=dataclasses.replace(LIMITS, trials=None)) == "every valid configuration was tried"
    ran = [candidates.index_of(trial.configuration) for trial in study.trials()[3:]]
    assert ran == list(range(len(candidates)))
    assert run("exhaustive", limits=dataclasses.replace(LIMITS, trials=None)) == "every valid configuration was tried"
    assert len(study.trials()) == 3 + len(candidates)


def test_a_default_is_not_looked_for_where_the_program_cannot_start(run, prove, study) -> None:
    assert run("random", law=crash, limits=dataclasses.replace(LIMITS, trials=2)) == "the budget of 2 trials is spent"
    with pytest.raises(RepeatedFailureError):
        prove("random", law=crash)
    assert [trial.purpose for trial in study.trials()] == [SEARCH] * 2 + [BASELINE] * 3


def test_running_out_of_memory_is_never_one_of_them(run, study) -> None:
    run("exhaustive", law=lambda configuration: (1.0, 2 * ROOM), limits=dataclasses.replace(LIMITS, trials=6))
    assert [trial.outcome for trial in study.trials()] == ["out_of_memory"] * 6


def test_a_value_that_cannot_run_does_not_end_a_search_in_which_others_do(run, study) -> None:
    def law(configuration):
        return CRASH if configuration.tp > 1 else 1.0, 1

    run("exhaustive", law=law, limits=dataclasses.replace(LIMITS, trials=None))
    outcomes = [trial.outcome for trial in study.trials()]
    assert outcomes.count("completed") and outcomes[(at := outcomes.index("failed")) : at + 4] == ["failed"] * 4


def test_a_search_whose_program_breaks_ends_with_what_it_found(run, prove, study) -> None:
    def law(configuration):
        return CRASH if len(study.trials()) >= 12 else 1.0, 1

    reason = run("random", law=law, limits=dataclasses.replace(LIMITS, trials=None))
    assert reason.startswith("3 trials in a row failed in the same way") and len(study.trials()) == 15


def test_a_configuration_that_loses_its_hosts_fails_with_the_third_trial(run, study) -> None:
    """It counts for the budget of trials then, and those that lost a host before do not."""
    assert run("random", law=lambda _: (LOSS, 1), limits=dataclasses.replace(LIMITS, trials=2)) == "the budget of 2 trials is spent"
    trials = study.trials()
    assert [trial.outcome for trial in trials] == ["interrupted", "interrupted", "failed"] * 2
    assert trials[2].cause == "lost host n1: it no longer responds; 3 trials of this configuration in a row lost a host"
    assert trials[0].configuration == trials[2].configuration != trials[3].configuration


def test_losses_of_hosts_before_a_measured_trial_do_not_count(session, study, candidates) -> None:
    for law in (LOSS, LOSS, 1.0, LOSS):
        purpose = {"pairing": "verified", "purpose": VERIFICATION}
        session(lambda _, law=law: (law, 1)).run(study.claim(candidates.configuration(0), **purpose))
    assert [trial.outcome for trial in study.trials()] == ["interrupted", "interrupted", "completed", "interrupted"]
