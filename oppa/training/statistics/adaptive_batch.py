"""Run the norm test in your own training loop, under DDP or FSDP2:

from oppa.training import NormTest
test = NormTest(model, global_batch=256, micro_batch=8, maximum=8192)
sizes = test.step([8, 8])   # samples of each micro-batch; after the last backward pass, before clipping and the update
"""

import functools
import math
from collections.abc import Callable, Sequence

from torch import nn

from oppa.errors import InputError
from oppa.training.parallel.gradient_layout import GradientLayout, layout_of
from oppa.training.statistics.gradient_statistics import GradientStatistics
from oppa.training.statistics.norm_test import ETA, Form, Sizes, groups_of, required_batch, sized, sized_as_written, variance_ratio

GROWTH = 2.0
"""Largest ratio of the next batch to the present one, by default."""


class NormTest:
    """Computes the size of the next batch by the norm test (Lau et al. 2025); every rank gets the same size.

    Args:
        model: A model under DDP, under FSDP2 or HSDP, or on one process, or the layout of another model's gradients.
        global_batch: Samples of the first step over all workers.
        maximum: Largest batch in samples; under `paper`, rounding may exceed it. Once it is reached, gradients are no longer measured.
        micro_batch: Largest micro-batch of a worker in samples; under `paper`, that of the first step only. A single worker runs at
            least two micro-batches, because the test compares them.
        eta: Threshold of the test; smaller values require larger batches. The default depends on the form (`ETA`).
        form: `paper` follows eq. 5 and Algorithm 1 as written: micro-batches grow, and their number stays.
        interval: Steps from one test to the next; gradients are not measured in between.
        growth: Largest ratio of the next batch to the present one; 2 by default, unbounded under `paper`.

    Raises:
        InputError: if the model's layout is not supported, or the sizes are inconsistent.
    """

    def __init__(
        self,
        model: nn.Module | GradientLayout,
        *,
        global_batch: int,
        maximum: int,
        micro_batch: int,
        eta: float | None = None,
        form: Form = "unbiased",
        interval: int = 1,
        growth: float | None = None,
    ) -> None:
        layout = model if isinstance(model, GradientLayout) else layout_of(model)
        if growth is None:
            growth = math.inf if form == "paper" else GROWTH
        self._eta, self._form, self._interval, self._growth = ETA[form] if eta is None else eta, form, interval, growth
        required_batch(1.0, self._eta)
        if interval < 1 or not growth > 1:
            raise InputError(
                f"`interval = {interval}`, `growth = {growth}` are out of range", hint="give at least 1 step, and a factor above 1"
            )
        if not layout.replicas <= global_batch <= maximum or micro_batch < 1:
            raise InputError(
                f"`global_batch = {global_batch}` in micro-batches of `micro_batch = {micro_batch}` for {layout.replicas} workers, and "
                f"`maximum = {maximum}` are not possible",
                hint="give each worker a sample, and a maximum of at least the global batch",
            )
        self._sized: Callable[[int], Sizes] = functools.partial(
            sized, workers=layout.replicas, micro_batch=micro_batch, maximum=maximum, least=2 if layout.replicas == 1 else 1
        )
        self.sizes = self._sized(global_batch)
        """Sizes of the next step."""
        if form == "paper":
            self._sized = functools.partial(sized_as_written, workers=layout.replicas, accumulation=self.sizes.accumulation)
        self._maximum, self._largest = maximum, min(maximum, self._sized(maximum).global_batch)
        self.ratio: float | None = None
        """V / |g|^2 of the last step that was tested; None if it could not be computed (`variance_ratio`)."""
        self.statistics = GradientStatistics(layout, over=groups_of(form, layout.replicas))
        self._steps = 0

    def step(self, samples: Sequence[float], *, loss_scale: float = 1.0) -> Sizes:
        """Process an optimizer step, and return the sizes of the next one.

        All ranks call it after gradients are averaged and before anything changes them.

        Args:
            samples: Samples of each micro-batch of this rank, in the order of their backward passes.
            loss_scale: As in `GradientStatistics.step`.

        Raises:
            InputError: as `GradientStatistics.step`.
        """
        if not self.statistics.paused:
            self.statistics.step(samples, loss_scale=loss_scale)
            self.ratio = variance_ratio(self.statistics.norms, self._form)
            if self.ratio is not None and (wanted := required_batch(self.ratio, self._eta)) > self.sizes.global_batch:
                present = self.sizes.global_batch
                larger = self._sized(int(min(wanted, self._maximum, max(self._growth * present, present + 1))))
                self.sizes = max(self.sizes, larger, key=lambda sizes: sizes.global_batch)
        self._steps += 1
        if self._steps % self._interval or self.sizes.global_batch >= self._largest:
            self.statistics.pause()
        else:
            self.statistics.resume()
        return self.sizes
