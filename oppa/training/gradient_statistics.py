"""Gradient statistics of a training run: the noise scale, step by step, under any layout, for one small all-reduce a step.

In a loop of one's own, behind DDP or FSDP2:

    from oppa.training import GradientStatistics
    statistics = GradientStatistics(model)
    noise_scale = statistics.step(tokens)   # of each micro-batch; behind the last backward pass, before clipping and the update
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
from oppa.training.gradient_layout import GradientLayout, layout_of
from oppa.training.gradient_norms import GradientNorms, norm
from oppa.training.noise_scale import NoiseScale, Norms, estimate_of
from oppa.training.preconditioning import preconditioned_norm


class GradientStatistics:
    """Watches the gradients of a model; `noise_scale` is what they say so far, the same on every rank.

    Args:
        model: Behind DDP, behind FSDP2, or on one process; or the layout of something else.
        noise_scale: What to go on from: how to smooth, and what is known, of another layout of the same training, say.
        weighting: How micro-batches of different size make up the mean gradient: all `tokens` count alike, or all micro-batches do,
            `equally`, as in a loop that divides each micro-batch's mean loss by their number.
        preconditioned_by: An Adam whose denominators to measure gradients in (`preconditioning`).
        over: What is compared with the mean gradient: that of each micro-batch, or of each of the `workers` that it is averaged over. These
            are fewer, and each costs a sum more.

    Raises:
        InputError: if the layout is beyond it.
    """

    def __init__(
        self,
        model: nn.Module | GradientLayout,
        *,
        noise_scale: NoiseScale = NoiseScale(),  # noqa: B008 - frozen
        weighting: Literal["tokens", "equally"] = "tokens",
        preconditioned_by: torch.optim.Optimizer | None = None,
        over: Over = "micro-batches",
    ) -> None:
        self._layout = layout = model if isinstance(model, GradientLayout) else layout_of(model)
        self._equally, self._workers = weighting == "equally", over == "workers"
        self._norm_of = (lambda _: norm) if preconditioned_by is None else preconditioned_norm(preconditioned_by, layout)
        self._parts: list[GradientNorms] = []
        self.paused = True
        """Whether nothing is measured."""
        self.noise_scale = noise_scale
        self.norms: tuple[Norms, ...] = ()
        """Of the last step, by group of parameters; one group, but for experts that are spread."""
        self.resume()

    def step(self, tokens: Sequence[float], *, loss_scale: float = 1.0) -> NoiseScale:
        """Take in one optimizer step; all ranks call it, when gradients are averaged and nothing has changed them since.

        Args:
            tokens: Of each micro-batch of this rank, in the order of their backward passes.
            loss_scale: What the loss was multiplied with, beyond what makes the step's gradient a mean.

        Raises:
            InputError: if that many micro-batches, of that many tokens, cannot be.
        """
        mine = self.own(tokens)
        if self.paused:
            return self.noise_scale
        if self._layout.group is not None:
            dist.all_reduce(mine, group=self._layout.group)
        return self.take_in(mine.cpu(), loss_scale=loss_scale)

    def own(self, tokens: Sequence[float]) -> Tensor:
        """What this rank has to tell of a step, in float64; for a loop whose ranks exchange numbers anyway, as `step` is otherwise.

        Of each group of parameters the norms of micro-batches and of their mean; and what of a and b, as in `noise_scale`, sizes need.
        """
        if not tokens or min(tokens) <= 0:
            raise InputError(f"`tokens = {list(tokens)}` of a step's micro-batches", hint="give one positive number for each")
        counts = [1.0] * len(tokens) if self._equally else tokens
        pairs = list(zip(counts, tokens, strict=True))
        if self._workers:  # all that this rank has is one
            pairs = [(sum(counts), sum(counts) ** 2 / sum(a * a / b for a, b in pairs))]
        sums = torch.zeros(2, len(self._layout.pools), dtype=torch.float64, device=self._layout.device)
        for part in self._parts:
            sums += part.take([1 / a for a, _ in pairs]).to(sums.device)
        each = (sum(counts), sum(a / b for a, b in pairs), sum(a * a / b for a, b in pairs), sum(tokens), len(pairs))
        sizes = torch.tensor(each, dtype=torch.float64, device=self._layout.device) / self._layout.alike
        return torch.cat((sums.flatten(), sizes))

    def take_in(self, total: Tensor, *, loss_scale: float = 1.0) -> NoiseScale:
        """Take in a step by the sum over all ranks of what they have to tell, in host memory; of one that nobody measured, its tokens."""
        groups = len(self._layout.pools)
        sums, (weight, per_token, squared_per_token, tokens, count) = total[: 2 * groups].view(2, -1), total[2 * groups :].tolist()
        if self.paused:
            self.noise_scale = dataclasses.replace(self.noise_scale, tokens=self.noise_scale.tokens + tokens)
            return self.noise_scale
        self.norms = tuple(
            Norms(
                # A hook sees loss_scale * replicas * w_n * g_n, or what replicas that are pooled see of it on average.
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
        """Whether the gradients of the last step were numbers, on all ranks."""
        return all(math.isfinite(norms.small) and math.isfinite(norms.big) for norms in self.norms)

    def close(self) -> None:
        """Stop watching; whoever does not call `step` any more should, or what was seen adds up."""
        for part in self._parts:
            part.close()
        # Nor keep the model: gloo waits for ever for a group that is destroyed before a module that averages its gradients in it.
        self._parts, self._layout = [], dataclasses.replace(self._layout, parts=[])

    def pause(self) -> None:
        """Measure nothing until `resume`, on all ranks: no hook is left, and `step` changes nothing and talks to nobody."""
        for part in self._parts:
            part.close()
        self._parts, self.paused, self.norms = [], True, ()

    def resume(self) -> None:
        """Watch again."""
        if not self.paused:
            return
        self._parts = [
            GradientNorms(module, placements, self._layout.pools, self._norm_of, added_up=self._workers)
            for module, placements in self._layout.parts
        ]
        self.paused = False
