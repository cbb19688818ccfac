"""Read which layers of Megatron-LM have experts: `--moe-layer-freq`, a number or an expression of lists such as `([0]*1+[1]*26)`."""

import ast

from oppa.problem.bounds import LONGEST_EXPRESSION, MOST_LAYERS


def dense_layers(text: str, layers: int) -> int | None:
    """Return how many layers are dense, all of them before the first with experts; None for any other pattern."""
    if text.isdecimal():
        pattern = [int(layer % max(int(text[:9]), 1) == 0) for layer in range(layers)]
    else:
        try:
            pattern = _evaluated(ast.parse(text.strip(), mode="eval").body) if len(text) <= LONGEST_EXPRESSION else []
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    return pattern.count(0) if len(pattern) == layers and pattern == sorted(pattern) else None


def _evaluated(node: ast.expr) -> list[int]:
    """Return the list that sums and products of lists make; raises ValueError for any other expression, and for a very long list."""
    match node:
        case ast.List(elts=elements):
            found = [_number(each) for each in elements]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            found = _evaluated(left) + _evaluated(right)
        case ast.BinOp(left=(ast.Constant() as factor), op=ast.Mult(), right=of) | ast.BinOp(left=of, op=ast.Mult(), right=factor):
            times, part = _number(factor), _evaluated(of)
            if times * len(part) > MOST_LAYERS:
                raise ValueError
            found = part * times
        case _:
            raise ValueError
    if len(found) > MOST_LAYERS:
        raise ValueError
    return found


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0:
        return node.value
    raise ValueError
