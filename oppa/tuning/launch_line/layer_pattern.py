"""Read which layers of Megatron-LM have experts or a window: a number, or an expression of lists such as `([0]*1+[1]*26)`."""

import ast

from oppa.problem.bounds import LONGEST_EXPRESSION, MOST_LAYERS


def dense_layers(text: str, layers: int) -> int | None:
    """Return how many layers `--moe-layer-freq` makes dense, all of them before the first with experts; None for any other pattern."""
    pattern = [int(layer % _every(text) == 0) for layer in range(layers)] if text.isdecimal() else _listed(text)
    return pattern.count(0) if len(pattern) == layers and pattern == sorted(pattern) else None


def full_layers(text: str, layers: int) -> int | None:
    """Return how many layers `--window-attn-skip-freq` leaves without a window, every so many or those with 0; None if it is unreadable.

    The rule is `is_layer_window_attention` in megatron/core/transformer/utils.py.
    """
    if text.isdecimal():
        return layers // _every(text)
    pattern = _listed(text)
    return pattern.count(0) if len(pattern) == layers else None


def _every(text: str) -> int:
    return max(int(text[:9]), 1)


def _listed(text: str) -> list[int]:
    """Return the list that an expression makes; an empty one if it is no such expression."""
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body) if len(text) <= LONGEST_EXPRESSION else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


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
