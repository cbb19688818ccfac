"""Provide models that Transformers has an architecture for."""

import dataclasses

from tests.training.families import TINY

SMALL = dataclasses.replace(TINY, layers=4, vocab=259)
OLD = {"norm": "layer", "gated": False, "biases": True, "tied": True, "learned_positions": 40}
MODELS = {
    "llama": dataclasses.replace(SMALL, kv_heads=2, rope_theta=5e5, norm_eps=1e-6),
    "llama, biases": dataclasses.replace(SMALL, biases=True, tied=True),
    "qwen2": dataclasses.replace(SMALL, kv_heads=2, qkv_bias=True, tied=True),
    "gpt2": dataclasses.replace(SMALL, **OLD, activation="gelu_tanh"),  # type: ignore[arg-type]
    "gpt2, exact": dataclasses.replace(SMALL, **OLD),  # type: ignore[arg-type]
}
