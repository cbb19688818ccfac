"""Combine forward passes of different sizes into a trace.

Notation (b sequences of s tokens):
    kept(b)    bytes kept for the backward pass: what grows with b are activations, the rest are casts of weights and constants
    flops(s)   linear * s + quadratic * s^2: the second part is attention
"""

import dataclasses
from collections.abc import Sequence

from oppa.problem.trace import ModelTrace


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Holds what one forward pass kept and computed."""

    sequences: int
    tokens: int
    """Tokens of one sequence."""
    layers_kept_bytes: float
    """Bytes that an average layer keeps."""
    layers_flops: float
    """Operations of an average layer."""
    head_kept_bytes: int
    """Bytes that the output projection and the loss keep."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartWeights:
    """Holds the parameters of the parts of a model."""

    layers: Sequence[int]
    embedding: int
    head: int
    tied: bool


def combine(subject: str, weights: PartWeights, one: Pass, two: Pass, shorter: Pass | None) -> ModelTrace:
    """Return the trace of passes on one and two sequences, and on a shorter one; without it, no operations count as attention."""
    tokens = one.tokens
    quadratic = max(0.0, _quadratic(one, shorter)) if shorter and shorter.tokens < tokens else 0.0
    attention = min(quadratic * tokens, one.layers_flops / tokens)
    return ModelTrace(
        subject=subject,
        layer_parameters=sum(weights.layers) / len(weights.layers),
        embedding_parameters=weights.embedding,
        head_parameters=weights.head,
        tied=weights.tied,
        activation_bytes=max(0.0, two.layers_kept_bytes - one.layers_kept_bytes) / tokens,
        head_activation_bytes=max(0, two.head_kept_bytes - one.head_kept_bytes) / tokens,
        layer_flops=one.layers_flops / tokens - attention,
        attention_flops=attention,
    )


def _quadratic(one: Pass, shorter: Pass) -> float:
    rates = one.layers_flops / one.tokens - shorter.layers_flops / shorter.tokens
    return rates / (one.tokens - shorter.tokens)
