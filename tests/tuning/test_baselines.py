"""The peers that oppa is compared with: each as good as its method makes it."""

import sys

import numpy as np
import pytest
import torch
from scipy.stats import norm

from experiments.baselines.improvement import log_improvement
from experiments.baselines.optuna_study import SAMPLERS, OptunaStudy
from experiments.baselines.planner import step_time_s
from experiments.baselines.vanilla_bo import log_constrained_improvement
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.tuning.designers import known_designers, make_designer
from oppa.tuning.designers.analytic_memory import memory_bytes
from oppa.tuning.surrogate.distributions import Normal
from tests.jobs import problem_of
from tests.tuning.conftest import failed, measured, run_designer

LEARNING = ("oppa-no-prior", "tpe", "optuna-gp", "xgboost", "smac", "forest-physics", "xgboost-physics", "smac-physics")


@pytest.fixture
def make(problem, candidates):
    return lambda name, seed=0: make_designer(name, problem, candidates, seed=seed)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("tpe", "optuna"),
        ("optuna-gp", "optuna"),
        ("xgboost", "xgboost"),
        ("forest-physics", "sklearn.ensemble"),
        ("xgboost-physics", "xgboost"),
        ("smac-physics", "ConfigSpace"),
        ("smac", "ConfigSpace"),
        ("baybe", "baybe"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_what_installs_it(name, package, make, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not there
    monkeypatch.delitem(sys.modules, known_designers()[name].partition(":")[0], raising=False)  # so that it is imported again
    with pytest.raises(EnvironmentLackingError) as caught:
        make(name)
    assert package in caught.value.message and catalog.install_hint("peers") == caught.value.hint


def columns(candidates, *names):
    return [candidates.column(name) for name in names]


def untroubled(designer) -> list[int]:
    """Return the order in which a designer without observations goes through its candidates."""
    order: list[int] = []
    while (index := designer.suggest(set(order))) is not None:
        order.append(index)
    return order


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_who_learns_finds_the_best_sooner_than_chance(name, make, landscape, candidates) -> None:
    rates = np.array([landscape.observe(index).log_steps_per_s for index in range(len(candidates))], dtype=float)
    best = set(np.flatnonzero(rates > np.nanmax(rates) - 0.01).tolist())

    def trials(name, seed):
        designer, tried = make(name, seed), set()
        while not tried & best:
            candidate = designer.suggest(tried)
            tried.add(candidate)
            designer.update([landscape.observe(candidate)])
        return len(tried)

    ours, chance = (sum(trials(which, seed) for seed in range(6)) for which in (name, "random"))
    assert ours < chance


# Estimates on paper


def test_more_of_any_parallelism_or_sharding_needs_no_more_memory(problem, candidates) -> None:
    memory, (dp, tp, pp, stage, micro_batch) = (
        memory_bytes(problem, candidates),
        columns(candidates, "dp", "tp", "pp", "zero_stage", "micro_batch"),
    )
    for index in range(len(candidates)):
        alike = (tp == tp[index]) & (pp == pp[index]) & (dp == dp[index])
        assert (memory[alike & (stage >= stage[index]) & (micro_batch <= micro_batch[index])] <= memory[index]).all()


def test_ranks_that_share_sequences_keep_less_than_ranks_with_sequences_of_their_own(tmp_path) -> None:
    job = """model.preset = "tiny-1m"
batch.global_batch = 8
cluster = {devices_per_host = 4, device = "H100"}
space = {name = "torch-long-context", parameters = {zero_stage = [0], micro_batch = [2], tp = [1], pp = [1]}}"""
    problem = problem_of(job, tmp_path)
    candidates = problem.candidates()
    (cp,) = columns(candidates, "cp")
    memory, time = memory_bytes(problem, candidates), step_time_s(problem, candidates)
    assert memory[cp == 4].max() < memory[cp == 1].max() and memory[cp == 4].min() < memory[cp == 1].min()
    assert time[cp == 4].min() == pytest.approx(time[cp == 1].min(), rel=0.1)


def test_a_model_on_one_device_holds_all_its_states(make_problem) -> None:
    problem = make_problem(("devices_per_host = 4", "devices_per_host = 1"))
    candidates = problem.candidates()
    smallest = memory_bytes(problem, candidates).min()
    states = 16 * (problem.model.parameter_count - problem.model.norm_parameter_count)  # fp32: weight, gradient, two moments
    assert states < smallest < 2 * states


def test_a_planner_s_pipeline_without_communication_has_the_bubble_of_the_textbook(make_problem) -> None:
    fast = 'intra_host = {bandwidth = "1e9 GB/s", latency = "0 s"}'
    problem = make_problem(("memory_limit", f"{fast}, memory_limit"))
    candidates = problem.candidates()
    time, (pp, count, chunks) = step_time_s(problem, candidates), columns(candidates, "pp", "num_microbatches", "model_chunks")
    ideal = time[pp == 1].min()
    assert np.allclose(time / ideal, 1 + (pp - 1) / (chunks * count), rtol=1e-3)


@pytest.mark.parametrize("name", ["planner", "grid"])
def test_what_cannot_fit_on_paper_comes_last(name, make_problem, landscape) -> None:
    problem = make_problem(("100 MiB", "45 MiB"))
    candidates = problem.candidates()
    large = memory_bytes(problem, candidates) > problem.cluster.memory_limit_bytes
    order = run_designer(make_designer(name, problem, candidates, seed=0), landscape, len(candidates))
    assert 0 < large.sum() < len(candidates) and np.array_equal(large[order], np.sort(large))


def test_a_planner_goes_down_its_ranking_whatever_happens(make, landscape, candidates) -> None:
    assert run_designer(make("planner"), landscape, len(candidates)) == untroubled(make("planner"))


# The grid


def test_a_grid_tries_little_model_parallelism_and_large_micro_batches_first(make_problem, landscape) -> None:
    problem = make_problem(("100 MiB", "4 GiB"))
    candidates = problem.candidates()
    tp, pp, micro_batch = columns(candidates, "tp", "pp", "micro_batch")
    order = untroubled(make_designer("grid", problem, candidates, seed=0))
    degrees = [(tp[index] * pp[index], tp[index], -micro_batch[index]) for index in order]
    assert len(order) == len(candidates) and degrees == sorted(degrees)


def test_a_grid_puts_off_what_needs_more_than_what_ran_out_of_memory(make, candidates) -> None:
    layout = np.stack(columns(candidates, "dp", "tp", "pp", "zero_stage", "model_chunks"), axis=1)
    micro_batch, order = candidates.column("micro_batch"), untroubled(make("grid"))
    first = next(index for index in order if micro_batch[index] == 2)
    late = set(np.flatnonzero((layout == layout[first]).all(axis=1) & (micro_batch >= 2)).tolist())
    designer = make("grid")
    designer.update([failed(first, "out_of_memory")])
    others = set(order) - late
    assert len(late) > 1 and designer.suggest(late - {first}) in others and designer.suggest(others) in late


# One shot


def test_the_one_shot_does_not_learn_after_its_first_trials(make, landscape, candidates) -> None:
    through = run_designer(make("cost-model"), landscape, 12)
    early = make("cost-model")
    early.update([landscape.observe(index) for index in through[:9]])
    early.update([measured(index, -9.0, 2**20) for index in range(5)])
    assert early.suggest(set(through[:11])) == through[11]


# Optuna


@pytest.fixture(params=SAMPLERS)
def study(request, problem, candidates):
    return OptunaStudy(problem, candidates, seed=0, sampler=request.param)


def test_optuna_sees_each_candidate_under_parameters_of_its_own(study, candidates) -> None:
    seen = {tuple(study.space.parameters(index).items()) for index in range(len(candidates))}
    assert len(seen) == len(candidates) and "dp" not in study.space.distributions


def test_what_optuna_suggests_is_nearest_to_itself(study, candidates) -> None:
    everything = np.arange(len(candidates))
    for index in everything:
        distances = study.space.distances(study.space.parameters(int(index)), everything)
        assert distances[index] == 0 and (np.delete(distances, index) > 0).all()


# SMAC3 and BayBE


def test_smac_sees_each_candidate_as_a_configuration_of_its_own(candidates) -> None:
    pytest.importorskip("smac")
    from experiments.baselines.smac_forest import configurations

    assert len(set(configurations(candidates)[1])) == len(candidates)


@pytest.mark.nightly  # its import
def test_baybe_sees_each_candidate_as_a_row_of_its_own(candidates) -> None:
    pytest.importorskip("baybe")
    from experiments.baselines.baybe_campaign import frame_of

    frame = frame_of(candidates)
    assert not frame.duplicated().any() and len(frame) == len(candidates)


# Constrained expected improvement


def test_improvement_is_that_of_the_closed_form_and_finite_far_below_the_incumbent() -> None:
    mean = torch.tensor([0.3, 0.0, -0.5, -80.0], dtype=torch.float64)
    value = log_improvement(Normal(mean, torch.ones_like(mean)), incumbent=0.0)
    closed = norm.pdf(mean) + mean.numpy() * norm.cdf(mean)
    assert np.allclose(value[:3].exp(), closed[:3]) and value.isfinite().all() and (value.diff() < 0).all()


def test_of_two_equally_fast_candidates_the_one_that_surely_fits_is_worth_more() -> None:
    rate = Normal(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    slack = Normal(torch.tensor([-1.0, 0.2], dtype=torch.float64), torch.full((2,), 0.1, dtype=torch.float64))
    value = log_constrained_improvement(rate, slack, 0.0)
    assert value[0] > value[1]
