"""The scores of a comparison are those of their definitions, and what fails early does not look fast."""

import dataclasses
import json
import math

import pytest

from oppa.bench.run_designer import RUN_S
from oppa.bench.scores import (
    best_at,
    best_peer,
    break_even_s,
    longest_s,
    net_gain_s,
    ratio,
    seconds_to,
    summary,
    to_json,
    trials_to,
    until_it_pays,
    untuned,
    user_scores,
)
from oppa.bench.sections import comparison_sections, length_scale_section, thinking_section, user_section
from tests.bench.searches import run_of


def test_seconds_per_suggestion_are_those_of_all_trials() -> None:
    runs = [dataclasses.replace(run_of((0.9,) * n, (60.0,) * n), thinking_s=seconds) for n, seconds in ((2, 1.0), (3, 4.0))]
    assert summary(runs, 30, longest_s(runs, 30))["seconds_per_suggestion"] == 1.0
    assert thinking_section(runs).rows == [("oppa", "0.917", "1.333")]


def test_scores_are_those_of_the_definition() -> None:
    run = run_of((0.0, 0.9, 0.96, 1.0), (60.0, 130.0, 200.0, 270.0))
    assert trials_to(run, 4) == 3 and seconds_to(run, 4, {"a": 900.0}) == 200
    assert trials_to(run, 2) == 3 and seconds_to(run, 2, {"a": 900.0}) == 900  # never: T + 1, and the longest search's seconds
    assert best_at(run, 6) == [0.0, 0.9, 0.96, 1.0, 1.0, 1.0]


def test_trials_that_no_search_has_have_no_score() -> None:
    runs = [run_of((0.5,) * 5, (60.0,) * 5)]
    (of,) = to_json(runs, [], 5, {})["designers"].values()
    assert (of["best_at_5"], of["best_at_10"], of["best_at_20"]) == (0.5, None, None)
    assert comparison_sections(runs, [], 5)[0].rows[0][2:5] == ("0.500", "", "")


def test_a_designer_that_found_nothing_is_scored() -> None:
    run = run_of((0.0, 0.0), (60.0, 120.0))
    of = summary([run], 30, longest_s([run], 30))
    assert of["best_at_5"] == 0 and of["trials_to_95_median"] == 31 and of["seconds_to_95_median"] == 120
    nothing = [run_of((), ())]
    assert summary(nothing, 30, longest_s(nothing, 30))["seconds_to_95_median"] == 0
    assert break_even_s(nothing[0], 1200.0, 0.5) == math.inf


def test_a_search_whose_trials_all_fail_does_not_look_fast() -> None:
    slow = run_of((0.5, 1.0), (300.0, 600.0))
    failing = run_of((0.0, 0.0), (5.0, 10.0), designer="tpe")
    never = run_of((0.5, 0.5), (1000.0, 4000.0), designer="grid")
    assert longest_s([slow, failing, never], 30) == {"a": 4000.0} and longest_s([slow, failing, never], 1) == {"a": 1000.0}
    assert ratio([slow, failing, never], "oppa", "tpe", 30) == 1.0  # as long as the longest of the two, whatever `grid` takes
    assert ratio([slow, failing, never], "oppa", "grid", 30) == 0.15
    assert ratio([slow, failing, never], "tpe", "grid", 30) == 1.0  # neither gets there: a tie
    found = to_json([slow, failing, never], [], 30, {})
    assert {name: each["seconds_to_95_median"] for name, each in found["designers"].items()} == {"oppa": 600, "tpe": 4000, "grid": 4000}


def test_the_best_peer_is_the_one_that_oppa_saves_least_against() -> None:
    runs = [
        run_of((1.0,), (10.0,)),
        run_of((1.0,), (10.0,), task="b"),
        run_of((1.0,), (20.0,), designer="tpe"),
        run_of((1.0,), (80.0,), designer="tpe", task="b"),
        run_of((1.0,), (100.0,), designer="random"),
        run_of((1.0,), (100.0,), designer="random", task="b"),
        run_of((1.0,), (5.0,), designer="oppa-no-early-stop"),
        run_of((1.0,), (5.0,), designer="oppa-no-early-stop", task="b"),
    ]
    assert best_peer(runs, 30) == ("tpe", pytest.approx(0.25))  # sqrt(10/20 * 10/80); an ablation is no peer
    assert ratio(runs, "oppa", "random", 30) == pytest.approx(0.1)
    found = to_json(runs, [], 3, {"oppa": "here"})
    assert found["ratio_to_best_peer"] == pytest.approx(0.25)
    assert found["tasks"]["b"]["tpe"] == {"best_at": [[1.0, 1.0, 1.0]], "trials_to_95": [1], "seconds_to_95": [80.0]}
    json.dumps(found)


@pytest.mark.parametrize(
    ("best", "share", "expected"),
    [((0.5, 1.0), 0.5, 240.0), ((0.0, 0.8), 0.4, 240.0), ((0.4, 0.4), 0.4, math.inf), ((0.0, 0.0), 0.0, math.inf)],
)
def test_tuning_pays_once_its_steps_overtake_those_of_a_job_that_nobody_tunes(best, share, expected) -> None:
    run = run_of(best, (60.0, 120.0))  # then 1.0 (T - 120) = 0.5 T
    assert break_even_s(run, 1200.0, share) == pytest.approx(expected)


def test_an_untuned_job_runs_what_random_found_to_run_first() -> None:
    runs = [
        run_of(best, (1.0, 2.0), designer=name) for best, name in (((0.0, 0.3), "random"), ((0.5, 0.9), "random"), ((1.0, 1.0), "oppa"))
    ]
    assert untuned(runs) == {"a": pytest.approx(0.4)}


def test_a_search_is_charged_until_a_trial_is_not_expected_to_pay() -> None:
    whole = run_of((0.5, 1.0, 1.0), (60.0, 120.0, 4000.0))
    assert until_it_pays(whole) == whole
    ended = until_it_pays(dataclasses.replace(whole, paying=2))
    assert ended.seconds == (60.0, 120.0) and len(ended.outcomes) == len(ended.predicted_memory) == 2
    assert net_gain_s(ended, 0.5) == RUN_S / 2 - 120
    rows = user_section([dataclasses.replace(whole, paying=2, untuned=0.5)]).rows
    assert [row[0] for row in rows] == ["oppa", "oppa, all trials"]


def test_length_scales_are_medians_over_the_seeds_by_task() -> None:
    run = run_of((1.0,), (1.0,))
    runs = [dataclasses.replace(run, seed=seed, length_scales={"tp": scale, "pp": 2.0}) for seed, scale in enumerate((-1.0, 0.5, 3.0))]
    other = dataclasses.replace(run, task="b", length_scales={"tp": 1.0})
    section = length_scale_section([*runs, other, run_of((1.0,), (1.0,), designer="tpe")])
    assert section.columns == ("parameter", ">a", ">b")
    assert section.rows == [("pp", "2.00", ""), ("tp", "0.50", "1.00")]
    assert length_scale_section([run]) is None


def test_the_default_comes_before_what_random_found() -> None:
    runs = [run_of((0.3, 0.9), (1.0, 2.0), designer="random"), dataclasses.replace(run_of((1.0,), (1.0,)), untuned=0.7)]
    assert untuned(runs) == {"a": 0.7}


@pytest.mark.parametrize(
    ("best", "share", "expected"),
    [((0.5, 1.0), 0.5, RUN_S / 2 - 120), ((0.5, 0.5), 0.5, -120), ((0.0, 0.0), 0.5, -120), ((0.4, 0.4), 0.8, -RUN_S - 120)],
)
def test_a_net_gain_is_what_a_run_saves_minus_the_search(best, share, expected) -> None:
    assert net_gain_s(run_of(best, (60.0, 120.0)), share) == pytest.approx(expected)


def test_users_see_the_worst_task_and_the_trials_that_did_not_run() -> None:
    runs = [
        dataclasses.replace(run_of((0.0, 1.0), (60.0, 120.0), task=task, seed=seed), outcomes=outcomes)
        for task in ("a", "b")
        for seed, outcomes in enumerate(("mc", "fc", "cc"))
    ]
    of = user_scores(runs, {"a": 0.5, "b": 1.0})
    assert of["net_gain_s_worst_task"] == -120 and of["net_gain_s_p10"] == -120
    assert of["out_of_memory_median"] == 1 and of["first_fits"] == pytest.approx(1 / 3)
    assert user_scores(runs, {})["net_gain_s_median"] is None


def test_the_first_pick_is_the_designers_own_and_not_the_baseline() -> None:
    runs = [dataclasses.replace(run_of((0.5, 0.5), (60.0, 120.0)), outcomes=each, baselines=1) for each in ("cm", "ct", "cf", "mc")]
    assert user_scores(runs, {})["first_fits"] == 0.5
    assert user_scores([dataclasses.replace(runs[0], outcomes="c")], {})["first_fits"] is None
