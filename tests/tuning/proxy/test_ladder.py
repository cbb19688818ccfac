"""A search in two sizes is one study with another inside; it resumes, and never passes the limit on GPU-hours."""

import shutil

import pytest

import oppa
from oppa import api
from oppa.errors import InfeasibleError, InputError
from oppa.study import Study
from oppa.study.records import SEARCH
from oppa.tuning.proxy.budget import smaller_trials
from oppa.tuning.proxy.nested import FOLDER, nested_study
from oppa.tuning.proxy.rung import Rung
from oppa.tuning.proxy.upward import VERIFIED
from tests.sampling import nightly

TWO_HOSTS = "proxy = {hosts = 2, layers = 12}\n"


def gpu_hours(folder) -> float:
    """Return what both studies have spent, from their rows alone."""
    with Study(folder) as study:
        full = sum(trial.seconds for trial in study.trials()) * 64
    return (full + nested_study(folder).device_seconds) / 3600


@pytest.fixture(scope="module")
def found(make_job, tmp_path_factory):
    return oppa.tune(make_job(TWO_HOSTS), study=tmp_path_factory.mktemp("ladder") / "study")


@pytest.mark.slow
def test_the_smaller_study_lies_in_the_full_size_one(found) -> None:
    below = nested_study(found.study)
    assert below.folder == found.study / FOLDER
    assert (below.problem.cluster.hosts, below.problem.global_batch, below.trials) == (2, 128, VERIFIED)
    with Study(found.study) as study:
        assert study.problem.cluster.hosts == 8
        searched = [trial for trial in study.trials() if trial.purpose == SEARCH and trial.steps_per_s]
    assert len(searched) == VERIFIED


@pytest.mark.slow
def test_the_winner_is_verified_at_full_size(found) -> None:
    assert found.best.configuration.devices == 64
    assert len(found.search.repeats_of(found.search.best)) == 3


@pytest.mark.slow
def test_both_sizes_are_accounted_for(found) -> None:
    assert found.spent.gpu_hours == pytest.approx(gpu_hours(found.study))
    assert found.values["proxy"]["gpu_hours"] == pytest.approx(nested_study(found.study).device_seconds / 3600)
    assert found.values["spent"]["proxy_gpu_hours"] == pytest.approx(found.values["proxy"]["gpu_hours"])


@pytest.mark.slow
def test_the_same_study_resumes_with_nothing_left_to_do(make_job, found) -> None:
    again = oppa.tune(make_job("proxy = {}\n"), study=found.study)
    assert again.best == found.best and again.spent.gpu_hours == found.spent.gpu_hours


@pytest.mark.slow
def test_another_smaller_size_needs_another_study(make_job, found) -> None:
    with pytest.raises(InputError, match="is the study of another problem"):
        oppa.tune(make_job("proxy = {hosts = 4, layers = 12}\n"), study=found.study)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.05, 0.6, *nightly(3.0)])
def test_both_sizes_together_never_pass_the_limit(make_job, tmp_path, limit) -> None:
    job = make_job(TWO_HOSTS)
    for _ in range(2):  # the second session continues the first
        try:
            oppa.tune(job, study=tmp_path / "study", max_gpu_hours=limit)
        except InfeasibleError:
            if not (tmp_path / "study" / "study.db").is_file():
                return  # nothing ran at the smaller size
        assert gpu_hours(tmp_path / "study") <= limit


@pytest.mark.slow
def test_a_plan_states_what_both_sizes_are_expected_to_cost(make_job) -> None:
    planned = api.plan(make_job(TWO_HOSTS))
    values = planned.to_dict()
    assert values["proxy"]["hosts"] == 2 and 0 < values["proxy"]["matched"] <= values["configurations"]
    assert values["proxy"]["expected_gpu_hours"]["value"] < values["expected"]["search_gpu_hours"]
    assert planned.first.devices == 16


@pytest.mark.slow
def test_a_plan_of_a_study_has_the_size_and_the_next_trial_of_its_search(make_job, found, tmp_path) -> None:
    whole, ended = api.plan(make_job("proxy = {}\n")), api.plan(make_job("proxy = {}\n"), study=found.study)
    assert ended.first is None and ended.proxy.rung == Rung.of(nested_study(found.study).problem)
    shutil.copytree(found.study / FOLDER, tmp_path / "study" / FOLDER)  # as if it had ended before the full size
    between = api.plan(make_job("proxy = {}\n"), study=tmp_path / "study")
    with Study(found.study) as study:
        assert between.first == study.trials()[0].configuration
    assert between.proxy.resumed.trials == VERIFIED and between.proxy.expected.value < whole.proxy.expected.value
    with pytest.raises(InputError, match="is the study of another problem"):
        api.plan(make_job("proxy = {hosts = 4, layers = 12}\n"), study=found.study)


@pytest.mark.parametrize(("stated", "smaller"), [(1, VERIFIED), (9, 3), (30, 10), (31, 11)])
def test_the_smaller_size_has_a_third_of_the_trials(stated, smaller) -> None:
    assert smaller_trials(stated) == smaller
