"""Distort what `oppa` expects of a task, or hide a knob from it, to measure how a search copes with a prior that is wrong.

The distortions change the prior alone. The truth of a task stays as it is, but for the hidden knob, which every designer meets.

Distortions:
    slow_layout      the layout of the best configuration (dp, tp, pp) is predicted to take twice its time
    tripled_time     every configuration is predicted to take three times its time
    scaled_memory    every configuration is predicted to need a multiple of its memory
    reversed_ranks   the fastest configuration is predicted to be the slowest, and so on
    with_hidden_knob an extra parameter, which no formula contains, multiplies throughput by HIDDEN
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from oppa.cost.coefficients import Coefficients
from oppa.cost.memory import memory
from oppa.cost.step_time import step_time
from oppa.cost.workload import Formula, Workload
from oppa.problem.configuration import Configuration
from oppa.problem.space import Parameter
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.trial_simulator import SimulatedTrial, TrialSimulator

KNOB = "hidden_knob"
HIDDEN: Mapping[int, float] = {0: 1.0, 1: 0.7, 2: 1.4}
"""Factor on throughput of each value of the hidden knob, the default first."""
TWICE, THRICE = 2.0, 3.0


class Formulas(TypedDict, total=False):
    """Holds the formulas that replace those of the cost model, as `Oppa` takes them."""

    formula: Formula
    memory_formula: Formula


Distortion = Callable[[BenchmarkTask], Formulas]


def slow_layout(task: BenchmarkTask) -> Formulas:
    """Predict twice the time for the layout of the best configuration."""
    best = task.candidates.configuration(int(np.nanargmax(task.steps_per_s)))

    def formula(work: Workload, c: Coefficients) -> Tensor:
        layout = work.layout
        there = (layout.dp == best.dp) & (layout.tp == best.tp) & (layout.pp == best.pp)
        return step_time(work, c) * torch.where(there, TWICE, 1.0)

    return Formulas(formula=formula)


def tripled_time(task: BenchmarkTask) -> Formulas:
    """Predict three times the time for every configuration."""
    return Formulas(formula=lambda work, c: THRICE * step_time(work, c))


def doubled_memory(task: BenchmarkTask) -> Formulas:
    """Predict twice the memory for every configuration."""
    return Formulas(memory_formula=lambda work, c: TWICE * memory(work, c))


def halved_memory(task: BenchmarkTask) -> Formulas:
    """Predict half the memory for every configuration."""
    return Formulas(memory_formula=lambda work, c: memory(work, c) / TWICE)


def reversed_ranks(task: BenchmarkTask) -> Formulas:
    """Predict the reciprocal of each time, scaled so that the geometric mean of the true times stays."""
    middle_s = float(np.exp(-np.nanmean(np.log(task.steps_per_s))))
    return Formulas(formula=lambda work, c: middle_s**2 / step_time(work, c))


def with_hidden_knob(task: BenchmarkTask) -> BenchmarkTask:
    """Return the task with an extra parameter that matters, and that no formula contains."""
    space, values = task.problem.space, tuple(HIDDEN)
    knob = Parameter(name=KNOB, values=values, choices=values, default=values[0])
    listed = None if space.listed is None else tuple((*row, value) for row in space.listed for value in values)
    space, baseline = dataclasses.replace(space, parameters=(*space.parameters, knob), listed=listed), task.problem.baseline
    problem = dataclasses.replace(task.problem, space=space, baseline=baseline and space.configuration(baseline.to_dict()))
    return dataclasses.replace(task, problem=problem, candidates=problem.candidates(), simulator=HiddenKnob(task.simulator))


class HiddenKnob:
    """Simulates trials whose throughput depends on the hidden knob, too (a `TrialSimulator`)."""

    def __init__(self, simulator: TrialSimulator) -> None:
        self._simulator = simulator

    def simulate_trial(self, configuration: Configuration, *, steps: int, seed: int) -> SimulatedTrial:
        """Return the trial of the configuration without the knob, with other noise and scaled step times."""
        value = int(configuration[KNOB])
        trial = self._simulator.simulate_trial(_bare(configuration), steps=steps, seed=seed + value)
        return dataclasses.replace(trial, step_times_s=tuple(time_s / HIDDEN[value] for time_s in trial.step_times_s))

    def steps_per_s(self, configuration: Configuration) -> float | None:
        """Return the true throughput; None if the configuration does not fit."""
        rate = self._simulator.steps_per_s(_bare(configuration))
        return None if rate is None else rate * HIDDEN[int(configuration[KNOB])]


def _bare(configuration: Configuration) -> Configuration:
    return dataclasses.replace(configuration, extras=tuple(extra for extra in configuration.extras if extra.name != KNOB))
