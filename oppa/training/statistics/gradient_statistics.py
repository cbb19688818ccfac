"""Measure the gradient noise scale during a training run, under any layout, with one small all-reduce per measured step.

Use it in your own training loop, under DDP, FSDP2 or DeepSpeed's ZeRO:

    from oppa.training import GradientStatistics
    statistics = GradientStatistics(model)
    noise_scale = statistics.step(tokens)   # tokens of each micro-batch; after the last backward pass, before clipping and the update

`begin(plan, replicas)` before each step chooses the steps that are measured (`measurement_schedule`). With `wait=False`, the sum over ranks
runs during the update. A parameter may be frozen or unfrozen between two steps.

The n-th gradient of a parameter counts with the size of the n-th micro-batch. So a parameter without a gradient in some micro-batches needs
micro-batches of equal size.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from oppa.errors import InputError
from oppa.problem.training import Over
from oppa.training.parallel.gradient_layout import GradientLayout, GradientPlacement, layout_of
from oppa.training.statistics.gradient_norms import GradientNorms
from oppa.training.statistics.measurement_schedule import KEPT_IN_TWO, LARGEST_SHARE, MeasurementSchedule, PlannedStep
from oppa.training.statistics.megatron_buffers import BufferNorms, is_megatron, layout_of_chunks
from oppa.training.statistics.noise_scale import Health, NoiseScale, Norms, Smoothing, estimate_of
from oppa.training.statistics.norm_test import variance_ratio
from oppa.training.statistics.preconditioning import preconditioned_norm
from oppa.training.statistics.step_clock import StepClock, StepSeconds

Planned = TypeVar("Planned", bound=PlannedStep)
AT_FIRST = NoiseScale(smoothing=Smoothing(warmup_tokens=0.0))
"""Estimate of a loop that begins. Its averages have no warm-up, because `step` may be given samples: `share` keeps them short at first."""


class GradientStatistics:
    """Measures the gradients of a model; `noise_scale` is the estimate so far, the same on every rank.

    Args:
        model: A model under DDP, under FSDP2 or HSDP, or on one process, an engine of DeepSpeed under ZeRO 0 to 3, or the layout of another
            model's gradients. The chunks of a model under Megatron's DDP are measured over `workers`.
        noise_scale: Smoothing and estimate to continue from, for example those of the same training under another layout.
        weighting: Weights of micro-batches of different size in the mean gradient. With `tokens`, all tokens count alike. With `equally`,
            all micro-batches do, as in a loop that divides each micro-batch's mean loss by their number.
        preconditioned_by: An Adam optimizer in whose denominators gradients are measured (`preconditioning`).
        over: Gradients to compare with the mean gradient: those of `micro-batches`, or of the `workers` that it is averaged over. There
            are fewer workers, and each backward pass costs one more addition.
        largest_share: Share of the training's time that measuring may take; `begin` then measures some steps only.

    Raises:
        InputError: if the model's layout is not supported, or `largest_share` is not positive.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module] | GradientLayout,
        *,
        noise_scale: NoiseScale = AT_FIRST,
        weighting: Literal["tokens", "equally"] = "tokens",
        preconditioned_by: torch.optim.Optimizer | None = None,
        over: Over = "micro-batches",
        largest_share: float = LARGEST_SHARE,
    ) -> None:
        if not largest_share > 0:
            raise InputError(f"`largest_share = {largest_share}` is not positive", hint=f"use a share such as {LARGEST_SHARE}, the default")
        self._layout = layout = _layout_of(model)
        self._in_buffers = is_megatron(model)
        self._equally, self._workers = weighting == "equally", over == "workers" or self._in_buffers
        if self._in_buffers and preconditioned_by is not None:
            raise InputError("gradients in Megatron's buffers are not preconditioned", hint="leave `preconditioned_by` out")
        if layout.averaged and (self._workers or preconditioned_by is not None):
            raise InputError(
                "ZeRO keeps no gradient of a worker, and its moments in shards", hint="measure micro-batches, without Adam's denominators"
            )
        self._norm_of = None if preconditioned_by is None else preconditioned_norm(preconditioned_by, layout)
        self._clock, self._schedule = StepClock(layout.device), MeasurementSchedule(largest_share)
        self._seconds = StepSeconds()
        """Seconds of the last measured step on this rank; they go with the next one's sums."""
        self._pending: tuple[dist.Work | None, Tensor, float] | None = None
        """Sum over ranks that is under way, and the scale of its losses."""
        self._missed = 0
        """Steps since the last measured one."""
        self._in_two = False
        """True if the present step is taken in two micro-batches because it is measured."""
        self._noise_scale, self._norms = noise_scale, tuple[Norms, ...]()
        self._parts: list[GradientNorms | BufferNorms] = [self._measuring(module, placements) for module, placements in layout.parts]
        self.paused = True
        """True while nothing is measured."""
        self.resume()

    @property
    def noise_scale(self) -> NoiseScale:
        """Return the estimate so far; this waits for the sum over ranks of the last step."""
        self._settle()
        return self._noise_scale

    @noise_scale.setter
    def noise_scale(self, value: NoiseScale) -> None:
        self._settle()
        self._noise_scale = value

    @property
    def norms(self) -> tuple[Norms, ...]:
        """Return the norms of the last step, by group of parameters; there is one group, or two if experts are spread over ranks.

        There is none if the step was not measured.
        """
        self._settle()
        return self._norms

    def begin(self, plan: Planned, replicas: int) -> Planned:
        """Begin a step of a plan: measure it if it is its turn, or do not; all ranks call it before the first forward pass.

        Noise shows in how the gradients of micro-batches differ. A measured step that would be a single micro-batch over all replicas is
        therefore taken in two.

        Args:
            plan: Plan of the step, as `oppa_client` has it. Its `statistics_every` states which steps are measured. If it is None, as many
                are as cost at most `largest_share` of the time, unless the estimate needs more.
            replicas: Number of data-parallel replicas.

        Returns:
            The plan that states the micro-batches of this step.
        """
        self._settle()
        self._clock.begin()
        is_due = self._schedule.begin(plan, replicas, self._noise_scale)
        taken = plan.in_two(replicas) if is_due and not self._workers else plan
        self._in_two = taken is not plan
        if is_due:
            self.resume()
        else:
            self.pause()
        return taken

    def step(self, tokens: Sequence[float], *, loss_scale: float = 1.0, wait: bool = True) -> NoiseScale:
        """Process one optimizer step, and return the noise scale so far; a paused step only counts as one that was not measured.

        All ranks call it after gradients are averaged and before anything changes them.

        Args:
            tokens: Tokens of each micro-batch of this rank, in the order of their backward passes.
            loss_scale: Factor of the loss, beyond the one that makes the step's gradient a mean.
            wait: Wait for the sum over ranks. Otherwise the result lacks this step, and the next use of `noise_scale`, `norms` or `report`
                waits; all ranks read one of them before the next step.

        Raises:
            InputError: if `tokens` is empty, has a value that is not positive, or does not match the backward passes
                (`GradientNorms.take`).
        """
        self._settle()
        if self.paused:
            self._missed += 1
        else:
            with self._clock.measuring():
                mine = self.own(tokens)
                mine = torch.cat((mine, mine.new_tensor(dataclasses.astuple(self._seconds))))
            work = None if self._layout.group is None else dist.all_reduce(mine, group=self._layout.group, async_op=True)
            self._pending = work, mine, loss_scale
        self._clock.took(1 if self._in_two else len(tokens))
        return self.noise_scale if wait else self._noise_scale

    def own(self, tokens: Sequence[float]) -> Tensor:
        """Return this rank's summands of a step in float64; with `take_in`, it replaces `step` in a loop that exchanges numbers anyway.

        First come the squared norms of micro-batches and of their mean, by group of parameters. Five sums over the micro-batches' sizes
        a and b follow (notation of `noise_scale`).

        Raises:
            InputError: as `step`.
        """
        if not tokens or min(tokens) <= 0:
            raise InputError(
                f"`tokens = {list(tokens)}` are not the tokens of micro-batches", hint="give one positive number for each micro-batch"
            )
        counts = [1.0] * len(tokens) if self._equally else tokens
        pairs = list(zip(counts, tokens, strict=True))
        if self._workers:  # all micro-batches of this rank form one group
            pairs = [(sum(counts), sum(counts) ** 2 / sum(a * a / b for a, b in pairs))]
        sums = torch.zeros(2, len(self._layout.pools), dtype=torch.float64, device=self._layout.device)
        for part in () if self.paused else self._parts:
            sums += part.take([1 / a for a, _ in pairs]).to(sums.device)
        each = (sum(counts), sum(a / b for a, b in pairs), sum(a * a / b for a, b in pairs), sum(tokens), len(pairs))
        sizes = torch.tensor(each, dtype=torch.float64, device=self._layout.device) / self._layout.alike
        return torch.cat((sums.flatten(), sizes))

    def take_in(self, total: Tensor, *, loss_scale: float = 1.0) -> NoiseScale:
        """Process a step from the sum of `own` over all ranks, in host memory; while paused, it counts as one that was not measured."""
        groups = len(self._layout.pools)
        sums, (weight, per_token, squared_per_token, tokens, count) = total[: 2 * groups].view(2, -1), total[2 * groups :].tolist()
        if self.paused:
            self._noise_scale = self._noise_scale.passing(tokens)
            return self._noise_scale
        least = KEPT_IN_TWO if self._in_two else 0.0
        self._noise_scale = self._noise_scale.passing(tokens, self._missed, least)  # of as many tokens as the measured step
        self._missed, divisor = 0, self._layout.divisor or self._layout.replicas
        self._norms = tuple(
            Norms(
                # A hook gets loss_scale * divisor * w_n * g_n, or its average over the pooled replicas.
                small=small * pooled * weight / (loss_scale * divisor) ** 2,
                big=big / loss_scale**2,
                small_tokens=pooled * weight / per_token,
                big_tokens=weight**2 / squared_per_token,
            )
            for pooled, small, big in zip(self._layout.pools, *sums.tolist(), strict=True)
        )
        self._noise_scale = self._noise_scale.after(estimate_of(self._norms), tokens=tokens, micro_batches=round(count))
        return self._noise_scale

    def _settle(self) -> None:
        """End a step that has done its work; process the sum over ranks that is under way, if there is one."""
        if self._pending is None:
            self._clock.end(measured=False)
            return
        (work, total, loss_scale), self._pending = self._pending, None
        if work is not None:
            work.wait()
        self._clock.end(measured=True)
        *sums, inside_s, measured_s, other_s = total.tolist()
        self.take_in(torch.tensor(sums, dtype=torch.float64), loss_scale=loss_scale)
        self._schedule.took(StepSeconds(inside_s, measured_s, other_s), tokens=sums[-2], micro_batches=round(sums[-1]), in_two=self._in_two)
        self._seconds = self._clock.take()

    @property
    def finite(self) -> bool:
        """Return whether the gradients of the last step were finite on all ranks; true if they were not measured."""
        return all(math.isfinite(norms.small) and math.isfinite(norms.big) for norms in self.norms)

    def report(self, *, sample_tokens: float = 1.0) -> dict[str, float | str | None]:
        """Return the statistics of the last step for `noise=` of `oppa_client`'s `run.step`, as JSON values.

        Args:
            sample_tokens: Tokens of a sample; 1 if `step` was given samples.
        """
        known = self.noise_scale
        scale = known.tokens_per_batch / sample_tokens
        return {
            "noise_scale": scale if known.health is Health.HEALTHY else None,
            "health": known.health.name.lower(),
            "signal": known.signal if math.isfinite(known.signal) else None,
            "noise": known.noise / sample_tokens if math.isfinite(known.noise) else None,
            "variance_ratio": variance_ratio(self.norms, sample_tokens=sample_tokens),
            "worker_variance_ratio": variance_ratio(self.norms, "paper") if self._workers else None,
        }

    def close(self) -> None:
        """Remove all hooks and references to the model. Call it when `step` is no longer called, because recorded norms would pile up."""
        self._settle()
        for part in self._parts:
            part.close()
        # The model must not be kept either: gloo hangs if a group is destroyed before a module that averages gradients in it.
        self._parts, self._layout = [], dataclasses.replace(self._layout, parts=[], averaged=None)

    def pause(self) -> None:
        """Stop measuring until `resume`; all ranks call it. All hooks are removed, and `step` communicates nothing."""
        self._settle()
        self._norms = ()
        if self.paused:
            return
        with self._clock.measuring():
            for part in self._parts:
                part.close()
        self.paused = True

    def resume(self) -> None:
        """Start measuring again; all ranks call it."""
        if not self.paused:
            return
        self._settle()
        with self._clock.measuring():
            for part in self._parts:
                part.open()
        self.paused = False

    def _measuring(self, module: nn.Module, placements: dict[str, GradientPlacement]) -> GradientNorms | BufferNorms:
        if self._in_buffers:
            return BufferNorms(module, placements, timer=self._clock.inside)
        averaged, pools = self._layout.averaged, self._layout.pools
        return GradientNorms(module, placements, pools, self._norm_of, timer=self._clock.inside, added_up=self._workers, averaged=averaged)


def _layout_of(model: nn.Module | Sequence[nn.Module] | GradientLayout) -> GradientLayout:
    if isinstance(model, GradientLayout):
        return model
    if is_megatron(model):
        return layout_of_chunks(model)
    if not isinstance(model, nn.Module):
        raise InputError("the model is a sequence of modules that are not in Megatron's DDP", hint="give one module")
    return layout_of(model)
