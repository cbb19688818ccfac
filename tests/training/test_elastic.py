"""A pipeline that grows and shrinks trains what one that never changed trains, to the last bit (FlexTrain, sections 2.1 and 7.1)."""

import dataclasses
from pathlib import Path

import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from tests.training.conftest import TINY
from tests.training.test_reshard import losses_of, order

CLIPPED = {"gradient_clipping": 0.5}
"""Less than the norms of all steps."""
LENGTHS, STEPS = (1, 2, 4, 3, 1), (2, 2, 2, 3, 2)


def pipeline(pp: int, **values: object) -> Configuration:
    return Configuration(**{"dp": 1, "pp": pp, "global_batch": 8, "micro_batch": 1, **(values if pp > 1 else {})})  # type: ignore[arg-type]


def elastic(model: Model, folder: Path, **values: object) -> list[dict[str, object]]:
    """Orders for a job that goes from length to length, each from the checkpoint of the one before."""
    orders = []
    for number, (pp, steps) in enumerate(zip(LENGTHS, STEPS, strict=True)):
        places = {"saved": str(folder / f"stop-{number}"), **({"checkpoint": str(folder / f"stop-{number - 1}")} if number else {})}
        orders.append(order(model, [pipeline(pp, **values)], [steps], training=CLIPPED, digest=number == len(LENGTHS) - 1, **places))
    return orders


WAYS = [
    *((6, {"schedule": name}) for name in ("1f1b", "zb-h1")),
    *((7, {"schedule": name}) for name in ("1f1b", "search", "memory-minimal")),
    *((6, {"stage_layout": "balanced"}), (6, {"schedule": "interleaved", "model_chunks": 2})),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "values"), WAYS, ids=str)
def test_weights_moments_and_losses_are_equal_to_the_last_bit(values: dict[str, object], layers: int, tmp_path: Path) -> None:
    model = dataclasses.replace(TINY, layers=layers)
    unchanging = order(model, [pipeline(1)], [sum(STEPS)], training=CLIPPED, digest=True)
    *_, last, alone = losses_of(tmp_path, *elastic(model, tmp_path, **values), unchanging)
    assert len(last) == sum(STEPS) + 1 and last == alone


@pytest.mark.slow
def test_clipping_changes_what_comes_after_the_first_step(tmp_path: Path) -> None:
    clipped, free = losses_of(tmp_path, *(order(TINY, [pipeline(1)], [3], training=training) for training in (CLIPPED, {})))
    assert clipped[0] == free[0] and clipped[1:] != free[1:]


@pytest.mark.slow
def test_a_tied_embedding_adds_in_another_order(tmp_path: Path) -> None:
    model = dataclasses.replace(TINY, layers=6, tied=True)
    unchanging = order(model, [pipeline(1)], [sum(STEPS)], training=CLIPPED)
    *chain, alone = losses_of(tmp_path, *elastic(model, tmp_path), unchanging)
    assert chain[-1][: sum(STEPS)] == pytest.approx(alone, rel=1e-5)
