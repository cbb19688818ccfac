"""Explain why a search space is empty: which constraints are the cause, and what would help."""

import ast
import dataclasses
import math

from oppa.errors import JobError
from oppa.problem.candidates import enumerate_candidates
from oppa.problem.declaration import listing, spell
from oppa.problem.expressions import parse
from oppa.problem.space import DERIVED, Constraint, Facts, SearchSpace, kinds_of, needs
from oppa.problem.space_file import divisors


def is_empty(space: SearchSpace) -> bool:
    """Return whether no configuration is valid. One choice represents all of a parameter that no expression names."""
    named = space.named
    free = [known for known in space.parameters if known.name not in named]
    for parameter in free:
        space = space.restricted(parameter.name, parameter.choices[0])
    return len(enumerate_candidates(space)) == 0


def why_empty(space: SearchSpace) -> JobError:
    """Return the error that explains an empty space.

    It names the constraints that bind: removing one of them alone would leave a configuration. `dp * tp * pp == devices` is named only if
    no other binds. If none binds, the error names those that suffice: each leaves nothing together with `dp * tp * pp == devices`. If none
    suffices either, it names all that remove (partial) configurations, with their number.
    """
    devices, stated = space.device_constraint, space.stated_constraints
    binding = [constraint for constraint in stated if not is_empty(space.without(constraint))]
    sufficient = [constraint for constraint in stated if is_empty(dataclasses.replace(space, constraints=(devices, constraint)))]
    alone = dataclasses.replace(space, constraints=(devices,))
    of_devices = [devices] if is_empty(alone) or not is_empty(space.without(devices)) else []
    blamed = binding or of_devices or sufficient
    reasons = [_violation(constraint, space) for constraint in blamed] or _removals(space)
    message = reasons[0] if len(reasons) == 1 else "\n  ".join(["no configuration is valid, because:", *reasons])
    return JobError(message, hint=_remedy(space, blamed))


@dataclasses.dataclass(frozen=True, slots=True)
class _Division:
    """Describes a constraint `whole % (product) == 0` that fails because of the fixed parameters in the product alone."""

    divisor: str
    number: int
    whole: str


def _division(constraint: Constraint, space: SearchSpace) -> _Division | None:
    match ast.parse(constraint.expression.text, mode="eval").body:
        case ast.Compare(
            left=ast.BinOp(left=ast.Name(id=whole), op=ast.Mod(), right=product), ops=[ast.Eq()], comparators=[ast.Constant(value=0)]
        ):
            nodes = list(ast.walk(product))
            factors = {node.id for node in nodes if isinstance(node, ast.Name)}
            chosen = [known for known in space.parameters if known.name in factors and len(known.choices) == 1 and known.choices[0] != 1]
            number = math.prod(known.choices[0] for known in chosen if isinstance(known.choices[0], int))
            multiplies = all(isinstance(node, ast.Name | ast.Load | ast.BinOp | ast.Mult) for node in nodes)
            if multiplies and whole in space.facts and int(space.facts[whole]) % number:
                return _Division(" * ".join(known.name for known in chosen), number, whole)
    return None


def _violation(constraint: Constraint, space: SearchSpace) -> str:
    """Return one binding constraint in words: `pp = 5` does not divide `layers = 24`."""
    if division := _division(constraint, space):
        return f"`{division.divisor} = {division.number}` does not divide `{division.whole} = {space.facts[division.whole]}`"
    return f"`{constraint.expression.text}` never holds: {constraint.why}; here {_values(constraint, space)}"


def _values(constraint: Constraint, space: SearchSpace) -> str:
    """Return the values of a constraint's names as text: `devices = 4`, `dp` in 1, 2."""
    described = []
    for name in sorted(_broken_by(constraint, space)):
        if name in space.names:
            choices = space[name].choices
            described.append(f"`{name} = {spell(choices[0])}`" if len(choices) == 1 else f"`{name}` in {listing(choices)}")
        elif name in space.facts:
            described.append(f"`{name} = {spell(space.facts[name])}`")
    return ", ".join(described)


def _broken_by(constraint: Constraint, space: SearchSpace) -> frozenset[str]:
    """Return the names that a constraint depends on; if all are facts, only those in the parts of it that do not hold."""
    expression = constraint.expression
    if expression.names <= space.facts.keys():
        return _failing(ast.parse(expression.text.strip(), mode="eval").body, space.facts)
    return needs(expression) | ({"global_batch"} if DERIVED in expression.names else set())


def _failing(part: ast.expr, facts: Facts) -> frozenset[str]:
    """Return the names of the operands that make a conjunction, or the negation of an alternative, false."""

    def names(wrong: bool, operands: list[ast.expr]) -> frozenset[str]:
        kinds = kinds_of({}, facts)
        return frozenset().union(*(_failing(each, facts) for each in operands if parse(ast.unparse(each), kinds)(facts) == wrong))

    match part:
        case ast.BoolOp(op=ast.And(), values=operands):
            return names(False, operands)
        case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(op=ast.Or(), values=operands)):
            return names(True, operands)
    return frozenset(node.id for node in ast.walk(part) if isinstance(node, ast.Name))


def _removals(space: SearchSpace) -> list[str]:
    removed = zip(enumerate_candidates(space).removed, space.constraints, strict=True)
    return [f"`{constraint.expression.text}` removes {count}: {constraint.why}" for count, constraint in removed if count]


def _remedy(space: SearchSpace, binding: list[Constraint]) -> str:
    """Return a hint: the values of each narrowed parameter that would leave a configuration.

    If there are none, the hint names the facts in the binding constraints.
    """
    remedies = []
    for parameter in space.parameters:
        others = [value for value in parameter.values if value not in parameter.choices]
        helpful = [value for value in others if not is_empty(space.restricted(parameter.name, value))]
        remedies += [f"`{parameter.name}` of {listing(helpful)}"] if helpful else []
    if remedies:
        return f"use {' or '.join(remedies)}"
    divisions = [division for division in (_division(constraint, space) for constraint in binding) if division]
    if divisions:
        return " and ".join(f"make `{division.whole}` a multiple of {division.number}" for division in divisions)
    if odd := _odd_degrees(space, binding):
        return odd
    named = {name for constraint in binding or space.constraints for name in _broken_by(constraint, space) if name in space.facts}
    keys = sorted("devices_per_host" if name == "devices" else name for name in named)
    return f"change {' or '.join(f'`{key}`' for key in keys)}"


def _odd_degrees(space: SearchSpace, binding: list[Constraint]) -> str:
    """Return a hint for degrees none of whose values divides the number of devices; empty if there are none, or others bind."""
    devices = int(space.facts["devices"])
    odd = [space[name] for name in space.degrees if all(devices % int(value) for value in space[name].values)]
    if not odd or binding != [space.constraints[0]]:
        return ""
    values, multiple = listing(divisors(devices)), math.lcm(*(min(int(value) for value in known.values) for known in odd))
    names = " and ".join(f"`{known.name}`" for known in odd)
    return f"give {names} a value among {values}, or make `devices_per_host` a multiple of {multiple}"
