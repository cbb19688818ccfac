"""Parse expressions of a search space, such as `layers % (pp * model_chunks) == 0`, by a whitelist and never by `eval`.

Allowed are names, integers, texts, `+ - * // %`, comparisons (chained too), `in [...]`, `and`, `or`, `not`, and `stages(...)`, the number
of stages of a pipeline layout. An expression works on numbers and on numpy columns alike, so nothing short-circuits: both sides of an
`and` are always computed.
"""

import ast
import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from oppa.errors import SpaceError, nearest
from oppa.problem import exact_arithmetic
from oppa.problem.bounds import LONGEST_EXPRESSION as LONGEST
from oppa.problem.exact_arithmetic import Operation, exact
from oppa.problem.stage_text import stage_count


class ValueKind(enum.StrEnum):
    """Names the kind of value of a name or of a part of an expression."""

    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "true or false"

    @classmethod
    def of(cls, value: object) -> "ValueKind":
        """Return the kind of a plain value."""
        if isinstance(value, bool):
            return cls.TRUTH
        return cls.TEXT if isinstance(value, str) else cls.NUMBER


Values = Mapping[str, Any]
"""Value of each name: a number, a text, a truth value, or a numpy column of them."""
_Part = tuple[ValueKind, Callable[[Values], Any]]

_ARITHMETIC = {
    ast.Add: exact_arithmetic.add,
    ast.Sub: exact_arithmetic.subtract,
    ast.Mult: exact_arithmetic.multiply,
    ast.FloorDiv: exact_arithmetic.divide,
    ast.Mod: exact_arithmetic.remainder,
}
_COMPARISONS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Expression:
    """Holds a checked expression; a call with the values of its names evaluates it."""

    text: str
    names: frozenset[str]
    _evaluate: Callable[[Values], Any] = dataclasses.field(repr=False, compare=False)
    _alternatives: tuple[tuple[frozenset[str], Callable[[Values], Any]], ...] = dataclasses.field(default=(), repr=False, compare=False)
    """Names and functions of the operands of an `or`, one of which suffices."""

    def is_settled(self, known: Values) -> bool:
        """Return whether the known values alone make it true, whatever the other names have."""
        return any(names <= known.keys() and bool(holds(known)) for names, holds in self._alternatives)

    def possible(self, known: Values) -> str:
        """Return the text without the operands of an `or` that the known values alone make false; the whole text if none is left."""
        body = ast.parse(self.text.strip(), mode="eval").body
        if not isinstance(body, ast.BoolOp) or not isinstance(body.op, ast.Or):
            return self.text
        pairs = zip(body.values, self._alternatives, strict=True)
        left = [operand for operand, (names, holds) in pairs if not (names <= known.keys() and not holds(known))]
        whole = not left or len(left) == len(body.values)
        return self.text if whole else " or ".join(ast.unparse(operand) for operand in left)

    def __call__(self, values: Values) -> Any:
        """Return the expression's value; raises SpaceError if it cannot be computed, as in a division by zero."""
        try:
            return self._evaluate(values)
        except ArithmeticError as error:
            hint = "both sides of `and` and `or` are always computed: rewrite it so that no divisor can be 0"
            raise SpaceError(f"`{self.text}` cannot be computed: {error}", hint=hint) from None


def parse(text: str, kinds: Mapping[str, ValueKind], *, kind: ValueKind = ValueKind.TRUTH) -> Expression:
    """Return the expression of a text, checked to be of `kind`.

    Args:
        kinds: The known names, with the kind of each.

    Raises:
        SpaceError: the text is too long, or not such an expression; the message then states the column.
    """
    if len(text) > LONGEST:
        raise SpaceError(f"an expression of {len(text)} characters is too long", hint=f"split it: at most {LONGEST} characters each")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        column = getattr(error, "offset", None) or 1
        raise SpaceError(f"`{text}` is not an expression: {getattr(error, 'msg', error)} at column {column}", hint=_GRAMMAR) from None
    compiler = _Compiler(text, kinds)
    evaluate = compiler.expect(body, kind)
    operands = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.Or) else [body]
    alternatives = tuple((_names(operand), compiler.expect(operand, kind)) for operand in operands)
    return Expression(text, _names(body), evaluate, alternatives)


def _names(part: ast.expr) -> frozenset[str]:
    nodes = list(ast.walk(part))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and node not in called)


_GRAMMAR = "an expression has names, integers, strings, + - * // %, comparisons, `in [...]`, `and`, `or`, `not`, `stages(...)`"


class _Compiler:
    """Compiles the nodes of one expression into functions of the values, and checks their kinds."""

    def __init__(self, text: str, kinds: Mapping[str, ValueKind]) -> None:
        self._text = text
        self._kinds = kinds

    def expect(self, node: ast.expr, kind: ValueKind) -> Callable[[Values], Any]:
        """Compile a part that must be of one kind; raises SpaceError if it is of another."""
        found, part = self.compile(node)
        if found is not kind:
            raise self._error(node, f"is {found}, but {kind} is required")
        return part

    def compile(self, node: ast.expr) -> _Part:
        """Return the kind of a part and the function that computes it; raises SpaceError if the part is not allowed."""
        match node:
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Constant(value=bool()):
                raise self._error(node, "is not allowed", hint="write the name alone, or `not name`")
            case ast.Constant(value=int() | str() as value):
                return ValueKind.of(value), lambda values: value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = self.expect(operand, ValueKind.NUMBER)
                return ValueKind.NUMBER, lambda values: exact_arithmetic.subtract(0, number(values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.expect(operand, ValueKind.TRUTH)
                return ValueKind.TRUTH, lambda values: truth(values) ^ True
            case ast.Call(func=ast.Name(id="stages"), args=[layout], keywords=[]):
                text = self.expect(layout, ValueKind.TEXT)
                return ValueKind.NUMBER, lambda values: _stages(text(values))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                sides = self.expect(left, ValueKind.NUMBER), self.expect(right, ValueKind.NUMBER)
                return ValueKind.NUMBER, _binary(_ARITHMETIC[type(op)], *sides)
            case ast.BoolOp(op=op, values=operands):
                parts = [self.expect(operand, ValueKind.TRUTH) for operand in operands]
                return ValueKind.TRUTH, _fold(operator.and_ if isinstance(op, ast.And) else operator.or_, parts)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                pairs = zip([left, *rights], ops, rights, strict=False)
                return ValueKind.TRUTH, _fold(operator.and_, [self._comparison(*pair) for pair in pairs])
            case _:
                raise self._error(node, "is not allowed")

    def _name(self, node: ast.expr, name: str) -> _Part:
        if name not in self._kinds:
            raise self._error(node, "is not a known name", hint=nearest(name, self._kinds))
        return self._kinds[name], operator.itemgetter(name)

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Callable[[Values], Any]:
        kind, first = self.compile(left)
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple) and right.elts:
            equal = _comparison(operator.eq, kind)
            found = _fold(operator.or_, [_binary(equal, first, self.expect(element, kind)) for element in right.elts])
            return found if isinstance(op, ast.In) else lambda values: found(values) ^ True
        if type(op) not in _COMPARISONS:
            raise self._error(right, "is not allowed here", hint="write a list of values in brackets after `in`; `is` is not allowed")
        if kind is not ValueKind.NUMBER and not isinstance(op, ast.Eq | ast.NotEq):
            raise self._error(left, f"is {kind} and has no order", hint="compare it by == or !=")
        return _binary(_comparison(_COMPARISONS[type(op)], kind), first, self.expect(right, kind))

    def _error(self, node: ast.expr, problem: str, *, hint: str = _GRAMMAR) -> SpaceError:
        part = ast.get_source_segment(self._text.strip(), node)
        return SpaceError(f"in `{self._text}`, `{part}` at column {node.col_offset + 1} {problem}", hint=hint)


def _stages(layout: Any) -> Any:
    """Return the number of stages of a layout, or of each in a column."""
    if isinstance(layout, str):
        return stage_count(layout)
    import numpy as np  # slow to import, and without columns it is not needed

    texts, at = np.unique(layout, return_inverse=True)
    return np.array([stage_count(text) for text in texts.tolist()])[at]


def _binary(function: Operation, left: Callable[[Values], Any], right: Callable[[Values], Any]) -> Callable[[Values], Any]:
    return lambda values: function(left(values), right(values))


def _comparison(operation: Operation, kind: ValueKind) -> Operation:
    return exact(operation) if kind is ValueKind.NUMBER else operation


def _fold(function: Operation, parts: list[Callable[[Values], Any]]) -> Callable[[Values], Any]:
    return lambda values: functools.reduce(function, (part(values) for part in parts))
