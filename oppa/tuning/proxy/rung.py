"""Cut a job to a smaller size: fewer hosts, and fewer layers if the job's program receives their number.

Every device keeps its work per step: the global batch shrinks with the devices, and grows as the layers shrink. A step of a configuration
then takes about as long at both sizes. A replica whose stages keep their layers also keeps its micro-batches, and hence the share of its
bubble in the step.
"""

import dataclasses
import fractions
from collections.abc import Collection
from typing import Self

from oppa.errors import InputError
from oppa.problem.expressions import ValueKind, parse
from oppa.problem.problem import Problem, facts_of
from oppa.problem.space import Parameter, SearchSpace, kinds_of
from oppa.problem.space_file import divisors

BATCH_NAMES = ("global_batch", "num_microbatches", "total_microbatches", "batch_per_rank", "tokens_per_step")
"""Placeholders by which a launch line receives the batch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Describes the smaller size."""

    hosts: int
    layers: int
    global_batch: int
    """Sequences per optimizer step."""

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the size of a job."""
        return cls(hosts=problem.cluster.hosts, layers=problem.model.layers, global_batch=problem.global_batch)


def same_work_batch(problem: Problem, *, hosts: int, layers: int) -> fractions.Fraction:
    """Return the global batch at which each device keeps its work per step; it may be no whole number."""
    return fractions.Fraction(problem.global_batch * hosts * problem.model.layers, problem.cluster.hosts * layers)


def cut(problem: Problem, rung: Rung) -> Problem:
    """Return the job at a smaller size, with the values that its parameters may have there; at its own size, it is the job itself.

    Its limits, its launcher and its trials are the job's own.

    Raises:
        InputError: the layers do not divide the job's, or the job cannot be cut.
    """
    require_cuttable(problem, rung)
    kinds = ("dense_layers", "full_attention_layers")
    shares = {name: -(-getattr(problem.model, name) * rung.layers // problem.model.layers) for name in kinds}  # shares of the layers stay
    model = dataclasses.replace(problem.model, layers=rung.layers, **shares)
    cluster = dataclasses.replace(problem.cluster, hosts=rung.hosts)
    facts = facts_of(model, rung.global_batch, cluster, problem.training)
    space = dataclasses.replace(problem.space, facts={**facts, **problem.space.settled})
    return dataclasses.replace(
        problem,
        stated_model=model,
        global_batch=rung.global_batch,
        cluster=cluster,
        space=dataclasses.replace(space, parameters=tuple(_widened(known, space) for known in space.parameters)),
        baseline=None,
        proxy=None,
    )


def require_cuttable(problem: Problem, rung: Rung) -> None:
    """Raise InputError if a job has no cost model to predict its full size, or cannot run at the smaller one."""
    if not problem.has_prior:
        raise InputError(
            f"`{problem.name}` has no prior, and a proxy's measurements cannot be predicted upward",
            hint="add [model] and remove [objective], or remove [proxy]",
        )
    layers = problem.model.layers
    if layers % rung.layers:
        hint = f"use one of {', '.join(map(str, divisors(layers)))}, so that stages keep their layers"
        raise InputError(f"`proxy.layers = {rung.layers}` does not divide `layers = {layers}`", hint=hint)
    if rung.layers != layers and (reason := uncut_layers(problem)):
        raise InputError(f"`proxy.layers = {rung.layers}`: {reason}", hint=f"use `proxy.layers = {layers}`, and fewer hosts")
    named: Collection[str] = problem.command.placeholders if problem.command else BATCH_NAMES
    if rung.global_batch != problem.global_batch and not {*BATCH_NAMES} & {*named}:
        message = f"the launch line does not name `{{global_batch}}`, which is {rung.global_batch} at the smaller size"
        raise InputError(message, hint="name it in the launch line, or remove [proxy]")


def uncut_layers(problem: Problem) -> str:
    """Return why a job's layers cannot be cut; empty if they can."""
    if problem.model.is_traceable:
        return "the model is a module of its own, whose layers oppa cannot cut"
    if problem.command and "layers" not in problem.command.placeholders:
        return "the launch line does not name `{layers}`"
    return ""


def _widened(parameter: Parameter, space: SearchSpace) -> Parameter:
    """Return a parameter with the divisors that it has in the space's facts; unchanged if its values are no divisors."""
    if not parameter.divides:
        return parameter
    whole = parse(parameter.divides, kinds_of({}, space.facts), kind=ValueKind.NUMBER)
    values = tuple(divisors(whole(space.facts)))
    default = max(value for value in values if value == 1 or value <= parameter.default)  # type: ignore[operator]
    return dataclasses.replace(parameter, values=values, choices=values, default=default)
