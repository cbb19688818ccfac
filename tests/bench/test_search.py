"""The comparison of designers: its protocol, its scores, its log and its page."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from oppa import catalog
from oppa.bench.declared import PROTOCOL
from oppa.bench.run_designer import run_designer
from oppa.bench.runs import Log, Run
from oppa.bench.scores import (
    RUN_S,
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
    untuned,
    user_scores,
)
from oppa.bench.search import Comparison, compare
from oppa.bench.search_page import page, write_page
from oppa.bench.sections import thinking_section
from oppa.bench.tasks import load_suite
from oppa.bench.variations import VARIATIONS
from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.cluster import Cluster
from oppa.problem.model import Model
from oppa.problem.problem import Problem, facts_of
from oppa.problem.space_file import read_space
from oppa.problem.training import Limits, Training
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.replay import Record, Replay, ReplayNoise
from oppa.study import Prediction
from oppa.trials import processes
from oppa.tuning.stopping import StopTest, make_rule
from oppa.tuning.time_limit import time_limit_s
from tests.bench.remains import assert_gone, command_of
from tests.sampling import nightly

SPACE = "\n".join(f"[parameters.{name}]\nvalues = {values}" for name, values in (("dp", [1, 2, 4]), ("tp", [1, 2, 4]), ("pp", [1])))
SPACE += "\n[parameters.micro_batch]\nvalues = [1, 2]\n"


def small_task(noise: float = 0.0) -> BenchmarkTask:
    """Six candidates: dp is fast, the larger micro-batch faster, and all of dp = 4 fails."""
    model = Model(layers=2, hidden=8, heads=4, kv_heads=4, ffn=16, vocab=32, seq_len=8)
    cluster, training = Cluster(devices_per_host=4, memory_limit_bytes=1 << 30), Training()
    space = read_space(SPACE, name="small", facts=facts_of(model, 8, cluster, training))
    problem = Problem(
        name="small",
        stated_model=model,
        global_batch=8,
        cluster=cluster,
        runner="none",
        training=training,
        space=space,
        limits=Limits(q_min=2, q_max=4),
    )
    candidates = problem.candidates()
    records = {
        c: Record(outcome="failed") if c.dp == 4 else Record(outcome="completed", steps_per_s=float(c.dp * c.micro_batch), memory_bytes=9)
        for c in candidates
    }
    simulator = Replay(records=records, noise=ReplayNoise(trial=noise, step=noise, setup_s=10))
    return BenchmarkTask(name="small", problem=problem, candidates=candidates, simulator=simulator)


class InOrder:
    """Tries the candidates as they come."""

    def suggest(self, taken):
        return next((i for i in range(6) if i not in taken), None)

    def predict(self, candidate):
        return None

    def update(self, observations):
        self.last = observations


def run_of(best: tuple[float, ...], seconds: tuple[float, ...], *, designer: str = "oppa", task: str = "a", seed: int = 0) -> Run:
    nothing = (None,) * len(best)
    return Run(
        task=task,
        designer=designer,
        seed=seed,
        best_at=best,
        seconds=seconds,
        steps=(30,) * len(best),
        outcomes="c" * len(best),
        measured=best,
        predicted=nothing,
        log_stddev=nothing,
        memory=nothing,
        predicted_memory=nothing,
        winner="dp1_tp1_pp1_z0_mbs1",
        thinking_s=0.0,
    )


def test_a_play_bills_starts_failures_and_steps() -> None:
    task = small_task()
    played = run_designer(task, InOrder(), make_rule("never", task.problem.limits), seed=0, trials=10)
    expected = [10 + (0 if math.isnan(rate) else 4 / rate) for rate in task.steps_per_s]
    assert [each.result.seconds for each in played] == pytest.approx(expected)
    assert len(played) == 6  # nothing is left then, whatever the budget


def test_the_incumbent_is_the_fastest_that_ran_to_its_end() -> None:
    task = small_task()
    played = run_designer(task, InOrder(), make_rule("never", task.problem.limits), seed=0, trials=10)
    rates = task.steps_per_s.tolist()
    for k, each in enumerate(played, 1):
        feasible = [i for i in range(k) if not math.isnan(rates[i])]
        assert each.incumbent == (max(feasible, key=rates.__getitem__) if feasible else None)


def test_a_trial_that_was_stopped_is_no_incumbent() -> None:
    task = small_task()
    played = run_designer(task, InOrder(), StopTest(lambda times, incumbent: incumbent is not None), seed=0, trials=10)
    first = next(i for i, each in enumerate(played) if each.result.outcome == "completed")
    assert {each.result.outcome for each in played[first + 1 :]} <= {"terminated_early", "failed"}
    assert {each.incumbent for each in played[first:]} == {played[first].candidate}


def test_a_trial_far_slower_than_its_prediction_ends_at_the_limit_of_a_real_search() -> None:
    limits = Limits(q_max=200)
    task, designer = dataclasses.replace(small_task(), problem=dataclasses.replace(small_task().problem, limits=limits)), InOrder()
    designer.predict = lambda candidate: Prediction(steps_per_s=100.0, log_stddev=0.1)
    played = run_designer(task, designer, make_rule("never", task.problem.limits), seed=0, trials=1)
    simulated = task.simulator.simulate_trial(task.candidates.configuration(0), steps=task.problem.limits.q_max, seed=0)
    first = played[0].result
    assert first.outcome == "timed_out" and played[0].incumbent is None
    assert first.seconds == time_limit_s(played[0].prediction, [], task.problem.limits) < simulated.setup_s + sum(simulated.step_times_s)


def test_seconds_per_suggestion_are_those_of_all_trials() -> None:
    runs = [dataclasses.replace(run_of((0.9,) * n, (60.0,) * n), thinking_s=seconds) for n, seconds in ((2, 1.0), (3, 4.0))]
    assert summary(runs, 30, longest_s(runs, 30))["seconds_per_suggestion"] == 1.0
    assert thinking_section(runs).rows == [("oppa", "0.917", "1.333")]


def test_designers_meet_the_same_noise() -> None:
    task = small_task(noise=0.1)

    def measured(order):
        designer = InOrder()
        designer.suggest = lambda taken: next((i for i in order if i not in taken), None)
        played = run_designer(task, designer, make_rule("never", task.problem.limits), seed=3, trials=6)
        return {each.candidate: each.result.step_times_s for each in played}

    assert measured(range(6)) == measured(range(5, -1, -1))


def test_scores_are_those_of_the_definition() -> None:
    run = run_of((0.0, 0.9, 0.96, 1.0), (60.0, 130.0, 200.0, 270.0))
    assert trials_to(run, 4) == 3 and seconds_to(run, 4, {"a": 900.0}) == 200
    assert (
        trials_to(run, 2) == 3 and seconds_to(run, 2, {"a": 900.0}) == 900
    )  # never, in two trials: T + 1, and the longest search's seconds
    assert best_at(run, 6) == [0.0, 0.9, 0.96, 1.0, 1.0, 1.0]


def test_a_designer_that_found_nothing_is_scored() -> None:
    run = run_of((0.0, 0.0), (60.0, 120.0))
    of = summary([run], 30, longest_s([run], 30))
    assert of["best_at_5"] == 0 and of["trials_to_95_median"] == 31 and of["seconds_to_95_median"] == 120
    nothing = [run_of((), ())]
    assert summary(nothing, 30, longest_s(nothing, 30))["seconds_to_95_median"] == 0


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


@pytest.fixture
def log(tmp_path) -> Log:
    made = Log(path=tmp_path / "runs.jsonl", protocol={"suite": "small", "trials": 4, "apart": ["b"]})
    made.open_session({"command": "here"})
    for task in ("a", "b"):
        for designer in ("oppa", "random"):
            for seed in (0, 1):
                made.append(run_of((0.5, 0.9, 0.96, 1.0), (60.0, 130.0, 200.0, 270.0), designer=designer, task=task, seed=seed))
    return made


def test_what_is_logged_is_read_again(log) -> None:
    assert len(log.read()) == 8 and log.read()[0] == run_of((0.5, 0.9, 0.96, 1.0), (60.0, 130.0, 200.0, 270.0))
    assert Log.load(log.path) == log and log.origins() == [{"command": "here"}]


def test_a_designer_that_lacks_tasks_is_compared_on_those_that_it_has(log) -> None:
    log.append(run_of((0.5, 0.96), (60.0, 100.0), designer="tpe", task="a"))
    log.append(run_of((0.5, 0.96), (60.0, 100.0), designer="grid", task="c"))
    dropped = dataclasses.replace(run_of((0.9, 1.0), (60.0, 100.0), task="a"), variation="prior-25")
    log.append(dropped)
    text, _ = page(log.path)
    assert "| tpe" in text and "| grid" in text
    runs = log.read()
    assert ratio(runs, "oppa", "tpe", 4) == 2.0 and math.isnan(ratio(runs, "oppa", "grid", 4))
    assert best_peer(runs, 4) == ("random", 1.0)  # the only one that has every task of oppa
    json.dumps(to_json(runs, [], 4, {}))


def test_a_torn_line_is_lost_alone(log) -> None:
    whole = log.read()
    with log.path.open("a") as file:
        file.write('{"task": "a", "desi')
    assert log.read() == whole
    log.open_session({"command": "again"})
    log.append(run_of((1.0,), (1.0,), seed=7))
    assert log.read() == [*whole, run_of((1.0,), (1.0,), seed=7)]


def test_a_log_of_another_comparison_is_refused(log) -> None:
    other = dataclasses.replace(log, protocol={**log.protocol, "trials": 5})
    with pytest.raises(InputError, match="trials differs"):
        other.read()


@pytest.mark.parametrize("files", [{}, {"tasks": [], "files": {"job.toml": "1"}}])
def test_a_log_of_an_older_protocol_is_refused_and_still_gives_its_page(log, files) -> None:
    text = log.path.read_text().replace(
        '"apart":["b"]', '"apart":["b"]' + "".join(f",{json.dumps(k)}:{json.dumps(v)}" for k, v in files.items())
    )
    log.path.write_text(text)
    older = Log.load(log.path)
    assert "oppa" in page(log.path)[0]
    assert dataclasses.replace(older, protocol={**older.protocol, "protocol": 1}).read() == older.read()
    with pytest.raises(InputError, match=r"is the log of another comparison: its protocol( = 1, not 2)? differs"):
        dataclasses.replace(older, protocol={**older.protocol, "protocol": 2}).read()


def test_a_comparison_states_the_number_of_its_protocol() -> None:
    assert Comparison(suite="cpu").protocol([])["protocol"] == PROTOCOL


def test_the_same_log_gives_the_same_page(log, tmp_path) -> None:
    text, figures = page(log.path)
    assert page(log.path) == (text, figures)
    assert log.sha256 in text and "Apart: the largest clusters" in text
    assert write_page(tmp_path).read_text() == text
    assert {path.name for path in tmp_path.glob("*.svg")} == set(figures)


@pytest.mark.parametrize("suite", ["replai", "./none.toml", "torch.toml"])
def test_an_unknown_suite_is_named(suite) -> None:
    with pytest.raises(InputError):
        load_suite(suite)


def test_a_table_that_is_not_there_is_lacking(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("OPPA_DATA", str(tmp_path))
    with pytest.raises(EnvironmentLackingError, match=r"nanotron_h100.csv` does not exist"):
        load_suite("replay")


def test_an_unknown_designer_is_named_before_anything_runs() -> None:
    with pytest.raises(InputError, match="`opa` is no designer"):
        Comparison(suite="cpu", designers=("opa",)).tasks()


def test_every_variation_changes_what_it_says() -> None:
    task = small_task()
    assert VARIATIONS["q-max-10"].task(task).problem.limits.q_max == 10
    assert VARIATIONS["ucb"].task(task).problem.search_options.acquisition == "ucb"
    assert VARIATIONS[""].task(task).problem == task.problem
    assert all(variation.about for variation in VARIATIONS.values())


@pytest.mark.slow
def test_a_comparison_goes_on_from_its_log(tmp_path) -> None:
    comparison = Comparison(suite="cpu", designers=("random",), seeds=2, trials=3)
    tasks, _ = comparison.tasks()
    log = Log(path=tmp_path / "runs.jsonl", protocol=comparison.protocol(tasks))
    log.open_session({})
    told = []
    first = compare(comparison, tasks, log, lambda run, done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)] and log.read() == sorted(first, key=lambda run: log.read().index(run))
    assert compare(comparison, tasks, log, lambda *_: pytest.fail("it was played before")) == first


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, *nightly(signal.SIGINT)])
def test_nothing_is_left_of_a_comparison_that_is_broken_off(number, tmp_path) -> None:
    command = [sys.executable, "-m", "oppa", "bench", "search", "--suite", "cpu", "--designers", "oppa", "--out", str(tmp_path)]
    bench = subprocess.Popen(command, cwd=catalog.root(), stderr=subprocess.PIPE, text=True, preexec_fn=_hear_interrupts)
    while len(workers := [each for each in processes.descendants(bench.pid) if "spawn_main" in command_of(each.pid)]) < os.cpu_count():
        time.sleep(0.05)
    os.kill(bench.pid, number)
    said = bench.communicate()[1]
    assert_gone(workers)
    assert number == signal.SIGKILL or (bench.returncode == 130 and "interrupted; the same command continues" in said)


def _hear_interrupts() -> None:
    """What runs the tests may be a shell's background job, whose children ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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


def test_the_default_comes_before_what_random_found() -> None:
    runs = [run_of((0.3, 0.9), (1.0, 2.0), designer="random"), dataclasses.replace(run_of((1.0,), (1.0,)), untuned=0.7)]
    assert untuned(runs) == {"a": 0.7}


def test_a_run_logs_the_default_that_runs() -> None:
    task = small_task()
    played = run_designer(task, InOrder(), make_rule("never", task.problem.limits), seed=0, trials=6)
    assert Run.of(task, "mine", 0, "", played).untuned == 0.5  # dp = 4 does not run, and dp = 2 with one sequence has half of the best rate


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


@pytest.mark.parametrize("own", [True, False])
def test_a_run_counts_the_trials_of_the_baseline(own) -> None:
    task = small_task()
    if own:
        task = dataclasses.replace(task, problem=dataclasses.replace(task.problem, baseline=task.candidates.configuration(3)))
    played = run_designer(task, InOrder(), make_rule("never", task.problem.limits), seed=0, trials=6)
    assert [each.chosen for each in played] == [not own, *[True] * 5]
    assert Run.of(task, "mine", 0, "", played).baselines == int(own)
