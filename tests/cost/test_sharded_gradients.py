"""A gradient that ZeRO shards after each micro-batch is never whole, but a pipeline of torch keeps it whole until the last one."""

import pytest

from oppa.cost.memory import first_stage
from oppa.cost.stages import sharded_parameters, stage_parameters
from oppa.cost.step_time import exchanges_of_gradients
from tests.cost.conftest import MEMORY, predicted, work_of


@pytest.mark.parametrize(("framework", "zero"), [("fsdp", 3), ("fsdp", 2), ("deepspeed", 3), ("deepspeed", 2)])
def test_half_a_micro_batch_needs_no_more_memory(framework: str, zero: int) -> None:
    row = {"framework": framework, "zero": zero, "dp": 64, "tp": 1, "pp": 1, "gbs": 128, "recompute": "full", "layers": 64}
    whole, half = predicted({**row, "mbs": 2}, {**row, "mbs": 1})[MEMORY].astype(float)
    assert half < whole


@pytest.mark.parametrize(("pp", "held", "exchanges"), [(1, "sharded", 64), (4, "whole", 1)])
def test_stages_of_torch_reduce_gradients_once(pp: int, held: str, exchanges: int) -> None:
    """`backward_maybe_with_nosync` in torch/distributed/pipelining/stage.py turns off the exchange of all but the last micro-batch."""
    work = work_of({"framework": "fsdp", "zero": 2, "dp": 8, "tp": 1, "pp": pp})
    parameters = {"whole": stage_parameters(work), "sharded": sharded_parameters(work, stage_parameters(work))}[held]
    assert exchanges_of_gradients(work).item() == exchanges
    assert first_stage(work).gradients.item() == pytest.approx(4 * parameters.item(), rel=0.1)
