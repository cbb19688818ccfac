"""Record the time of each pass of a pipeline on one rank, and of its parts of the model (FlexTrain, sections 4.1 and 4.4).

Marks are set when a pass begins or ends, and when it moves from one block to the next. In forward passes, hooks of the blocks set them; in
backward passes, hooks of the activations between blocks. The time between two marks belongs to one part. In a step whose memory is
measured, the memory does, too. Part 0 precedes the layers, part i + 1 is layer i, and part L + 1 follows them (`oppa.pipeline.profile`).
"""

import collections
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from oppa.pipeline.graph import FORWARD, WEIGHT
from oppa.training.profiler.clocks import Reading, clock_of
from oppa.training.profiler.memory import PeakMemory

LOSS = 3
"""An additional kind of pass: the loss of a micro-batch, after the forward pass of the last stage."""
BEGIN, END = "begin", "end"
INPUT = -1
"""Value of a mark at the input of a stage's first block; other marks have the number of the block whose output is reached."""


class Sum(NamedTuple):
    """Holds a sum, and the number of its values."""

    total: float
    values: int


PassSums = dict[tuple[int, str], Sum]
"""Sums over the passes of a step, by part and field of `oppa.pipeline.profile.Part`."""


class _Mark(NamedTuple):
    """Marks a moment at which a pass begins, ends or reaches the output of a block."""

    kind: int
    stage: int
    micro_batch: int
    where: str | int
    reading: Reading


class _Segment(NamedTuple):
    """Holds a pass's time between two marks, in one part: seconds, and live bytes at its begin, at its peak and at its end."""

    part: int
    seconds: float
    before: int = 0
    peak: int = 0
    after: int = 0


class PassRecorder:
    """Records the passes of one rank; its blocks have hooks until `close` is called.

    Args:
        stages: Modules of this rank by stage number; the names in their `blocks` are the layers' numbers in the model.
        parts: Parts of every stage of the model.
        device: Device of this rank.
    """

    def __init__(self, stages: Mapping[int, nn.Module], parts: Sequence[range], device: torch.device) -> None:
        self._last_part = parts[-1].stop - 1
        self._stages = {number: _Stage(module, parts[number], self._last_part) for number, module in stages.items()}
        self._clock = clock_of(device)
        self._reached = self._clock()
        self._marks: list[_Mark] = []
        self._pass: tuple[int, int, int] | None = None
        self._handles = [handle for module in stages.values() for handle in self._hooked(module)]
        self._updates: list[tuple[Reading, Reading]] = []
        self.memory: PeakMemory | None = None
        """Measures the memory of the current step; None if it is not measured."""
        self.passes_s = 0.0
        """Seconds of the last step from the begin of its first pass to the end of its last."""
        self.updated_s = 0.0
        """Seconds of the optimizer's updates in the last step."""
        self.split = False
        """True if the backward passes of the last step were split."""

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @contextlib.contextmanager
    def node(self, kind: int, stage: int, micro_batch: int) -> Iterator[None]:
        """Record the pass that runs inside the block."""
        self._pass = kind, stage, micro_batch
        self._mark(BEGIN)
        try:
            yield
        finally:
            self._mark(END)
            self._pass = None

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Record the optimizer's update that runs inside the block."""
        begin = self._reached()
        yield
        self._updates.append((begin, self._reached()))

    def step(self) -> PassSums:
        """End the recording of a step, start that of the next, and return the sums of the finished step."""
        marks, self._marks = self._marks, []
        memory, self.memory = self.memory.marks if self.memory else [], None
        times = [mark.reading() for mark in marks]
        self.updated_s = sum(end() - begin() for begin, end in self._updates)
        self._updates = []
        self._reached = self._clock()
        self.passes_s = times[-1] - times[0] if marks else 0.0
        self.split = any(mark.kind == WEIGHT for mark in marks)
        seen: PassSums = collections.defaultdict(lambda: Sum(0.0, 0))
        for node in _nodes(marks):
            begin = marks[node[0]]
            for part, field, value in self._fields(begin, list(self._segments(node, marks, times, memory))):
                total, values = seen[part, field]
                counts = begin.kind != LOSS  # a loss belongs to a forward pass, which is counted already
                seen[part, field] = Sum(total + value, values + counts)
        return dict(seen)

    def _mark(self, where: str | int) -> None:
        if self._pass is not None:
            self._marks.append(_Mark(*self._pass, where, self._reached()))
            if self.memory is not None:
                self.memory.mark()

    def _hooked(self, module: nn.Module) -> Iterator[RemovableHandle]:
        for position, (name, block) in enumerate(_blocks(module)):
            if position == 0:
                yield block.register_forward_pre_hook(lambda _, inputs: self._came(inputs[0], INPUT))
            yield block.register_forward_hook(self._hook(int(name)))

    def _hook(self, block: int) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _, inputs, output: self._came(output, block)

    def _came(self, x: Tensor, block: int) -> None:
        """Mark that a forward pass has reached the output of a block; a recomputation belongs to its backward pass and sets no mark."""
        if self._pass is None or self._pass[0] != FORWARD:
            return
        self._mark(block)
        if x.requires_grad:
            x.register_hook(lambda _: self._mark(block))

    def _segments(
        self, node: range, marks: Sequence[_Mark], times: Sequence[float], memory: Sequence[tuple[int, int]]
    ) -> Iterator[_Segment]:
        """Yield the segments of a pass, in order; none for a stage without parts."""
        kind, stage = marks[node[0]].kind, self._stages[marks[node[0]].stage]
        if not stage.parts:
            return
        first, last = stage.parts[0], stage.parts[-1]
        part = first if kind == FORWARD else last
        for here, there in itertools.pairwise(node):
            bytes_ = (memory[here][0], memory[there][1], memory[there][0]) if memory else ()
            yield _Segment(part, times[there] - times[here], *bytes_)
            where = marks[there].where
            if isinstance(where, int) and kind == FORWARD:
                part = stage.blocks[0] + 1 if where == INPUT else last if where == stage.blocks[-1] else where + 2
            elif isinstance(where, int):
                part = first if where == INPUT else where + 1

    def _fields(self, node: _Mark, segments: Sequence[_Segment]) -> Iterator[tuple[int, str, float]]:
        """Yield part, field and value for each measurement of a pass.

        If the backward pass is split, torch computes all of that of the first stage in the second half, as it sends no input gradients.
        """
        seconds, held = collections.defaultdict[int, float](float), collections.defaultdict[int, float](float)
        for segment in segments:
            seconds[segment.part] += segment.seconds
            held[segment.part] += segment.after - segment.before
        working = _working(segments)
        if node.kind in (FORWARD, LOSS):
            yield from ((part, "forward_s", each) for part, each in seconds.items())
            if working:
                yield from ((part, "held_bytes", each) for part, each in held.items())
                yield from ((part, "forward_working_bytes", each) for part, each in working.items())
        elif node.kind == WEIGHT and node.stage > 0:
            sizes = self._stages[node.stage].sizes
            yield from ((part, "weight_s", sum(seconds.values()) * size / sum(sizes.values())) for part, size in sizes.items())
            if working and node.micro_batch:
                yield from ((part, "for_weights_bytes", -sum(held.values()) * size / sum(sizes.values())) for part, size in sizes.items())
        elif node.stage > 0 or not self.split or node.kind == WEIGHT:
            name = "input_s" if self.split and node.stage > 0 else "backward_s"
            yield from ((part, name, each) for part, each in seconds.items())
            if working and node.micro_batch:  # the first micro-batch allocates gradients
                yield from ((part, "backward_working_bytes", each) for part, each in working.items())


def _working(segments: Sequence[_Segment]) -> dict[int, int]:
    """Return the peak of each part, relative to its begin, over all of its segments; empty if memory is not measured."""
    begins, peaks = dict[int, int](), dict[int, int]()
    for segment in segments:
        if segment.peak:
            begins.setdefault(segment.part, segment.before)
            peaks[segment.part] = max(peaks.get(segment.part, 0), segment.peak)
    return {part: peak - begins[part] for part, peak in peaks.items()}


class _Stage:
    """Holds the parts of a stage, the numbers of its blocks, and the number of weights of each part."""

    def __init__(self, module: nn.Module, parts: range, last_part: int) -> None:
        self.parts = parts
        self.blocks = [int(name) for name, _ in _blocks(module)]
        self.sizes = collections.Counter[int]()
        for name, parameter in module.named_parameters():
            self.sizes[part_of(name, last_part - 1)] += parameter.numel()


def part_of(name: str, layers: int) -> int:
    """Return the part of the model to which a parameter belongs, by its name in a stage."""
    first, _, rest = name.partition(".")
    if first == "blocks":
        return int(rest.partition(".")[0]) + 1
    return 0 if first == "embedding" else layers + 1


def _blocks(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(module.get_submodule("blocks").named_children())


def _nodes(marks: Sequence[_Mark]) -> Iterator[range]:
    """Yield the positions of each pass's marks."""
    start = 0
    for position, mark in enumerate(marks):
        if mark.where == END:
            yield range(start, position + 1)
            start = position + 1
