"""The comparison of designers: its protocol, its log and its page."""

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
from oppa.bench.runs import Log, SearchRun
from oppa.bench.scores import best_peer, ratio, to_json
from oppa.bench.search import Comparison, compare
from oppa.bench.search_page import page, write_page
from oppa.bench.tasks import load_suite
from oppa.bench.variations import VARIATIONS
from oppa.cli.commands.bench_list import words
from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.training import Limits
from oppa.simulator.executor import within
from oppa.study import Prediction
from oppa.trials import processes
from oppa.trials.trial import TrialResult
from oppa.tuning.stopping import StopTest, make_rule
from oppa.tuning.time_limit import time_limit_s
from tests.bench.remains import assert_gone, command_of
from tests.bench.searches import InOrder, run_of, small_task
from tests.command_line import Oppa
from tests.sampling import nightly


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


def test_forests_on_the_cost_model_end_trials_by_the_rule_of_oppa() -> None:
    task = small_task()
    task = dataclasses.replace(task, problem=dataclasses.replace(task.problem, limits=Limits(q_min=5, q_max=30)))
    names = ("oppa", "forest-physics", "xgboost-physics", "prior-rank", "random")
    ends = {name: VARIATIONS[""].rule(name, task)([1.0, 1.01] * 6, None) for name in names}
    assert ends == {"oppa": "completed", "forest-physics": "completed", "xgboost-physics": "completed", "prior-rank": None, "random": None}


def test_a_trial_far_slower_than_its_prediction_ends_at_the_limit_of_a_real_search() -> None:
    limits = Limits(q_min=150, q_max=200)
    task, designer = dataclasses.replace(small_task(), problem=dataclasses.replace(small_task().problem, limits=limits)), InOrder()
    designer.predict = lambda candidate: Prediction(steps_per_s=100.0, log_stddev=0.1)
    played = run_designer(task, designer, make_rule("never", task.problem.limits), seed=0, trials=1)
    simulated = task.simulator.simulate_trial(task.candidates.configuration(0), steps=task.problem.limits.q_max, seed=0)
    first = played[0].result
    assert first.outcome == "timed_out" and played[0].incumbent is None
    assert first.seconds == time_limit_s(played[0].prediction, [], task.problem.limits) < simulated.setup_s + sum(simulated.step_times_s)


@pytest.mark.parametrize(("limit_s", "outcome"), [(22.5, "timed_out"), (23.5, "completed")])
def test_a_simulated_trial_is_measured_at_its_limit_once_three_steps_are_settled(limit_s, outcome) -> None:
    limits = Limits(settle=20, q_min=2, q_max=30, trial_time_s=limit_s)
    ended = within(TrialResult(outcome="completed", step_times_s=(1.0,) * 30, seconds=30.0, setup_s=0.0), limits)
    assert (ended.outcome, ended.estimate is not None) == (outcome, outcome == "completed")


def test_designers_meet_the_same_noise() -> None:
    task = small_task(noise=0.1)

    def measured(order):
        designer = InOrder()
        designer.suggest = lambda taken: next((i for i in order if i not in taken), None)
        played = run_designer(task, designer, make_rule("never", task.problem.limits), seed=3, trials=6)
        return {each.candidate: each.result.step_times_s for each in played}

    assert measured(range(6)) == measured(range(5, -1, -1))


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


def test_a_suite_of_tasks_that_never_run_is_refused(tmp_path) -> None:
    failing = "model,nodes,dp,pp,tp,zero,mbs,status,tok_s,mem_gb\n3B,1,8,1,1,0,4,failed,,\n"
    (tmp_path / "failing.csv").write_text(failing)
    own = Comparison(suite=str(catalog.find("search_spaces", "nanotron-h100")), table=tmp_path / "failing.csv", designers=("random",))
    with pytest.raises(InputError, match=r"no task of `.*` has a configuration that runs"):
        own.tasks()


def test_a_designer_without_its_library_is_refused_before_anything_runs(monkeypatch) -> None:
    monkeypatch.delenv("OPPA_VIZIER_PYTHON", raising=False)
    asked = Comparison(suite="cpu", designers=("random", "vizier"), seeds=1)
    with pytest.raises(EnvironmentLackingError, match="OPPA_VIZIER_PYTHON"):
        compare(asked, [small_task()], None, lambda *_: pytest.fail("it was played"))


@pytest.mark.slow
def test_a_designer_without_its_library_skips_no_suite(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("OPPA_VIZIER_PYTHON", raising=False)
    monkeypatch.setenv("OPPA_DATA", str(tmp_path))  # so that the first suites are skipped for their data
    said = Oppa(tmp_path)("bench", "search", "--suite", "all", "--designers", "vizier", "--trials", "1", code=3).stderr
    assert "SKIPPED: `replay`" in said and "SKIPPED: `cpu`" not in said


def test_what_is_named_twice_runs_once() -> None:
    assert words("a, b,a") == ("a", "b") and words(None) is None


def test_a_variation_that_a_suite_cannot_have_is_left_out() -> None:
    names = ("", "no-noise", "held-out", "slow-layout", "q-min-2")
    left_out = {suite: set(Comparison(suite=suite, variations=names).without_void(load_suite(suite))[1]) for suite in ("cpu", "black-box")}
    assert left_out == {"cpu": {"no-noise", "held-out"}, "black-box": {"no-noise", "held-out", "slow-layout"}}
    assert not any(each.obstacle("replay", [small_task()]) for each in VARIATIONS.values())


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
    progress = []
    first = compare(comparison, tasks, log, lambda run, done, of: progress.append((done, of)))
    assert progress == [(1, 2), (2, 2)] and log.read() == sorted(first, key=lambda run: log.read().index(run))
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
    """Restore the handler of SIGINT: the tests may run as a shell's background job, whose children ignore the signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_run_logs_the_default_that_runs() -> None:
    task = small_task()
    played = run_designer(task, InOrder(), make_rule("never", task.problem.limits), seed=0, trials=6)
    assert (
        SearchRun.of(task, "mine", 0, "", played).untuned == 0.5
    )  # dp = 4 does not run, and dp = 2 with one sequence has half of the best rate


@pytest.mark.parametrize("own", [True, False])
def test_a_run_counts_the_trials_of_the_baseline(own) -> None:
    task = small_task()
    if own:
        task = dataclasses.replace(task, problem=dataclasses.replace(task.problem, baseline=task.candidates.configuration(3)))
    played = run_designer(task, InOrder(), make_rule("never", task.problem.limits), seed=0, trials=6)
    assert [each.chosen for each in played] == [not own, *[True] * 5]
    assert SearchRun.of(task, "mine", 0, "", played).baselines == int(own)
