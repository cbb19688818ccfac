"""Each designer has a purpose of its own; tests/conformance has what all of them promise."""

import dataclasses
import subprocess
import sys
from collections import Counter

import pytest
import torch
from gpytorch.means import ConstantMean

from oppa.cost.coefficients import Belief
from oppa.errors import InputError
from oppa.problem.training import SearchOptions
from oppa.tuning.designers import default_stopping, known_designers, make_designer
from oppa.tuning.stopping import RULES
from oppa.tuning.surrogate.distributions import column
from oppa.tuning.surrogate.paper import PaperProcess
from tests.sampling import nightly
from tests.tuning.conftest import run_designer

MODELS = ("oppa", "oppa-no-prior", "oppa-paper", "vanilla-bo")


def order_with(name, problem, candidates, landscape, **strategy) -> list[int]:
    """Return what comes first after seven trials, under a strategy of the job's."""
    designer = make_designer(name, dataclasses.replace(problem, search_options=SearchOptions(**strategy)), candidates, seed=0)
    designer.update([landscape.observe(index) for index in range(0, 32, 5)])
    order: list[int] = []
    for _ in range(10):
        order.append(designer.suggest(set(order)))
    return order


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_job_says_how_much_what_is_uncertain_is_liked(name, problem, candidates, landscape) -> None:
    few, many = (order_with(name, problem, candidates, landscape, acquisition="ucb", beta=beta) for beta in (1e-3, 50.0))
    assert few != many


@pytest.mark.slow
@pytest.mark.parametrize("name", ["oppa-paper", "oppa-no-prior"])
def test_the_schedule_of_beta_is_followed(name, problem, candidates, landscape) -> None:
    bound, one = (order_with(name, problem, candidates, landscape, acquisition="ucb", beta=beta) for beta in (None, 1e-3))
    assert bound != one


def test_a_designer_that_cannot_follow_the_schedule_says_so(problem, candidates) -> None:
    with pytest.raises(InputError) as caught:
        make_designer("vanilla-bo", dataclasses.replace(problem, search_options=SearchOptions(beta=None)), candidates, seed=0)
    assert "bound" in caught.value.message and "oppa" in caught.value.hint


def test_the_paper_s_process_knows_the_log_determinant_of_its_observations() -> None:
    points, rows, noise = (
        torch.linspace(0, 1, 6, dtype=torch.float64)[:, None],
        torch.tensor([0, 2, 3, 5]),
        column([0.01, 0.02, 0.03, 0.04]),
    )
    process = PaperProcess(points, ConstantMean(), rows, column([1.0, 0.5, 0.2, 0.8]), noise)
    gap = process.log_determinant - float(noise.log().sum())
    nearly = PaperProcess(points, ConstantMean(), rows, column([1.0, 0.5, 0.2, 0.8]), 1e8 * noise)
    assert torch.equal(process.noise, noise) and gap > 1
    assert nearly.log_determinant == pytest.approx(float((1e8 * noise).log().sum()), abs=1e-3)  # nothing but noise


def test_an_unknown_designer_is_an_error_that_names_the_nearest(make) -> None:
    with pytest.raises(InputError) as caught:
        make("vanila-bo")
    assert "vanilla-bo" in caught.value.hint


@pytest.mark.parametrize("name", sorted(known_designers().keys() - {"oppa"}))
def test_only_a_designer_with_coefficients_can_start_from_others(name, problem, candidates) -> None:
    beliefs = {"latency": Belief(median=1.0, spread=0.1, source="a test")}
    with pytest.raises(InputError) as caught:
        make_designer(name, problem, candidates, seed=0, beliefs=beliefs)
    assert caught.value.hint == "use `--designer oppa`"


@pytest.mark.parametrize("name", ["oppa", "oppa-no-prior"])
def test_corrected_rates_replace_those_that_were_learned(name, make, landscape) -> None:
    """The machine became twice as slow meanwhile."""
    seen = [landscape.observe(index) for index in (3, 17, 20)]
    slow = [dataclasses.replace(each, log_steps_per_s=each.log_steps_per_s - 0.7) for each in seen]
    corrected, direct = make(name), make(name)
    corrected.update(slow)
    corrected.restate(seen)
    direct.update(seen)
    assert corrected.predict(20).steps_per_s == pytest.approx(direct.predict(20).steps_per_s, rel=0.05)


@pytest.mark.parametrize("name", ["oppa", "oppa-no-prior"])
def test_what_runs_is_neither_suggested_nor_learned(name, make, landscape) -> None:
    designer = make(name)
    designer.update([landscape.observe(index) for index in (3, 17, 20)])
    expected, suggested = designer.predict(5), designer.suggest({3, 17, 20})
    for running in ({20}, {20, suggested}):
        assert designer.suggest_with_pending(running, {3, 17, 20} | running) not in running
    assert designer.predict(5) == expected and designer.suggest({3, 17, 20}) == suggested


def test_the_rules_that_designers_use_are_rules() -> None:
    rules = {name: default_stopping(name) for name in known_designers()}
    assert set(rules.values()) <= RULES.keys() and (rules["oppa"], rules["smac-physics"]) == ("precise", "precise")
    assert rules["oppa-no-early-stop"] == default_stopping("mine:Class") == "never"


@pytest.mark.slow
def test_torch_is_loaded_only_where_it_works() -> None:
    program = """
import sys
from pathlib import Path
from oppa.problem.job import load_job
from oppa.tuning.designers import make_designer
problem = load_job(Path("examples/cpu.toml"))
for name in ("random", "exhaustive", "grid", "tpe", "xgboost"):
    make_designer(name, problem, problem.candidates(), seed=0).suggest(set())
    assert "torch" not in sys.modules, name
"""
    subprocess.run([sys.executable, "-c", program], check=True)


COMPARED = "from oppa.tuning.verification import speed_up; speed_up([2.02, 1.98], [1.00, 1.03])"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "lacking"),
    [
        ("import oppa.cost.beliefs, oppa.report.words, oppa.simulator.replay_file", "torch pandas scipy botorch"),
        (f"import oppa.tuning.search, oppa.tuning.session; {COMPARED}", "torch pandas scipy.stats botorch"),
        ("import oppa.cli.outputs.schemas", "torch pandas scipy botorch"),
        ("import oppa.tuning.designers.oppa, oppa.tuning.expectation, oppa.tuning.cost_breakdown", "pandas scipy.stats"),
    ],
    ids=["files", "search", "outputs", "prior"],
)
def test_heavy_packages_are_loaded_only_where_they_work(program: str, lacking: str) -> None:
    code = f"import sys; {program}; print(*set({lacking!r}.split()) & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


def test_random_draws_every_triple_equally_often(make, candidates) -> None:
    counts = Counter(int(candidates.triples()[make("random", seed).suggest(set())]) for seed in range(600))
    expected = 600 / len(set(candidates.triples()))
    # Binomial: five standard deviations, so that a fair draw fails once in a million.
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    assert len(counts) == len(set(candidates.triples()))


def test_exhaustive_goes_through_the_space_in_its_order(make, landscape, candidates) -> None:
    assert run_designer(make("exhaustive"), landscape, len(candidates)) == list(range(len(candidates)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["oppa", "vanilla-bo", *nightly("oppa-paper")])
def test_a_model_makes_better_choices_than_chance(name, problem, candidates, landscape) -> None:
    certain = dataclasses.replace(problem, search_options=SearchOptions(acquisition="ucb"))  # improvement tries what may not fit

    def worth(name, seed):
        """The sum over the trials after the random ones; what does not fit is as bad as the worst that does."""
        seen = [landscape.observe(index) for index in run_designer(make_designer(name, certain, candidates, seed=seed), landscape, 10)[5:]]
        return sum(-2.0 if o.log_steps_per_s is None else o.log_steps_per_s for o in seen)

    ours, chance = (sum(worth(which, seed) for seed in range(2)) for which in (name, "random"))
    assert ours > chance


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_known_beforehand_saves_trials(seed, make, landscape) -> None:
    def best(name, rounds):
        rates = [landscape.observe(index).log_steps_per_s for index in run_designer(make(name, seed), landscape, rounds)]
        return max(rate for rate in rates if rate is not None)

    assert best("oppa", 3) >= best("random", 10)
