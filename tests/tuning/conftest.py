"""A small problem on CPUs, and two made-up truths about it: a landscape of our own, and the cost model with planted coefficients."""

import dataclasses
import math
from functools import partial

import pytest
import torch

from oppa.study import Study, Trial
from oppa.trials.trial import run_trial
from oppa.tuning.designer import Observation
from oppa.tuning.designers import known_designers, make_designer
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.search import search
from oppa.tuning.stopping import make_rule
from oppa.tuning.trial_executor import TrialExecutor
from oppa.tuning.winner import find_winner
from tests.jobs import problem_of
from tests.tuning import acted_trials
from tests.tuning.acted_search import LIMITS, Onlooker

JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 4, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
space = {parameters = {zero_stage = [0, 1], schedule = "1f1b", recompute = "none", dp_bucket_mb = 25}}
"""
STEPS = 8
INSTALLED = tuple(name for name in known_designers() if name not in ("vizier", "syne-tune"))
"""Designers that need no environment of their own; `test_own_environments.py` tests the others."""


@pytest.fixture(scope="session")
def make_problem(tmp_path_factory):
    """The problem, with pieces of its text replaced."""

    def make(*replacements):
        text = JOB
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        return problem_of(text, tmp_path_factory.mktemp("job"))

    return make


@pytest.fixture(scope="session")
def problem(make_problem):
    return make_problem()


@pytest.fixture(scope="session")
def candidates(problem):
    return problem.candidates()


def measured(candidate: int, log_rate: float, memory_bytes: float, **known) -> Observation:
    """A trial that ran to its end without noise."""
    return Observation(
        candidate=candidate,
        outcome="completed",
        log_steps_per_s=log_rate,
        log_variance=1e-4,
        memory_bytes=round(memory_bytes),
        step_times_s=(math.exp(-log_rate),) * STEPS,
        **known,
    )


def failed(candidate: int, outcome: str = "failed", **known) -> Observation:
    """A trial that measured nothing."""
    return Observation(
        **{"candidate": candidate, "outcome": outcome, "log_steps_per_s": None, "log_variance": None, "memory_bytes": None, **known}
    )


class Landscape:
    """Holds a made-up truth: throughput falls with tp and rises with the micro-batch, whose size memory limits."""

    def __init__(self, candidates) -> None:
        self.candidates = candidates

    def log_rate(self, index: int) -> float:
        configuration = self.candidates.configuration(index)
        return 0.5 * math.log2(configuration.micro_batch) - 0.7 * math.log2(configuration.tp) - 0.2 * math.log2(configuration.pp)

    def observe(self, index: int) -> Observation:
        memory = 20 * 2**20 * self.candidates.configuration(index).micro_batch
        if memory > 100 * 2**20:
            return failed(index, "out_of_memory")
        return measured(index, self.log_rate(index), memory, seconds=60 + STEPS * math.exp(-self.log_rate(index)))


@pytest.fixture(scope="session")
def landscape(candidates) -> Landscape:
    return Landscape(candidates)


class Planted:
    """Takes the cost model as the truth, with coefficients drawn from their priors."""

    def __init__(self, problem, candidates, *, seed: int) -> None:
        designer, g = Oppa(problem, candidates, seed=0), torch.Generator().manual_seed(seed)
        processes = {"log_rate": designer.log_rate, "log_slack": designer.log_slack}
        self.shift = {name: torch.randn(len(known.shift), generator=g, dtype=torch.float64) for name, known in processes.items()}
        self.truth = {name: known.cost.at(self.shift[name]) for name, known in processes.items()}
        self.limit_bytes = designer.limits.reported

    def observe(self, index: int) -> Observation:
        log_rate, slack = (float(self.truth[name][index]) for name in ("log_rate", "log_slack"))
        return failed(index, "out_of_memory") if slack > 0 else measured(index, log_rate, self.limit_bytes * math.exp(slack))


@pytest.fixture(scope="session")
def make_planted(problem, candidates):
    return lambda seed: Planted(problem, candidates, seed=seed)


def trial_of(number, configuration, steps_per_s, outcome="completed", **values) -> Trial:
    """A trial, written down by hand."""
    known = {
        "purpose": "search",
        "pairing": None,
        "cause": "",
        "rank": None,
        "traceback": "",
        "step_times_s": (),
        "steps_per_s": steps_per_s if outcome in ("completed", "terminated_early") else None,
        "variance": 0.0,
        "memory_bytes": 1,
        "prediction": None,
        "seconds": 1.0,
        "setup_s": 0.1,
        "started_at": 0.0,
    }
    return Trial(id=number, configuration=configuration, outcome=outcome, **{**known, **values})


def run_designer(designer, landscape, rounds):
    """Suggest and observe in turn; the candidates in the order of their trials."""
    tried: list[int] = []
    for _ in range(rounds):
        tried.append(designer.suggest(set(tried)))
        designer.update([landscape.observe(tried[-1])])
    return tried


@pytest.fixture
def make(problem, candidates):
    """A designer by its name."""
    return lambda name, seed=0: make_designer(name, problem, candidates, seed=seed)


@pytest.fixture
def limited(problem):
    return dataclasses.replace(problem, limits=LIMITS)


@pytest.fixture
def study(tmp_path, limited):
    with Study.create(tmp_path / "study", limited.to_dict(), limited.fingerprint) as study:
        study.open_session({})
        yield study


@pytest.fixture
def onlooker() -> Onlooker:
    return Onlooker()


@pytest.fixture
def session(study, limited, onlooker):
    """Open a session on the study, with trials that follow a law."""
    return lambda law=acted_trials.landscape, limits=LIMITS, baseline=None: TrialExecutor(
        study, dataclasses.replace(limited, limits=limits, baseline=baseline), partial(run_trial, acted_trials.Actors(law)), onlooker
    )


@pytest.fixture
def run(session, limited, candidates):
    """Search; returns why it ended."""

    def run(name, *, rule="sure", law=acted_trials.landscape, limits=LIMITS, **watching):
        designer = make_designer(name, limited, candidates, seed=0)
        return search(session(law, limits), candidates, designer, make_rule(rule, limits), **watching)

    return run


@pytest.fixture
def prove(session, limited, candidates):
    """Find the winner among what was searched."""
    return lambda name, **acting: find_winner(session(**acting), candidates, make_designer(name, limited, candidates, seed=0))
