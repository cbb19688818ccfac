"""Two configurations learn the same if their losses agree, step by step."""

import json
import math

import pytest

from oppa.problem.configuration import PARAMETERS
from oppa.problem.objective import Objective
from oppa.report.words import equivalent, verdicts
from oppa.study import Study
from oppa.study.records import VERIFICATION
from oppa.trials.trial import TrialResult
from oppa.tuning.comparison import WinnerComparison
from oppa.tuning.equivalence import TOLERANCE, compare, equivalence, losses

LEARNED = (
    *("global_batch", "precision", "optimizer", "learning_rate", "momentum", "adam_beta2", "gradient_clipping"),
    *("weight_decay", "decay_all"),
    *("seq_len", "seed", "corpus", "tokens", "token_dtype", "init_from"),
)
"""Settings that a problem fixes, since they may change what is learned."""


def compared(ours: list[float], theirs: list[float], *, precision: str = "fp32", repeat: list[float] | None = None):
    """The comparison of losses that are reported for every step."""
    steps = [None if each is None else dict(enumerate(each)) for each in (ours, theirs, repeat)]
    return compare(steps[0], steps[1], reference="dp4", precision=precision, repeat=steps[2])


def test_equal_losses_are_equivalent():
    found = compared([3.0, 2.0, 1.0], [3.0, 2.0, 1.0])
    assert found.holds and (found.deviation, found.steps) == (0.0, 3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_largest_relative_difference_decides(precision):
    limit = TOLERANCE[precision]
    within = compared([4.0, 2.0], [4.0, 2.0 * (1 - 0.9 * limit)], precision=precision)
    beyond = compared([4.0, 2.0], [4.0 * (1 - 1.1 * limit), 2.0], precision=precision)
    assert within.holds and within.at_step == 1
    assert not beyond.holds and beyond.at_step == 0


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_differs_whatever_the_seed(lost):
    for repeat in (None, [3.0, 2.5, 2.5]):
        found = compared([3.0, lost, 1.5], [3.0, 2.0, 1.5], precision="bf16", repeat=repeat)
        assert not found.holds and not found.unknown and (found.at_step, found.steps) == (1, 3)
        assert found.to_dict()["deviation"] is None
        json.dumps(found.to_dict(), allow_nan=False)


def test_losses_that_are_not_finite_in_both_runs_are_equal():
    assert compared([3.0, math.nan, 1.0], [3.0, math.inf, 1.0]).holds


def test_losses_are_compared_by_step():
    found = compare({0: 3.0, 2: 1.0}, {0: 3.0, 1: 2.0, 2: 1.0}, reference="dp4", precision="fp32")
    assert found.holds and found.steps == 2


def test_what_reports_no_losses_cannot_be_compared():
    assert compared([3.0], []) is None


def test_a_winner_that_reports_no_losses_is_not_silently_accepted():
    found = compared([], [3.0])
    assert found.unknown and not found.holds and (found.steps, found.to_dict()["deviation"]) == (0, None)


def test_losses_are_read_from_the_trial_folder(tmp_path):
    lines = [{"step": 0, "step_time_s": 1.0, "loss": 3.5}, {"step": 1, "step_time_s": 1.0}, {"step": 2, "step_time_s": 1.0, "loss": 3.25}]
    (tmp_path / "measurements.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert losses(tmp_path) == {0: 3.5, 2: 3.25}
    assert losses(tmp_path / "gone") == {}


def test_no_parameter_of_a_configuration_but_the_fixed_batch_may_change_what_is_learned():
    assert set(LEARNED) & set(PARAMETERS) == {"global_batch"}


@pytest.mark.parametrize(("drift", "holds"), [(1e-6, True), (0.1, False), (math.nan, False)])
def test_the_winner_is_compared_with_what_the_user_runs_by_their_last_repeats(tmp_path, problem, drift, holds):
    candidates = problem.candidates()
    usual, best = (candidates.configuration(index) for index in candidates.default_order()[:2])
    with Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as study:
        repeats = {}
        for number, configuration in enumerate((usual, best)):
            lease = study.claim(configuration, purpose=VERIFICATION, pairing="them")
            folder = study.folder / "trials" / lease.folder_name
            folder.mkdir(parents=True)
            off = 1 + (drift if number else 0.0)
            (folder / "measurements.jsonl").write_text(json.dumps({"step": 0, "step_time_s": 1.0, "loss": 3.5 * off}) + "\n")
            study.finish(lease, TrialResult(outcome="completed", step_times_s=(1.0,), seconds=1.0))
            repeats[configuration] = (study.trials()[-1],)
        result = WinnerComparison(best=repeats[best][0], reference=repeats[usual][0], runner_up=None, repeats=repeats)
        found = equivalence(study, result, problem)
    assert found.holds is holds and found.reference == usual.id
    words = equivalent(found, result)
    assert words.startswith("as the default configuration does" if holds else "not as the default configuration does")


@pytest.mark.parametrize(("first", "words"), [(3.5, "not as the default configuration does"), (3.1, "unknown: losses differ by ")])
def test_a_program_without_a_seed_is_no_other_learning(tmp_path, problem, first, words):
    """Its own repeats differ as much as those of two configurations."""
    candidates = problem.candidates()
    usual, best = (candidates.configuration(index) for index in candidates.default_order()[:2])
    with Study.create(tmp_path / "study", problem.to_dict(), problem.fingerprint) as study:
        repeats = {usual: [], best: []}
        for configuration, loss in ((usual, first), (best, 3.3), (usual, 3.5)):
            lease = study.claim(configuration, purpose=VERIFICATION, pairing="them")
            folder = study.folder / "trials" / lease.folder_name
            folder.mkdir(parents=True)
            (folder / "measurements.jsonl").write_text(json.dumps({"step": 0, "step_time_s": 1.0, "loss": loss}) + "\n")
            study.finish(lease, TrialResult(outcome="completed", step_times_s=(1.0,), seconds=1.0))
            repeats[configuration].append(study.trials()[-1])
        result = WinnerComparison(best=repeats[best][0], reference=repeats[usual][0], runner_up=None, repeats=repeats)
        found = equivalence(study, result, problem)
    assert not found.holds and found.unknown is (first != 3.5)
    assert equivalent(found, result).startswith(words)
    (sentence,) = [each for each in verdicts(result, [], Objective(), found) if "learn" in each]
    assert sentence.startswith("Whether it learns as the default configuration does is unknown" if found.unknown else "Warning")
