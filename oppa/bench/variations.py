"""Vary the protocol or `oppa`, to measure how much the results depend on them.

Variations:
    noise       twice the noise, or none; starts of 10 s or 300 s
    limits      q_min and q_max (OPPA figures 10, 15 and 25)
    prior       the cost model is off by up to a quarter or a half, differently for every (dp, tp, pp) (Table 6)
    distorted   the cost model is wrong in one way, or a knob is hidden from it (oppa.bench.distortions)
    held-out    coefficients of the cost model fitted to the other models' runs only, so that a task's own runs have no influence
"""

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from oppa.bench.distortions import Distortion, doubled_memory, halved_memory, reversed_ranks, slow_layout, tripled_time, with_hidden_knob
from oppa.bench.held_out import held_out_beliefs
from oppa.bench.suites import SUITES
from oppa.cost.coefficients import Coefficients
from oppa.cost.step_time import step_time
from oppa.cost.workload import Formula, Workload
from oppa.errors import InputError, nearest
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.replay import ReplayNoise
from oppa.tuning.designer import Designer
from oppa.tuning.designers import default_stopping, make_designer
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.stopping import StopTest, make_rule

PLAIN = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Defines a change of the protocol or of the designer; without any field it is the protocol itself."""

    about: str
    noise: ReplayNoise | None = None
    q_min: int | None = None
    q_max: int | None = None
    stopping: str | None = None
    acquisition: str | None = None
    prior_off: float = 0.0
    """Largest relative error that is added to the cost model's throughput."""
    held_out: bool = False
    distortion: Distortion | None = None
    hidden_knob: bool = False
    doubts: bool = True
    """`oppa` averages the cost model with a constant mean."""
    designers: tuple[str, ...] = ("oppa",)
    """Designers that run under it."""

    def obstacle(self, suite: str, tasks: Sequence[BenchmarkTask]) -> str:
        """Return why the tasks of a suite cannot run under it; empty if they can."""
        if self.noise is not None and suite in SUITES and SUITES[suite].source != "table":
            return "not all of its tasks are rows of a table, whose noise can be replaced"
        if self.held_out and suite != "replay":
            return "the coefficients are fitted to the runs of `replay`"
        changes_prior = self.prior_off > 0 or self.distortion is not None or not self.doubts
        if changes_prior and not all(task.problem.has_prior for task in tasks):
            return "its programs have no model, and so no prior"
        return ""

    def task(self, task: BenchmarkTask) -> BenchmarkTask:
        """Return the task with changed limits, a changed acquisition function, and perhaps a hidden knob."""
        task = with_hidden_knob(task) if self.hidden_knob else task
        usual = task.problem.limits
        limits = dataclasses.replace(usual, q_min=self.q_min or usual.q_min, q_max=self.q_max or usual.q_max)
        options = task.problem.search_options
        options = dataclasses.replace(options, acquisition=self.acquisition or options.acquisition)
        return dataclasses.replace(task, problem=dataclasses.replace(task.problem, limits=limits, search_options=options))

    def rule(self, designer: str, task: BenchmarkTask) -> StopTest:
        """Return the rule that ends trials early."""
        return make_rule(self.stopping or default_stopping(designer), task.problem.limits)

    def designer(self, name: str, task: BenchmarkTask, seed: int) -> Designer:
        """Return the designer, as changed."""
        if self.prior_off:
            return Oppa(task.problem, task.candidates, seed=seed, formula=misled(self.prior_off, seed))
        if self.distortion or not self.doubts:
            formulas = self.distortion(task) if self.distortion else {}
            return Oppa(task.problem, task.candidates, seed=seed, doubts=self.doubts, **formulas)
        beliefs = held_out_beliefs(task.name.partition("-")[0]) if self.held_out else None
        return make_designer(name, task.problem, task.candidates, seed=seed, beliefs=beliefs)


VARIATIONS = {
    PLAIN: Variation(about="the protocol itself"),
    "held-out": Variation(about="coefficients fitted to the other models alone", held_out=True),
    "prior-25": Variation(about="prior off by up to 25%", prior_off=0.25),
    "prior-50": Variation(about="prior off by up to 50%", prior_off=0.5),
    "slow-layout": Variation(about="twice the time for the layout of the best", distortion=slow_layout),
    "time-triple": Variation(about="three times the time", distortion=tripled_time),
    "memory-double": Variation(about="twice the memory", distortion=doubled_memory),
    "memory-half": Variation(about="half the memory", distortion=halved_memory),
    "ranks-reversed": Variation(about="the order of times is reversed", distortion=reversed_ranks),
    "hidden-knob": Variation(about="a knob that no formula contains", hidden_knob=True, designers=("oppa", "oppa-no-prior")),
    "no-doubts": Variation(about="the cost model alone, without a constant mean", doubts=False),
    "no-noise": Variation(about="no noise", noise=ReplayNoise(trial=0.0, step=0.0)),
    "noise-6": Variation(about="6% per trial and per step", noise=ReplayNoise(trial=0.06, step=0.06)),
    "setup-10s": Variation(about="starts of 10 s", noise=ReplayNoise(setup_s=10.0)),
    "setup-300s": Variation(about="starts of 300 s", noise=ReplayNoise(setup_s=300.0)),
    "q-min-2": Variation(about="early termination after 2 steps", q_min=2),
    "q-min-10": Variation(about="early termination after 10 steps", q_min=10),
    "q-max-10": Variation(about="trials of 10 steps", q_max=10),
    "q-max-100": Variation(about="trials of 100 steps", q_max=100),
    "ucb": Variation(about="the upper confidence bound of eq. 4 in place of improvement", acquisition="ucb"),
    "sure-stop": Variation(about="trials of all steps, but for those that are surely slower", stopping="sure"),
    "paper-stop": Variation(about="the paper's rule (eq. 5) in place of ours", stopping="paper"),
}


def variations_named(names: str) -> tuple[str, ...]:
    """Return the protocol itself and the variations of a comma-separated list, or all of them for `all`.

    Raises:
        InputError: a name is unknown.
    """
    if names == "all":
        return tuple(VARIATIONS)
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in VARIATIONS]:
        raise InputError(f"`--variations {unknown[0]}` is unknown", hint=nearest(unknown[0], VARIATIONS))
    return tuple(dict.fromkeys((PLAIN, *chosen)))


def misled(share: float, seed: int) -> Formula:
    """Return the cost model's step time with a relative error of up to `share`, different for every (dp, tp, pp)."""

    def formula(work: Workload, c: Coefficients) -> Tensor:
        layout = work.layout
        place = layout.dp.log2() * 7.1 + layout.tp.log2() * 13.7 + layout.pp.log2() * 23.3 + seed
        return step_time(work, c) / (1 + share * (1e4 * place.sin()).sin())  # pseudo-random, but reproducible

    return formula
