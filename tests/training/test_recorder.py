"""The recorder of passes finds the memory of each layer."""

import pytest
import torch
from torch import Tensor, nn

from oppa.pipeline.graph import BACKWARD, FORWARD
from oppa.training.profiler.memory import PeakMemory
from oppa.training.profiler.recorder import PassRecorder

CPU = torch.device("cpu")
WIDTH, ROWS = 64, 512


class Middle(nn.Module):
    """Has three layers that are alike, of a stage between others."""

    def __init__(self) -> None:
        super().__init__()
        alike = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, WIDTH)) for _ in range(3))
        self.blocks = nn.ModuleDict({str(2 + place): layer for place, layer in enumerate(alike)})

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x


def test_layers_that_are_alike_need_the_same_memory_while_they_run() -> None:
    """The last layer of a stage in a forward pass, and the first one in a backward pass, have a second segment, which is empty."""
    module, peak = Middle(), PeakMemory(CPU)
    recorder = PassRecorder({1: module}, [range(3), range(3, 6), range(6, 8)], CPU)
    recorder.memory = peak
    with peak.watch():
        for micro_batch in range(2):
            x = torch.ones(ROWS, WIDTH, requires_grad=True)
            with recorder.node(FORWARD, 1, micro_batch):
                y = module(x)
            with recorder.node(BACKWARD, 1, micro_batch):
                y.backward(torch.ones_like(y))
            del x, y
    found = recorder.step()
    recorder.close()
    tensor_bytes = 4 * ROWS * WIDTH  # a layer makes tensors of one, eight and one of these; at its end there may be one more or less
    for field in ("forward_working_bytes", "backward_working_bytes"):
        means = [found[part, field].total / found[part, field].values / tensor_bytes for part in (3, 4, 5)]
        assert means == pytest.approx([10.0] * 3, abs=1.1), field
