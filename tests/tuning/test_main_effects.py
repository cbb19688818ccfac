"""Each value of a knob has a factor of its own, so a trial teaches about its values in every candidate."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from oppa.cost.beliefs import framework_of
from oppa.problem.job import load_job
from oppa.tuning.designer import Observation
from oppa.tuning.designers import make_designer
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.designers.processes import CONSTANT
from oppa.tuning.surrogate.constant import Constant
from oppa.tuning.surrogate.main_effects import RATE_SPREAD, MainEffects, varying, varying_extras

TRIALS, WORLDS = 8, 3
NAMES = ["workers", "fused", "prefetch"]
LAUNCH = ["train", "{workers=1:1,2,4,8}", "{fused=0:0,1}", "{prefetch=none:none,one,two}"]


@pytest.fixture
def problem(tmp_path):
    (tmp_path / "job.toml").write_text("[cluster]\ndevices_per_host = 1\n")
    return load_job(tmp_path / "job.toml", argv=LAUNCH)


def log_rates(candidates, seed: int) -> np.ndarray:
    """Return the log throughput of each candidate: a product of effects, some of them large, and of small interactions."""
    rng = np.random.default_rng(seed)
    effects = [(name, dict(zip(candidates.space[name].values, rng.normal(0, 0.25, 8), strict=False))) for name in NAMES]
    main = [sum(known[each[name]] for name, known in effects) for each in candidates]
    return np.array(main) + rng.normal(0, 0.03, len(candidates))


def regret(problem, name: str, seed: int) -> float:
    """Return by how much the best of some trials is slower than the best candidate."""
    candidates = problem.candidates()
    truth, designer = log_rates(candidates, seed), make_designer(name, problem, candidates, seed=seed)
    tried, candidate = list[int](), candidates.index_of(problem.baseline)
    for _ in range(TRIALS):
        tried.append(candidate)
        rate, steps = float(truth[candidate]), (math.exp(-truth[candidate]),) * 5
        seen = Observation(candidate=candidate, outcome="completed", log_steps_per_s=rate, log_variance=1e-6, memory_bytes=None)
        designer.update([dataclasses.replace(seen, step_times_s=steps)])
        candidate = designer.suggest(set(tried))
    return math.expm1(truth.max() - truth[tried].max())


@pytest.mark.slow
def test_the_best_of_24_is_within_5_percent_after_8_trials(problem) -> None:
    assert len(problem.candidates()) == 24
    assert np.median([regret(problem, "oppa", seed) for seed in range(WORLDS)]) <= 0.05


def test_a_knob_that_the_cost_model_reads_has_no_factor_of_its_own(make_problem) -> None:
    problem = make_problem(
        ("space = {", 'space = {name = "torch-long-context", '),
        ("dp_bucket_mb = 25", "dp_bucket_mb = 25, dp_shard = [0, 2], recompute_layers = [0, 2]"),
        ('recompute = "none"', 'recompute = ["none", "full"]'),
    )
    candidates = problem.candidates()
    read = framework_of(problem).reads(candidates.space.names)
    assert {"dp_shard", "recompute_layers"} <= read and {"dp_shard", "recompute_layers"} <= {
        each.name for each in varying_extras(candidates)
    }
    assert varying_extras(candidates, read) == []
    designer = Oppa(problem, candidates, seed=0)
    assert not [name for name in designer.log_rate.cost.names if "=" in name]
    assert [name for name in designer.averaged_rate.experts[1].cost.names if name.startswith("dp_shard=")]


def test_value_and_slopes_agree_with_the_factors(problem) -> None:
    candidates = problem.candidates()
    mean = MainEffects(Constant(CONSTANT, len(candidates)), candidates, varying(candidates), spread=RATE_SPREAD)
    shift = torch.randn(len(mean.names), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value, slopes = mean.linearised(shift)
    known = mean.coefficients(shift)
    for index, configuration in enumerate(candidates):
        factors = [known[f"{name}={configuration[name]}"] for name in NAMES]
        assert math.exp(value[index]) == pytest.approx(known["constant"] * math.prod(factors))
    step = torch.zeros_like(shift)
    for column in range(len(shift)):
        moved = mean.at(shift + step.scatter(0, torch.tensor([column]), 1e-4))
        torch.testing.assert_close((moved - value) / 1e-4, slopes[:, column], atol=1e-6, rtol=1e-6)
    assert [parameter.name for parameter in varying_extras(candidates)] == NAMES
