"""The search with trials that are acted out in this process: everything but the training is real."""

import dataclasses
import math
import time

import pytest

from oppa.errors import InputError
from oppa.problem.command import LaunchCommand, StepFormat
from oppa.study import Prediction, Study
from oppa.study.records import BASELINE, DRIFT, SEARCH, VERIFICATION, TimeBudget
from oppa.trials.throughput import ThroughputEstimate
from oppa.trials.trial import TrialResult, run_trial
from oppa.tuning import trial_executor
from oppa.tuning.designers import make_designer
from oppa.tuning.device_budget import DeviceBudget
from oppa.tuning.drift import FEWEST
from oppa.tuning.search import next_candidate, search
from oppa.tuning.stopping import make_rule
from oppa.tuning.time_limit import COLD
from oppa.tuning.trial_executor import TrialExecutor
from oppa.tuning.winner import find_winner
from tests.tuning.acted_search import LIMITS
from tests.tuning.acted_trials import ROOM, SILENCE, Actors, landscape


@pytest.mark.slow
def test_every_search_trial_has_its_prediction_and_its_end(run, study, onlooker) -> None:
    assert run("oppa") == "the budget of 8 trials is spent"
    trials = study.trials()
    assert [trial.purpose for trial in trials] == [SEARCH] * 8
    for trial in trials:
        assert trial.prediction.steps_per_s > 0 and trial.prediction.memory_bytes > 0 and trial.prediction.log_stddev > 0
        assert trial.outcome == "out_of_memory" or trial.memory_bytes == landscape(trial.configuration)[1]
    assert [said for said in onlooker.seen if said != "stepped"] == [said for trial in trials for said in ("started", trial.outcome)]
    assert max(trial.steps_per_s for trial in trials if trial.feasible) == 2.0  # micro-batches of 4: as fast as any that fits


@pytest.mark.slow
@pytest.mark.parametrize(("run_s", "ended"), [(0.01, "a further trial takes"), (1e9, "the budget of 8 trials is spent")])
def test_a_search_ends_when_a_trial_does_not_pay_for_the_stated_run(run_s, ended, run, study) -> None:
    assert run("oppa", limits=dataclasses.replace(LIMITS, run_length_s=run_s), ends_unpaid=True).startswith(ended)
    assert any(trial.feasible for trial in study.trials())


def test_without_a_model_there_is_no_prediction(run, study) -> None:
    run("random")
    assert [trial.prediction for trial in study.trials()] == [None] * 8


@pytest.mark.slow
def test_a_slower_trial_is_terminated_early_and_the_incumbent_never(run, study) -> None:
    run("random", limits=dataclasses.replace(LIMITS, trials=16))
    lead = 0.0
    for trial in study.trials():
        if trial.outcome == "out_of_memory":
            assert trial.steps_per_s is None and not trial.step_times_s
            continue
        rate = 1 / landscape(trial.configuration)[0]
        assert trial.steps_per_s == pytest.approx(rate)
        assert trial.outcome == ("terminated_early" if rate < 0.9 * lead else "completed")
        assert (len(trial.step_times_s) < LIMITS.q_max) == (trial.outcome == "terminated_early")
        assert len(trial.step_times_s) > LIMITS.q_min
        lead = max(lead, rate)
    assert {trial.outcome for trial in study.trials()} == {"out_of_memory", "terminated_early", "completed"}


def test_without_a_rule_every_trial_runs_to_its_end(run, study) -> None:
    run("random", rule="never")
    assert all(len(trial.step_times_s) == LIMITS.q_max for trial in study.trials() if trial.outcome == "completed")
    assert {trial.outcome for trial in study.trials()} <= {"completed", "out_of_memory"}


@pytest.mark.slow
def test_without_a_budget_everything_is_tried_once(run, study, candidates) -> None:
    assert run("exhaustive", limits=dataclasses.replace(LIMITS, trials=None)) == "every valid configuration was tried"
    assert [candidates.index_of(trial.configuration) for trial in study.trials()] == list(range(len(candidates)))


def test_a_trial_that_never_says_a_word_is_timed_out(run, study) -> None:
    run("exhaustive", law=lambda configuration: (SILENCE, 0), limits=dataclasses.replace(LIMITS, trials=2, trial_time_s=0.1))
    assert [trial.outcome for trial in study.trials()] == ["timed_out"] * 2


@pytest.mark.parametrize("memory_bytes", [0, ROOM + 1])
def test_trials_get_three_times_as_long_until_one_has_filled_the_caches(session, study, limited, candidates, memory_bytes) -> None:
    given_s: list[float] = []

    def note(folder, spec, *, limits, **watching):
        given_s.append(limits.trial_time_s)
        law = (1.0, memory_bytes if len(given_s) == 1 else 0)
        return run_trial(Actors(lambda _: law), folder, spec, limits=limits, **watching)

    limits = dataclasses.replace(LIMITS, trials=4)
    executor = session(limits=limits)
    executor._run_trial = note
    search(executor, candidates, make_designer("random", limited, candidates, seed=0), make_rule("never", limits))
    cold = 1 if memory_bytes == 0 else 2
    assert given_s == [COLD * LIMITS.trial_time_s] * cold + [LIMITS.trial_time_s] * (4 - cold)


def test_a_search_that_was_broken_off_goes_on(run, study, onlooker) -> None:
    onlooker.break_off_after = 3
    with pytest.raises(KeyboardInterrupt):
        run("random")
    assert [trial.outcome == "interrupted" for trial in study.trials()] == [False] * 3 + [True]
    onlooker.break_off_after = None
    run("random")
    counted = [trial for trial in study.trials() if trial.counts]
    assert len(counted) == 8 and len({trial.configuration for trial in counted}) == 8


def test_the_wall_time_is_a_budget(run, study) -> None:
    assert run("random", limits=dataclasses.replace(LIMITS, trials=None, wall_time_s=0.3)) == "the budget of 300 ms is spent"
    assert 0 < len(study.trials()) < 32


def test_the_incumbent_runs_again_within_a_search_and_after_its_last_trial(run, study) -> None:
    def law(configuration):
        return landscape(configuration)[0], 1

    run("random", rule="never", law=law, limits=dataclasses.replace(LIMITS, trials=14), watches_drift=True)
    trials = study.trials()
    assert [number for number, trial in enumerate(trials) if trial.purpose == DRIFT] == [FEWEST, 15] and len(trials) == 16
    assert trials[-1].steps_per_s == pytest.approx(max(trial.steps_per_s or 0.0 for trial in trials))


@pytest.mark.slow
def test_the_winner_is_proved_against_a_default_and_the_second(run, prove, study) -> None:
    run("oppa", limits=dataclasses.replace(LIMITS, trials=4))
    result = prove("oppa")
    assert result.best.steps_per_s == 2.0
    assert result.missing(LIMITS.repeats) is None
    assert {len(repeats) for repeats in result.repeats.values()} == {LIMITS.repeats}
    assert result.reference.configuration in result.repeats and result.margin is not None
    repeats = [trial for trial in study.trials() if trial.purpose == VERIFICATION]
    assert all(trial.pairing == result.pairing and trial.prediction is not None for trial in repeats)


@pytest.mark.slow
def test_what_the_user_runs_is_the_first_trial_under_any_designer(session, study, candidates, problem) -> None:
    baseline = candidates.configuration(len(candidates) - 1)
    executor = session(baseline=baseline)
    for designer in ("random", "grid", "oppa"):
        executor.problem = dataclasses.replace(executor.problem, limits=dataclasses.replace(LIMITS, trials=len(study.trials()) + 2))
        search(executor, candidates, make_designer(designer, problem, candidates, seed=0), make_rule("never", LIMITS))
    tried = [trial.configuration for trial in study.trials()]
    assert len(tried) == 6 and tried[0] == baseline and tried.count(baseline) == 1


def test_a_baseline_that_does_not_fit_makes_way_for_the_default(session, prove, study, candidates) -> None:
    baseline = candidates.configuration(len(candidates) - 1)

    def law(configuration):
        return 1.0, 2 * ROOM if configuration == baseline else 1

    session(law).run(study.claim(baseline))
    session(law).run(study.claim(candidates.configuration(3)))
    result = prove("random", law=law, baseline=baseline)
    assert (result.reference_kind, result.failure.configuration, result.failure.outcome) == ("default", baseline, "out_of_memory")
    assert result.reference.configuration == candidates.configuration(int(candidates.default_order()[0]))


def test_a_default_is_looked_for_until_one_fits(session, prove, study, candidates) -> None:
    usual = [candidates.configuration(int(index)) for index in candidates.default_order()]

    def law(configuration):
        return 1.0, 2 * ROOM if configuration in usual[:2] else 1

    session(law).run(study.claim(next(c for c in candidates if c not in usual)))
    result = prove("random", law=law)
    looked = [trial for trial in study.trials() if trial.purpose == BASELINE]
    assert [trial.configuration for trial in looked] == usual[:3]
    assert [trial.outcome for trial in looked] == ["out_of_memory", "out_of_memory", "completed"]
    assert result.reference.configuration == usual[2]


def test_the_winner_may_be_the_trial_that_another_tuner_still_runs(session, study, limited, candidates, onlooker) -> None:
    limits = dataclasses.replace(LIMITS, max_gpu_hours=10 * limited.cluster.devices / 3600)
    with Study(study.folder) as other:
        lease = other.claim(candidates.configuration(0), budget=TimeBudget(total_s=10.0, reserved_s=0.0, least_s=1.0, most_s=10.0))
        estimate = ThroughputEstimate(steps_per_s=2.0, variance=0.01, kept=3)
        result = TrialResult(outcome="completed", step_times_s=(0.5,) * 4, estimate=estimate, memory_bytes=1, seconds=10.0, setup_s=0.5)
        onlooker.tick = lambda: other.running() and other.finish(lease, result)
        found = find_winner(session(limits=limits), candidates, make_designer("random", limited, candidates, seed=0))
    assert found.best.configuration == candidates.configuration(0)


class RunningTrials:
    """Records, as a designer, which trials run when it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[set[int], set[int]]] = []

    def suggest(self, taken):
        return len(taken)

    def suggest_with_pending(self, running, taken):
        self.asked.append((set(running), set(taken)))
        return 7

    def predict(self, candidate):
        return None

    def update(self, observations):
        """Learn nothing."""


class Odd(RunningTrials):
    """Designs as a user's own designer whose answers are the arguments."""

    def __init__(self, candidate=0, prediction=None) -> None:
        self.candidate, self.prediction = candidate, prediction

    def suggest(self, taken):
        if isinstance(self.candidate, Exception):
            raise self.candidate
        return self.candidate

    def predict(self, candidate):
        return self.prediction


NAN, NOTHING, FAST = (Prediction(steps_per_s=rate, log_stddev=0.1) for rate in (math.nan, 0.0, 1e4))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (Odd(prediction=NAN), "predicts `steps_per_s = nan`"),
        (Odd(prediction=NOTHING), "predicts `steps_per_s = 0.0`"),
        (Odd(prediction={}), "predicts `steps_per_s = None`"),
        (Odd(-1), "suggests -1, which is no number from 0 to"),
        (Odd(10**9), "suggests 1000000000"),
        (Odd("dp4"), "suggests 'dp4'"),
        (Odd(ValueError("mine")), "fails: ValueError: mine"),
    ],
)
def test_a_wrong_answer_of_a_designer_ends_the_search_and_names_the_designer(odd, words, session, study, candidates) -> None:
    with pytest.raises(InputError) as caught:
        search(session(), candidates, odd, make_rule("never", LIMITS))
    assert caught.value.message.startswith(f"the designer `{__name__}:Odd` {words}") and not study.trials()


def test_a_designer_that_suggests_nothing_does_not_blame_memory(session, candidates) -> None:
    assert search(session(), candidates, Odd(None), make_rule("never", LIMITS)) == "the designer suggests no further trial"


def test_the_prediction_of_an_objective_limits_no_time(study, limited, onlooker, candidates) -> None:
    steps, limits_s = StepFormat(pattern="(?P<value>.*)", better="lower"), list[float]()
    problem = dataclasses.replace(limited, command=LaunchCommand(argv=("train",), steps=steps))

    def record(folder, spec, *, limits, **watching) -> TrialResult:
        limits_s.append(limits.trial_time_s)
        return TrialResult(outcome="failed", seconds=1.0, setup_s=0.5, step_times_s=(1.0,))

    search(TrialExecutor(study, problem, record, onlooker), candidates, Odd(prediction=FAST), make_rule("never", LIMITS))
    assert limits_s == [COLD * LIMITS.trial_time_s, *[LIMITS.trial_time_s] * 7]


def test_a_designer_gets_the_running_trials(limited, candidates) -> None:
    designer = RunningTrials()
    assert next_candidate(limited, candidates, designer, {0, 1}) == 2 and not designer.asked
    assert next_candidate(limited, candidates, designer, {0, 1}, running={1}) == 7 and designer.asked == [({1}, {0, 1})]


def test_a_tuner_keeps_its_trial_while_the_processes_end(study, limited, onlooker, candidates, monkeypatch) -> None:
    monkeypatch.setattr(trial_executor, "RENEW_EVERY_S", 0.0)
    result = TrialResult(outcome="failed", seconds=120.0)

    def end_slowly(folder, spec, *, on_tick, **watching) -> TrialResult:
        on_tick()
        with Study(study.folder, host="another", clock=lambda: time.time() + 90) as other:
            other.recover()
        return result

    budget = DeviceBudget(problem=limited, study=study, ending_s=90.0)
    executor = TrialExecutor(study, limited, end_slowly, onlooker, budget=budget)
    assert executor.run(study.claim(candidates.configuration(0))) is result
