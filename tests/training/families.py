"""Provide small models of every family, and the configurations that train them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from oppa.problem.configuration import PARAMETERS, Configuration, ExtraValue
from oppa.problem.model import Model

Alone = Callable[..., list[float]]
"""Takes a model, and the number of steps if it is not 4."""
ROOT = Path(__file__).parents[2]
TINY = Model(layers=8, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=256, seq_len=32)
GROUPED = dataclasses.replace(TINY, layers=2, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=259)
"""Grouped-query attention, and a vocabulary that no tp divides."""
ENCODER = dataclasses.replace(TINY, vocab=257, causal=False)
VIT = dataclasses.replace(TINY, vocab=10, causal=False, patch=4, seq_len=17)
MIXTURE = dataclasses.replace(TINY, experts=4, experts_per_token=2)
SHORT = dataclasses.replace(TINY, layers=4)
"""A layer for each of four stages."""

BERT_LIKE = {"norm": "layer", "gated": False, "biases": True, "causal": False}
FAMILIES = {
    "encoder": dataclasses.replace(TINY, layers=4, vocab=261, tied=True, learned_positions=40, token_types=2, **BERT_LIKE),
    "vit": dataclasses.replace(TINY, layers=4, vocab=11, seq_len=17, patch=3, learned_positions=17, **BERT_LIKE),
    "tied": dataclasses.replace(TINY, layers=4, vocab=259, tied=True, qkv_bias=True, kv_heads=2),
    "mixture": dataclasses.replace(MIXTURE, layers=4),
    "switch": dataclasses.replace(TINY, layers=4, experts=6, gated=False, biases=True),
    "own": dataclasses.replace(TINY, layers=4, entry_point=f"{ROOT / 'examples'}:own_module:Mixer"),
}
"""Vocabularies are odd, so that tp cuts unevenly; `switch` has one choice per token, and biases; `own` is the example's module."""


def own(name: str, **dimensions: object) -> Model:
    """Return the model of an entry point of `own_parts`."""
    return dataclasses.replace(SHORT, entry_point=f"{ROOT / 'tests' / 'training'}:own_parts:{name}", **dimensions)  # type: ignore[arg-type]


TOLERANCE = 1e-5
"""Relative, on losses of about 5 after 4 steps: layouts differ in the order of float32 sums alone (2e-7 seen).

A gradient that is wrong anywhere, by a missing average of two replicas say, differs by more than 1e-3.
"""


DEGREES = ("cp",)
"""Extra parameters that count ranks."""


def configured(**values: object) -> Configuration:
    """Return a configuration of eight sequences in micro-batches of two, changed by `values`."""
    extras = tuple(ExtraValue(name=name, value=value, degree=name in DEGREES) for name, value in values.items() if name not in PARAMETERS)  # type: ignore[arg-type]
    fields = {name: value for name, value in values.items() if name in PARAMETERS}
    return Configuration(**{"dp": 1, "global_batch": 8, "micro_batch": 2, **fields}, extras=extras)  # type: ignore[arg-type]


def id_of(part: object) -> str:
    """Return the id of a parameter of a test: the name of a layout, or the text of anything else."""
    return name_of(part) if isinstance(part, dict) else str(part)


def name_of(values: dict[str, object]) -> str:
    """Return the id of the configuration with these values."""
    return configured(**values).id


def features(values: dict[str, object]) -> set[object]:
    """Return what a sample of configurations must show: each value of each parameter, and each kind of parallelism with each ZeRO stage."""
    configuration = configured(**values)
    kinds = tuple(int(configuration.get(axis, 1)) > 1 for axis in ("dp", "tp", "pp", "ep", "cp"))
    return {*values.items(), (kinds, configuration.zero_stage)}


def apart(values: dict[str, object]) -> set[object]:
    """Return each value of each parameter by itself, for samples of layouts whose combinations `test_layouts` has."""
    return {*values.items()}


def kinds(values: dict[str, object]) -> set[object]:
    """Return each kind of parallelism, and whether state is sharded: what the quick tests show of layouts."""
    return {*(axis for axis in ("dp", "tp", "pp", "ep", "cp") if axis in values), int(values.get("zero_stage", 0)) > 0}  # type: ignore[call-overload]
