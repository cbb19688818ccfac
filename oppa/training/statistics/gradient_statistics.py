"""Measure the gradient noise scale at each step of a training run, under any layout, with one small all-reduce per step.

Use it in your own training loop, under DDP, FSDP2 or DeepSpeed's ZeRO:

    from oppa.training import GradientStatistics
    statistics = GradientStatistics(model)
    noise_scale = statistics.step(tokens)   # tokens of each micro-batch; after the last backward pass, before clipping and the update
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from oppa.errors import InputError
from oppa.problem.training import Over
from oppa.training.parallel.gradient_layout import GradientLayout, GradientPlacement, layout_of
from oppa.training.statistics.gradient_norms import GradientNorms, norm
from oppa.training.statistics.megatron_buffers import BufferNorms, is_megatron, layout_of_chunks
from oppa.training.statistics.noise_scale import Health, NoiseScale, Norms, estimate_of
from oppa.training.statistics.norm_test import variance_ratio
from oppa.training.statistics.preconditioning import preconditioned_norm


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

    Raises:
        InputError: if the model's layout is not supported.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module] | GradientLayout,
        *,
        noise_scale: NoiseScale = NoiseScale(),  # noqa: B008 - frozen
        weighting: Literal["tokens", "equally"] = "tokens",
        preconditioned_by: torch.optim.Optimizer | None = None,
        over: Over = "micro-batches",
    ) -> None:
        self._layout = layout = _layout_of(model)
        self._in_buffers = is_megatron(model)
        self._equally, self._workers = weighting == "equally", over == "workers" or self._in_buffers
        if self._in_buffers and preconditioned_by is not None:
            raise InputError("gradients in Megatron's buffers are not preconditioned", hint="leave `preconditioned_by` out")
        if layout.averaged and (self._workers or preconditioned_by is not None):
            raise InputError(
                "ZeRO keeps no gradient of a worker, and its moments in shards", hint="measure micro-batches, without Adam's denominators"
            )
        self._norm_of = (lambda _: norm) if preconditioned_by is None else preconditioned_norm(preconditioned_by, layout)
        self._parts: list[GradientNorms | BufferNorms] = []
        self.paused = True
        """True while nothing is measured."""
        self.noise_scale = noise_scale
        self.norms: tuple[Norms, ...] = ()
        """Norms of the last step, by group of parameters; there is one group, or two if experts are spread over ranks."""
        self.resume()

    def step(self, tokens: Sequence[float], *, loss_scale: float = 1.0) -> NoiseScale:
        """Process one optimizer step, and return the noise scale so far.

        All ranks call it after gradients are averaged and before anything changes them.

        Args:
            tokens: Tokens of each micro-batch of this rank, in the order of their backward passes.
            loss_scale: Factor of the loss, beyond the one that makes the step's gradient a mean.

        Raises:
            InputError: if `tokens` is empty, has a value that is not positive, or does not match the backward passes
                (`GradientNorms.take`).
        """
        if self.paused:
            return self.noise_scale
        mine = self.own(tokens)
        if self._layout.group is not None:
            dist.all_reduce(mine, group=self._layout.group)
        return self.take_in(mine.cpu(), loss_scale=loss_scale)

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
        for part in self._parts:
            sums += part.take([1 / a for a, _ in pairs]).to(sums.device)
        each = (sum(counts), sum(a / b for a, b in pairs), sum(a * a / b for a, b in pairs), sum(tokens), len(pairs))
        sizes = torch.tensor(each, dtype=torch.float64, device=self._layout.device) / self._layout.alike
        return torch.cat((sums.flatten(), sizes))

    def take_in(self, total: Tensor, *, loss_scale: float = 1.0) -> NoiseScale:
        """Process a step from the sum of `own` over all ranks, in host memory; while paused, only its tokens are counted."""
        groups = len(self._layout.pools)
        sums, (weight, per_token, squared_per_token, tokens, count) = total[: 2 * groups].view(2, -1), total[2 * groups :].tolist()
        if self.paused:
            self.noise_scale = dataclasses.replace(self.noise_scale, tokens=self.noise_scale.tokens + tokens)
            return self.noise_scale
        self.norms = tuple(
            Norms(
                # A hook gets loss_scale * replicas * w_n * g_n, or its average over the pooled replicas.
                small=small * pooled * weight / (loss_scale * self._layout.replicas) ** 2,
                big=big / loss_scale**2,
                small_tokens=pooled * weight / per_token,
                big_tokens=weight**2 / squared_per_token,
            )
            for pooled, small, big in zip(self._layout.pools, *sums.tolist(), strict=True)
        )
        self.noise_scale = self.noise_scale.after(estimate_of(self.norms), tokens=tokens, micro_batches=round(count))
        return self.noise_scale

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
        for part in self._parts:
            part.close()
        # The model must not be kept either: gloo hangs if a group is destroyed before a module that averages gradients in it.
        self._parts, self._layout = [], dataclasses.replace(self._layout, parts=[], averaged=None)

    def pause(self) -> None:
        """Stop measuring until `resume`; all ranks call it. All hooks are removed, and `step` neither changes nor communicates anything."""
        for part in self._parts:
            part.close()
        self._parts, self.paused, self.norms = [], True, ()

    def resume(self) -> None:
        """Start measuring again; all ranks call it."""
        if not self.paused:
            return
        self._parts = [self._measuring(module, placements) for module, placements in self._layout.parts]
        self.paused = False

    def _measuring(self, module: nn.Module, placements: dict[str, GradientPlacement]) -> GradientNorms | BufferNorms:
        if self._in_buffers:
            return BufferNorms(module, placements)
        averaged, pools = self._layout.averaged, self._layout.pools
        return GradientNorms(module, placements, pools, self._norm_of, added_up=self._workers, averaged=averaged)


def _layout_of(model: nn.Module | Sequence[nn.Module] | GradientLayout) -> GradientLayout:
    if isinstance(model, GradientLayout):
        return model
    if is_megatron(model):
        return layout_of_chunks(model)
    if not isinstance(model, nn.Module):
        raise InputError("the model is a sequence of modules that are not in Megatron's DDP", hint="give one module")
    return layout_of(model)
