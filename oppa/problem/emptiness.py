"""Whether any configuration is valid, without enumerating; and where none is, which constraint is to blame and what would help."""

import ast
import math
from typing import Any

from oppa.errors import JobError
from oppa.problem.declaration import listing, spell
from oppa.problem.space import DERIVED, Constraint, SearchSpace, needs


def require_some(space: SearchSpace) -> None:
    """Raise JobError, naming the constraints that bind and the values that would do, unless some configuration is valid."""
    if is_empty(space):
        raise why_empty(space)


def is_empty(space: SearchSpace) -> bool:
    """No configuration is valid. Parameters that no expression names are left aside: any of their choices will do."""
    expressions = [constraint.expression for constraint in space.constraints] + [known.when for known in space.parameters if known.when]
    named = frozenset[str]().union(*map(needs, expressions))
    return not _extends(space, 0, dict(space.facts), named)


def why_empty(space: SearchSpace) -> JobError:
    """The error that explains an empty space.

    A constraint binds if lifting it alone would leave something. Where none does, several conflict, and the ones that removed
    configurations are listed with how many.
    """
    binding = [constraint for constraint in space.constraints if not is_empty(space.without(constraint))]
    message = "; ".join(_violation(constraint, space) for constraint in binding) or _conflict(space)
    return JobError(message, hint=_remedy(space, binding))


def _extends(space: SearchSpace, position: int, values: dict[str, Any], named: frozenset[str]) -> bool:
    """The values of the first `position` parameters can be completed to a valid configuration."""
    if {"dp", "micro_batch"} <= values.keys() and DERIVED not in values:
        values = {**values, DERIVED: values["global_batch"] // (values["dp"] * values["micro_batch"])}
    if not all(constraint.expression(values) for constraint in space.ready(after=position)):
        return False
    if position == len(space.parameters):
        return True
    parameter = space.parameters[position]
    choices = parameter.choices if parameter.when is None or parameter.when(values) else (parameter.default,)
    tried = choices if parameter.name in named else choices[:1]
    return any(_extends(space, position + 1, {**values, parameter.name: choice}, named) for choice in tried)


def _violation(constraint: Constraint, space: SearchSpace) -> str:
    """One binding constraint in words: `pp = 5` does not divide `layers = 24`."""
    fixed = {parameter.name: parameter.choices[0] for parameter in space.parameters if len(parameter.choices) == 1}
    match ast.parse(constraint.expression.text, mode="eval").body:
        case ast.Compare(
            left=ast.BinOp(left=ast.Name(id=whole), op=ast.Mod(), right=parts), ops=[ast.Eq()], comparators=[ast.Constant(value=0)]
        ):
            product = {node.id: fixed[node.id] for node in ast.walk(parts) if isinstance(node, ast.Name) and node.id in fixed}
            given = {name: value for name, value in product.items() if value != 1}
            number = math.prod(int(value) for value in given.values())
            if whole in space.facts and given and int(space.facts[whole]) % number:
                divisor = f"{' * '.join(given)} = {number}"
                return f"`{divisor}` does not divide `{whole} = {space.facts[whole]}`"
    return f"`{constraint.expression.text}` never holds ({constraint.why}), with {_values(constraint, space)}"


def _values(constraint: Constraint, space: SearchSpace) -> str:
    """What the names of a constraint are: `devices = 4`, `dp` in 1, 2."""
    described = []
    for name in sorted(needs(constraint.expression) | ({"global_batch"} if DERIVED in constraint.expression.names else set())):
        if name in space.facts:
            described.append(f"`{name} = {spell(space.facts[name])}`")
        elif name in space.names:
            choices = space[name].choices
            described.append(f"`{name} = {spell(choices[0])}`" if len(choices) == 1 else f"`{name}` in {listing(choices)}")
    return ", ".join(described)


def _conflict(space: SearchSpace) -> str:
    from oppa.problem.candidates import enumerate_candidates

    removed = enumerate_candidates(space).removed
    lines = [f"  {count:>8}  {constraint.expression.text}" for count, constraint in zip(removed, space.constraints, strict=True) if count]
    return "\n".join(["no configuration is left; constraints in the way, and how many (partial) configurations each removes:", *lines])


def _remedy(space: SearchSpace, binding: list[Constraint]) -> str:
    """The values of each narrowed parameter that would leave something; else the facts that the binding constraints name."""
    remedies = []
    for parameter in space.parameters:
        helpful = [
            value for value in parameter.values if value not in parameter.choices and not is_empty(space.searching(parameter.name, value))
        ]
        remedies += [f"`{parameter.name}`: {listing(helpful)}"] if helpful else []
    if remedies:
        return "use one of " + " or ".join(remedies)
    facts = sorted({name for constraint in binding or space.constraints for name in constraint.expression.names if name in space.facts})
    return f"change {', '.join(f'`{name}`' for name in facts)}"
