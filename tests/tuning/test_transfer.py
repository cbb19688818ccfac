"""A study starts from what earlier studies learned of their device, and reports what it learned."""

import dataclasses
import math
import shutil

import pytest
import torch

from oppa.errors import InputError, StudyError
from oppa.problem.command import LaunchCommand, StepFormat
from oppa.problem.encoding import column_names
from oppa.problem.job_file import DesignerTable
from oppa.problem.problem import Problem
from oppa.problem.training import SearchOptions
from oppa.study import Study
from oppa.trials.throughput import ThroughputEstimate
from oppa.trials.trial import TrialResult
from oppa.tuning.designer import Observation
from oppa.tuning.designers.oppa import Oppa, fitted
from oppa.tuning.pooling import ELSEWHERE
from oppa.tuning.surrogate_summary import posterior_beliefs, surrogate_summaries
from oppa.tuning.transfer import combined, lesson, transferred
from tests.jobs import problem_of
from tests.tuning.conftest import STEPS


@pytest.fixture
def study_of(tmp_path, problem, candidates):
    """A study of the problem in which these observations were made."""

    def make(observations: list[Observation], posed: Problem = problem, name: str = "study"):
        with Study.create(tmp_path / name, posed.to_dict(), posed.fingerprint) as study:
            for seen in observations:
                rate = None if seen.log_steps_per_s is None else math.exp(seen.log_steps_per_s)
                estimate = rate and ThroughputEstimate(steps_per_s=rate, variance=1e-4 * rate**2, kept=STEPS - 1)
                result = TrialResult(outcome=seen.outcome, estimate=estimate, memory_bytes=seen.memory_bytes, seconds=1.0)
                study.finish(study.claim(candidates.configuration(seen.candidate)), result)
        return tmp_path / name

    return make


def starting_from(problem: Problem, *names) -> Problem:
    """The problem, whose search starts from these studies."""
    return dataclasses.replace(problem, search_options=SearchOptions(transfer=tuple(map(str, names))))


@pytest.fixture(scope="module")
def learned(problem):
    """The coefficients of a job that starts from what one designer of it learned."""
    return lambda designer, name: combined(problem, [lesson(designer, name)]).beliefs


def beliefs_of(folder, problem):
    return transferred(starting_from(problem, folder)).beliefs


@pytest.fixture(scope="module")
def teacher(problem, candidates, make_planted) -> Oppa:
    """A designer that has learned everything of planted coefficients."""
    designer, planted = Oppa(problem, candidates, seed=0), make_planted(5)
    designer.update([planted.observe(index) for index in range(len(candidates))])
    return designer


@pytest.mark.parametrize("name", ["log_rate", "log_slack"])
def test_a_coefficient_that_a_study_identified_moves_towards_the_truth(name, teacher, learned, make_planted) -> None:
    process, beliefs, shift = getattr(teacher, name), learned(teacher, "elsewhere"), make_planted(5).shift[name]
    summary = process.shift_covariance.diagonal().sqrt() < 0.7
    before = process.cost.beliefs
    moved = torch.tensor([math.log(beliefs[key].median / before[key].median) / before[key].spread for key in before]).double()
    assert summary.any() and (moved - shift)[summary].norm() < 0.5 * shift[summary].norm()
    assert moved[~summary].norm() < shift[~summary].norm() + 1


@pytest.mark.parametrize("name", ["log_rate", "log_slack"])
def test_to_have_measured_makes_no_belief_wider_and_none_surer_than_another_job_allows(name, teacher, learned) -> None:
    before, after = getattr(teacher, name).cost.beliefs, learned(teacher, "elsewhere")
    assert all(min(ELSEWHERE, before[key].spread) <= after[key].spread <= before[key].spread for key in before)
    assert any(after[key].spread < 0.5 * before[key].spread for key in before)
    moved = [key for key in before if after[key].median != before[key].median]
    assert moved and all(after[key].source == "learned in `elsewhere`" and after[key].what == before[key].what for key in moved)


def test_a_designer_that_starts_from_them_predicts_better(teacher, learned, problem, candidates, make_planted) -> None:
    truth, fresh = make_planted(5).truth["log_rate"], Oppa(problem, candidates, seed=0)
    taught = Oppa(problem, candidates, seed=0, beliefs=learned(teacher, "elsewhere"))
    rows = torch.arange(len(candidates))
    ours, theirs = taught.log_rate.at(rows), fresh.log_rate.at(rows)
    assert (ours.mean - truth).square().mean() < 0.1 * (theirs.mean - truth).square().mean()
    assert ours.stddev.mean() < theirs.stddev.mean()
    assert ((ours.mean - truth).abs() < 3 * ours.stddev).all()


@pytest.mark.slow
def test_a_study_on_disk_teaches_what_its_trials_would(study_of, learned, problem, candidates, make_planted) -> None:
    observations = [make_planted(5).observe(index) for index in range(0, 32, 4)]
    folder = study_of(observations)
    beliefs = beliefs_of(folder, dataclasses.replace(problem, global_batch=32))
    designer = Oppa(problem, candidates, seed=0)
    designer.update(observations)
    expected = learned(designer, str(folder))
    assert beliefs.keys() == expected.keys()
    for name, belief in beliefs.items():
        assert (belief.median, belief.spread) == pytest.approx((expected[name].median, expected[name].spread), rel=0.02)


@pytest.mark.slow
def test_repeats_and_interrupted_trials_teach_nothing_more(study_of, problem, candidates, make_planted) -> None:
    folder = study_of([make_planted(5).observe(index) for index in (1, 20)])
    with Study(folder) as study:
        trials = study.trials()
    others = [dataclasses.replace(trials[0], purpose="verification"), dataclasses.replace(trials[1], outcome="interrupted")]
    one, other = (fitted(problem, candidates, each).log_rate for each in (trials, trials + others))
    torch.testing.assert_close(one.shift, other.shift)


def test_another_device_is_refused(study_of, problem, make_planted) -> None:
    folder = study_of([make_planted(5).observe(1)])
    elsewhere = dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, device="H100"))
    with pytest.raises(InputError, match="is for `CPU`, but the job is for `H100`") as caught:
        beliefs_of(folder, elsewhere)
    assert "name a study of the same device" in caught.value.hint


def test_two_names_of_one_device_are_the_same(study_of, problem, make_planted) -> None:
    named = ("NVIDIA H100 80GB HBM3", "gpu:h100:4")
    theirs, ours = (dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, device=name)) for name in named)
    assert beliefs_of(study_of([make_planted(5).observe(1)], theirs), ours)


@pytest.mark.parametrize("seen", [[], ["out_of_memory"]])
def test_a_study_that_has_measured_nothing_is_refused(seen, study_of, problem, landscape) -> None:
    big = [index for index in range(32) if landscape.observe(index).outcome in seen][:1]
    with pytest.raises(InputError, match="has measured nothing yet") as caught:
        beliefs_of(study_of([landscape.observe(index) for index in big]), problem)
    assert "completed trials" in caught.value.hint


@pytest.mark.slow
def test_a_study_without_a_cost_model_is_named_where_it_is_refused(study_of, problem, make_planted, tmp_path) -> None:
    own = 'cluster = {devices_per_host = 4, device = "CPU"}\ncommand = {argv = ["t", "{w}"]}\nspace = {parameters = {w = [1, 2]}}'
    command = LaunchCommand(argv=("train",), steps=StepFormat(pattern="(?P<value>.*)", better="lower"))
    for number, posed in enumerate((problem_of(own, tmp_path), dataclasses.replace(problem, command=command))):
        folder = study_of([], posed, name=f"study-{number}")
        with pytest.raises(InputError, match=f"the study `{folder}` .*, and so learned no coefficients"):
            beliefs_of(folder, problem)
    good = study_of([make_planted(5).observe(1)], name="study-9")
    assert len(transferred(starting_from(problem, tmp_path / "study-*")).skipped) == 2 and beliefs_of(good, problem)


def test_where_there_is_no_study_it_says_so(tmp_path, problem) -> None:
    with pytest.raises(StudyError, match="is not a study folder"):
        beliefs_of(tmp_path, problem)
    with pytest.raises(StudyError, match="matches no study"):
        beliefs_of(tmp_path / "st*", problem)


@pytest.mark.slow
def test_several_studies_count_each_once(study_of, problem, make_planted, tmp_path) -> None:
    seen = [make_planted(5).observe(index) for index in range(0, 32, 4)]
    first, second = study_of(seen[:5], name="study-1"), study_of(seen[3:], name="study-2")
    shutil.copytree(first, tmp_path / "study-3")
    pattern, names = starting_from(problem, tmp_path / "study-*"), starting_from(problem, second, first)
    found, named = transferred(pattern), transferred(names)
    assert [each.name for each in found.used] == [str(first), str(second)]
    assert found.skipped == {str(tmp_path / "study-3"): f"it is a copy of `{first}`"}
    assert all(found.beliefs[key].spread == pytest.approx(named.beliefs[key].spread) for key in found.beliefs)
    assert [each.name for each in transferred(pattern, own=second).used] == [str(first)]
    with pytest.raises(InputError, match="names no study but the search's own"):
        transferred(starting_from(problem, second), own=second)


def test_studies_that_cannot_be_used_are_left_out_with_a_note(study_of, problem, make_planted) -> None:
    elsewhere = dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, device="H100"))
    good, other = study_of([make_planted(5).observe(1)], name="good"), study_of([make_planted(5).observe(1)], elsewhere, name="other")
    empty = study_of([], name="empty")
    found = transferred(starting_from(problem, other, empty, good))
    assert [each.name for each in found.used] == [str(good)]
    assert found.skipped == {str(other): "for `H100`, but the job is for `CPU`", str(empty): "has measured nothing yet"}
    assert sum(each.weight for each in found.used) < 1
    with pytest.raises(InputError, match="none of the 2 studies") as caught:
        transferred(starting_from(problem, other, empty))
    assert "completed trials" in caught.value.hint


def test_a_damaged_study_is_left_out_of_a_pattern_and_refused_by_its_name(study_of, problem, make_planted, tmp_path) -> None:
    good, bad = study_of([make_planted(5).observe(1)], name="study-1"), study_of([], name="study-2")
    (bad / "study.db").write_bytes(b"garbage" * 100)
    found = transferred(starting_from(problem, tmp_path / "study-*"))
    assert [each.name for each in found.used] == [str(good)] and found.skipped == {str(bad): "file is not a database"}
    for names in ((good, bad), (tmp_path / "study-*", bad), (bad, tmp_path / "study-*"), (bad,)):
        with pytest.raises(StudyError, match="file is not a database") as caught:
            transferred(starting_from(problem, *names))
        assert "remove it from `designer.transfer`" in caught.value.hint


def test_a_job_names_one_folder_several_or_a_pattern_relative_to_its_file(tmp_path) -> None:
    assert DesignerTable(transfer="one").record(tmp_path).transfer == (str(tmp_path / "one"),)
    assert DesignerTable(transfer=["one", "/two*"]).record(tmp_path).transfer == (str(tmp_path / "one"), "/two*")
    assert DesignerTable().record(tmp_path).transfer == ()


def test_options_of_older_studies_name_one_folder_or_none() -> None:
    stored = dataclasses.asdict(SearchOptions())
    assert SearchOptions.from_dict({**stored, "transfer": None}) == SearchOptions()
    assert SearchOptions.from_dict({**stored, "transfer": "one"}).transfer == ("one",)
    assert SearchOptions.from_dict({**stored, "transfer": ["one", "two"]}).transfer == ("one", "two")


def test_it_says_which_coefficients_it_learned(teacher, problem, candidates) -> None:
    for process, summary in zip((teacher.log_rate, teacher.log_slack), surrogate_summaries(teacher, candidates).values(), strict=True):
        assert [lesson.name for lesson in summary.coefficients] == list(process.cost.names)
        shares = process.shift_covariance.diagonal().sqrt().tolist()
        assert [lesson.after.spread / lesson.before.spread for lesson in summary.coefficients] == pytest.approx(shares)
        assert [lesson.identified for lesson in summary.coefficients] == [share < 0.7 for share in shares]
        assert any(lesson.identified for lesson in summary.coefficients) and not all(lesson.identified for lesson in summary.coefficients)
        assert sorted(summary.log_lengthscales) == sorted(column_names(candidates))
        assert list(summary.log_lengthscales.values()) == sorted(process.lengthscales.log().tolist())


def test_before_it_has_learned_its_beliefs_are_those_of_the_catalog(problem, candidates) -> None:
    process = Oppa(problem, candidates, seed=0).log_rate
    for name, belief in posterior_beliefs(process, "nowhere").items():
        before = process.cost.beliefs[name]
        assert (belief.median, belief.spread) == pytest.approx((before.median, before.spread))
