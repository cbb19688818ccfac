"""A pipeline that grows and shrinks trains what one that never changed trains, to the last bit (FlexTrain, sections 2.1 and 7.1)."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from tests.sampling import sampled
from tests.training.families import TINY
from tests.training.rank_pool import RankPool, chain

CLIPPED = {"gradient_clipping": 0.5}
"""Less than the norms of all steps."""
LENGTHS, STEPS = (1, 2, 4, 3, 1), (1, 1, 1, 2, 1)
IN_RANK_ORDER = {**CLIPPED, "reduce_in_rank_order": True}
"""Any number of replicas adds up alike. Two always do, as a + b = b + a."""


def pipeline(pp: int, **values: object) -> Configuration:
    replicas = {name: values.pop(name) for name in ("dp", "zero_stage") if name in values}
    of_stages = values if pp > 1 else {}
    return Configuration(**{"dp": 1, "pp": pp, "global_batch": 8, "micro_batch": 1, **replicas, **of_stages})  # type: ignore[arg-type]


def elastic(
    model: Model,
    folder: Path,
    *,
    lengths: Sequence[int] = LENGTHS,
    steps: Sequence[int] = STEPS,
    training: Mapping[str, object] = CLIPPED,
    **values: object,
) -> list[dict[str, Any]]:
    """Orders for a job that goes from length to length, each from the checkpoint of the one before."""
    orders = []
    for number, (pp, some) in enumerate(zip(lengths, steps, strict=True)):
        places = {"saved": str(folder / f"stop-{number}"), **({"checkpoint": str(folder / f"stop-{number - 1}")} if number else {})}
        orders.append(chain(model, [pipeline(pp, **values)], [some], training=training, digest=number == len(lengths) - 1, **places))
    return orders


WAYS = [
    *((6, {"schedule": name}) for name in ("1f1b", "zb-h1")),
    *((7, {"schedule": name}) for name in ("1f1b", "search", "memory-minimal")),
    *((6, {"stage_layout": "balanced"}), (6, {"schedule": "interleaved", "model_chunks": 2})),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "values"), sampled(WAYS, lambda layers, values: {layers, *values}), ids=str)
def test_weights_moments_and_losses_are_equal_to_the_last_bit(
    values: dict[str, object], layers: int, pool: RankPool, tmp_path: Path
) -> None:
    model = dataclasses.replace(TINY, layers=layers)
    unchanging = chain(model, [pipeline(1)], [sum(STEPS)], training=CLIPPED, digest=True)
    *_, last, alone = map(pool.chain, [*elastic(model, tmp_path, **values), unchanging])
    assert len(last) == sum(STEPS) + 1 and last == alone


REPLICATED = [
    *((2, zero, CLIPPED) for zero in (0, 1)),
    *((4, zero, IN_RANK_ORDER) for zero in (0, 1)),
    *((4, zero, CLIPPED) for zero in (2, 3)),
]


def replication(dp: int, zero_stage: int, training: dict[str, object]) -> set[object]:
    return {dp, zero_stage // 2, *training}


@pytest.mark.slow
@pytest.mark.parametrize(("dp", "zero_stage", "training"), sampled(REPLICATED, replication), ids=str)
def test_so_are_those_of_replicated_pipelines(
    dp: int, zero_stage: int, training: dict[str, object], pool: RankPool, tmp_path: Path
) -> None:
    model, replicated = dataclasses.replace(TINY, layers=6), {"dp": dp, "zero_stage": zero_stage}
    steps = (2, 4)
    unchanging = chain(model, [pipeline(1, **replicated)], [sum(steps)], training=training, digest=True)
    changing = elastic(model, tmp_path, lengths=(1, 2), steps=steps, training=training, **replicated)
    *_, last, alone = map(pool.chain, [*changing, unchanging])
    assert len(last) == sum(steps) + 1 and last == alone


@pytest.mark.slow
def test_clipping_changes_what_comes_after_the_first_step(pool: RankPool) -> None:
    clipped, free = (pool.chain(chain(TINY, [pipeline(1)], [3], training=training)) for training in (CLIPPED, {}))
    assert clipped[0] == free[0] and clipped[1:] != free[1:]


@pytest.mark.slow
def test_a_tied_embedding_adds_in_another_order(pool: RankPool, tmp_path: Path) -> None:
    model = dataclasses.replace(TINY, layers=6, tied=True)
    unchanging = chain(model, [pipeline(1)], [sum(STEPS)], training=CLIPPED)
    *stops, alone = map(pool.chain, [*elastic(model, tmp_path), unchanging])
    assert stops[-1][: sum(STEPS)] == pytest.approx(alone, rel=1e-5)
