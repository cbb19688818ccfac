"""Combine the coefficients of `priors/` with those of a framework and a device."""

import dataclasses
from collections.abc import Mapping

from oppa.cost.coefficients import Belief, Coefficients, load_beliefs, medians
from oppa.cost.framework import DEFAULT, MODELS, FrameworkPrior, load_framework, read_framework
from oppa.cost.hardware import Hardware, hardware_of
from oppa.problem.devices import CATALOG as DEVICES
from oppa.problem.problem import Problem
from oppa.problem.space import FRAMEWORKS

FUSED = ("megatron", "nanotron")
"""Frameworks that build a model of their own, with fused operations: the activations of Transformers' modules are not theirs."""
TRACED, UNSTATED = "traced", "unstated"
SEQUENCE_PARALLEL = "sequence_parallel"
Beliefs = Mapping[str, Belief]
TIME_RESIDUAL, MEMORY_RESIDUAL = 0.1, 0.05
"""Errors of the formulas that no coefficient explains, as standard deviations of logarithms."""


def beliefs_of(hardware: Hardware, framework: FrameworkPrior | None = None, learned: Beliefs | None = None) -> tuple[Beliefs, Beliefs]:
    """Return the coefficients of step time and of memory.

    Those of a device take precedence over those of a framework, and both over the general ones.

    Args:
        framework: None: that of a row or a job that states none.
        learned: Coefficients learned elsewhere, which take precedence over all.
    """
    own = framework or load_framework(DEFAULT)
    known = {**own.coefficients, **hardware.coefficients, **(learned or {})}
    time, size = (load_beliefs(model, known) for model in MODELS)
    return time, size


def prior_beliefs(hardware: Hardware, framework: FrameworkPrior | None = None) -> Coefficients:
    """Return the medians of all coefficients on a device."""
    time, size = beliefs_of(hardware, framework)
    return {**medians(time), **medians(size)}


def framework_of(problem: Problem) -> FrameworkPrior:
    """Return the framework of a job: that of its own file, else that of its search space."""
    space = problem.space
    return read_framework(space.framework, space.framework_text) if space.framework_text else load_framework(space.framework or DEFAULT)


def beliefs_of_job(problem: Problem, learned: Beliefs | None = None) -> tuple[Beliefs, Beliefs]:
    """Return the coefficients of step time and of memory for a job, as `beliefs_of` does.

    The coefficients of counts that a trace made exact have less to correct: those of `priors/traced.toml` apply. A job that leaves its
    sequence parallelism open has those of `priors/unstated.toml`.
    """
    exact, framework = load_beliefs(TRACED) if keeps_traced_activations(problem) else {}, framework_of(problem)
    if leaves_sequences_open(problem):
        framework = dataclasses.replace(framework, coefficients={**framework.coefficients, **load_beliefs(UNSTATED)})
    return beliefs_of(hardware_of(problem.cluster), framework, {**exact, **(learned or {})})


def keeps_traced_activations(problem: Problem) -> bool:
    """Return whether the job was traced, and its framework trains the module that was traced."""
    return problem.trace is not None and (bool(problem.model.entry_point) or framework_of(problem).name not in FUSED)


def leaves_sequences_open(problem: Problem) -> bool:
    """Return whether a job states neither its framework nor whether it has sequence parallelism."""
    space = problem.space
    stated = SEQUENCE_PARALLEL in space.names or SEQUENCE_PARALLEL in space.settled
    return not (space.framework or space.framework_text or stated)


def files_of_job(problem: Problem) -> dict[str, str]:
    """Return the file that declares each coefficient, as `beliefs_of_job` selects them."""
    general = {name: f"priors/{model}.toml" for model in MODELS for name in load_beliefs(model)}
    traced = dict.fromkeys(load_beliefs(TRACED), f"priors/{TRACED}.toml") if keeps_traced_activations(problem) else {}
    unstated = dict.fromkeys(load_beliefs(UNSTATED), f"priors/{UNSTATED}.toml") if leaves_sequences_open(problem) else {}
    framework = dict.fromkeys(framework_of(problem).coefficients, framework_file(problem))
    hardware = dict.fromkeys(hardware_of(problem.cluster).coefficients, hardware_file(problem))
    return general | framework | unstated | hardware | traced


def framework_file(problem: Problem) -> str:
    """Return the name of the file with the facts of a job's framework."""
    name = f"{problem.space.framework or DEFAULT}.toml"
    return name if problem.space.framework_text else f"{FRAMEWORKS}/{name}"


def hardware_file(problem: Problem) -> str:
    """Return the name of the file with the facts of a job's device."""
    own = problem.cluster.hardware
    return f"{own.name}.toml" if own else f"{DEVICES}/{hardware_of(problem.cluster).name}.toml"
