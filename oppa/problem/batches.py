"""Combine several global batch sizes in one problem: the batch becomes the first parameter of the search space.

In a problem of one batch, it is a fact. Here it is a parameter without a condition. Each domain declared as divisors of the batch becomes
the union over all batches. Every space already has the constraint that a micro-batch divides the batch of its configuration.
"""

import dataclasses
from collections.abc import Sequence

from oppa.errors import InputError, JobError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import whole_number
from oppa.problem.candidates import enumerate_candidates
from oppa.problem.configuration import Value
from oppa.problem.declaration import listing
from oppa.problem.expressions import ValueKind, parse
from oppa.problem.infeasibility import why_empty
from oppa.problem.problem import Problem
from oppa.problem.space import Parameter, SearchSpace, kinds_of
from oppa.problem.space_file import divisors

GLOBAL_BATCH = "global_batch"
FORMS = "write `16..1024`, which doubles from the first to the last, or a list such as `16,24,32`"


def parse_batches(text: str) -> tuple[int, ...]:
    """Return global batch sizes in sequences, smallest first.

    `16..1024` doubles from the first to the last, which is included; `16,24,32` is a list.

    Raises:
        InputError: the text has neither form, the range is descending, or a batch is 0.
    """
    if ".." not in text:
        return tuple(sorted({_batch(part, text) for part in text.split(",")}))
    first, last = (_batch(end, text) for end in text.split("..", maxsplit=1))
    if first > last:
        raise InputError(f"`--global-batch {text}` is a descending range", hint=f"write `{last}..{first}`")
    batches = [first]
    while batches[-1] * 2 <= last:
        batches.append(batches[-1] * 2)
    return tuple(sorted({*batches, last}))


def over(problem: Problem, batches: Sequence[int]) -> Problem:
    """Return the problem with these global batches to choose from, without its baseline, which has a batch of its own.

    If a job searches all divisors of its batch as micro-batches, the divisors of all these batches are searched. A list of some stays.

    Raises:
        JobError: no configuration is valid for one of the batches.
    """
    batches = tuple(sorted(set(batches)))
    default = min(batches, key=lambda batch: (abs(batch - problem.global_batch), batch))
    batch = Parameter(name=GLOBAL_BATCH, values=batches, choices=batches, default=default)
    parameters = (batch, *(_widened(parameter, problem.space, batches) for parameter in problem.space.parameters))
    space = dataclasses.replace(problem.space, parameters=parameters)
    valid = set(enumerate_candidates(space).column(GLOBAL_BATCH).tolist())
    if empty := [each for each in batches if each not in valid]:
        try:
            reason = why_empty(_at(problem.space, empty[0]))
        except JobError as nothing_divides:
            reason = nothing_divides
        raise JobError(f"at a global batch of {empty[0]}: {reason.message}", hint=f"remove this batch, or {reason.hint}")
    return dataclasses.replace(problem, space=space, baseline=None)


def batches_of(space: SearchSpace) -> tuple[int, ...]:
    """Return the global batches that a space has to choose from, smallest first."""
    return tuple(int(value) for value in space[GLOBAL_BATCH].choices) if GLOBAL_BATCH in space.names else (int(space.facts[GLOBAL_BATCH]),)


def _batch(text: str, whole: str) -> int:
    number = whole_number(text.strip())
    if number is None:
        raise InputError(f"`--global-batch {clipped(whole)}`: `{clipped(text.strip())}` is not a whole number", hint=FORMS)
    if number == 0:
        raise InputError(f"`--global-batch {clipped(whole)}`: a step needs at least one sequence", hint="use at least 1")
    return number


def _widened(parameter: Parameter, space: SearchSpace, batches: Sequence[int]) -> Parameter:
    """Return the parameter with the divisors of all batches, if its values are the divisors of the batch; else unchanged.

    Raises:
        JobError: none of its choices divides any of the batches.
    """
    if GLOBAL_BATCH not in parameter.divides:
        return parameter
    whole = parse(parameter.divides, kinds_of({}, space.facts), kind=ValueKind.NUMBER)
    values: tuple[Value, ...] = tuple(sorted({each for batch in batches for each in divisors(whole({**space.facts, GLOBAL_BATCH: batch}))}))
    choices = values if parameter.choices == parameter.values else tuple(value for value in parameter.choices if value in values)
    if not choices:
        listed = listing(parameter.choices)
        raise JobError(f"`{parameter.name}` of {listed} divides none of {listing(batches)}", hint=f"use some of {listing(values)}")
    return dataclasses.replace(parameter, values=values, choices=choices)


def _at(space: SearchSpace, batch: int) -> SearchSpace:
    """Return the space of one batch, which becomes a fact."""
    alone = dataclasses.replace(space, facts={**space.facts, GLOBAL_BATCH: batch})
    return dataclasses.replace(alone, parameters=tuple(_widened(parameter, alone, (batch,)) for parameter in space.parameters))
