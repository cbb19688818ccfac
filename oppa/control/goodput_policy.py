"""The policy of COPUS: throughput times statistical efficiency, over batch size and layout together (Algorithm 2).

What a change of layout costs counts as lost time. As the paper writes it, the goodput elsewhere is multiplied with T_useful / (T_elapsed +
c), which knows of the past alone and would change the layout before the last step. By default it is what is left that counts: of the h
seconds until the end the change takes c, so the goodput elsewhere is multiplied with 1 - c / h. Where nobody knows the end, h is the
time trained so far, and both say the same.

Notation:
    G      goodput (COPUS eq. 8) of an offer, and of the present configuration
    c      seconds that a change of layout takes
    h      seconds until the end, as things are
"""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import Command, Decision, Limit, Option, Situation, disbelief, stay
from oppa.control.offers import Array, Offers
from oppa.table.rows import Strategy
from oppa.units import format_number, format_seconds

MARGIN = 0.10
"""By so much must the best be better (COPUS, section 4.3)."""
GROWTH = 2.0
"""The batch grows at most by this factor at once (COPUS, section 6.1)."""
Cost = Literal["horizon", "elapsed"]


class GoodputPolicy:
    """Takes the largest goodput, where that is worth a change.

    Args:
        offers: To choose from.
        margin: What the best must be better by, as a share.
        growth: The largest factor by which the batch may grow at once.
        cost: What a change of layout is weighed against: what is left (`horizon`), or what has passed (`elapsed`, as the paper writes it).
    """

    def __init__(self, offers: Offers, *, margin: float = MARGIN, growth: float = GROWTH, cost: Cost = "horizon") -> None:
        self._offers = offers
        self._margin, self._growth, self._cost = margin, growth, cost

    def decide(self, situation: Situation) -> Decision:
        """The configuration to train in."""
        if (disbelieved := disbelief(situation)) is not None:
            return disbelieved
        assert situation.noise_scale is not None
        offers, noise_scale = self._offers, situation.noise_scale
        goodputs = offers.goodputs(noise_scale)
        best = offers.best(goodputs)
        current = offers.current(situation.configuration, noise_scale, situation.steps_per_s)
        if current is None:
            return stay(situation, "how fast the present configuration is is not known yet", Limit.UNKNOWN, best=best)
        weighed = _Weighed.of(offers, goodputs, situation, current, growth=self._growth, cost=self._cost)
        enough = current.goodput * (1 + self._margin)
        if (chosen := weighed.chosen) is None or chosen.goodput < enough:
            return self._staying(situation, weighed, current, best, enough)
        moves = Strategy.of(chosen.configuration) != Strategy.of(situation.configuration)
        limits = () if chosen.configuration == best[0].configuration else weighed.against(best[0], enough)
        return Decision(
            command=Command.RECONFIGURE if moves else Command.SCALE_BS,
            configuration=chosen.configuration,
            reason=_told(chosen, current, noise_scale) + (f", {format_seconds(situation.reconfiguration_s)} to get there" if moves else ""),
            limits=limits,
            current=current,
            chosen=chosen,
            best=best,
        )

    def _staying(self, situation: Situation, weighed: "_Weighed", current: Option, best: tuple[Option, ...], enough: float) -> Decision:
        first = best[0]
        if first.configuration == situation.configuration or first.goodput <= current.goodput:
            return stay(situation, "the present configuration is the best of the table", current=current, chosen=current, best=best)
        limits = weighed.against(first, enough)
        reason = f"{_told(first, current, situation.noise_scale or 0.0)}; not taken: {', '.join(limit.value for limit in limits)}"
        return stay(situation, reason, *limits, current=current, chosen=current, best=best)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weighed:
    """What offers are worth when all that speaks against them counts."""

    factor: float
    """On what needs another layout."""
    growth: float
    situation: Situation
    chosen: Option | None

    @classmethod
    def of(cls, offers: Offers, goodputs: Array, situation: Situation, current: Option, *, growth: float, cost: Cost) -> "_Weighed":
        factor = cost_factor(situation, current.samples_per_s, cost)
        worth = np.where(offers.of_layout(situation.configuration), goodputs, goodputs * factor)
        worth[_too_large(offers, situation, growth) | offers.among(situation.barred)] = -np.inf
        index = int(worth.argmax())
        chosen = offers.option(index, worth) if np.isfinite(worth[index]) else None
        return cls(factor=factor, growth=growth, situation=situation, chosen=chosen)

    def against(self, option: Option, enough: float) -> tuple[Limit, ...]:
        """What speaks against an option."""
        present, wanted = self.situation.configuration, option.configuration
        moves = Strategy.of(wanted) != Strategy.of(present)
        reasons = {
            Limit.GROWTH: wanted.global_batch > self.growth * present.global_batch,
            Limit.BARRED: wanted in self.situation.barred,
            Limit.SPIKE: wanted.global_batch >= self.situation.too_large,
            Limit.MARGIN: option.goodput < enough,
            Limit.COST: moves and option.goodput * self.factor < enough <= option.goodput,
        }
        return tuple(limit for limit, holds in reasons.items() if holds)


def cost_factor(situation: Situation, samples_per_s: float, cost: Cost = "horizon") -> float:
    """What is left of the goodput elsewhere when the time that it takes to get there counts, from 0 to 1.

    Args:
        samples_per_s: Throughput as things are.
        cost: `elapsed`: T_useful / (T_elapsed + c), COPUS, Algorithm 2, line 8. `horizon`: 1 - c / h.
    """
    seconds = situation.reconfiguration_s
    if cost == "elapsed":
        total = situation.elapsed_s + seconds
        return situation.useful_s / total if total > 0 else 1.0
    if seconds <= 0:
        return 1.0
    left = situation.remaining_samples
    horizon_s = situation.useful_s if left is None else left / samples_per_s
    return max(0.0, 1 - seconds / horizon_s) if horizon_s > 0 else 0.0


def _too_large(offers: Offers, situation: Situation, growth: float) -> NDArray[np.bool_]:
    """Which offers would let the batch grow too much at once, or to where the loss rose, shape (n,)."""
    return np.asarray((offers.batches > growth * situation.configuration.global_batch) | (offers.batches >= situation.too_large))


def _told(option: Option, current: Option, noise_scale: float) -> str:
    """How much better it is, for people."""
    wanted, present = option.configuration, current.configuration
    gain = option.goodput / current.goodput - 1
    where = (
        f"batch {present.global_batch} to {wanted.global_batch}"
        if wanted.global_batch != present.global_batch
        else f"batch {wanted.global_batch}"
    )
    layout = "" if wanted.id == present.id else f", {present.id} to {wanted.id}"
    return f"goodput {gain:+.1%} at a noise scale of {format_number(noise_scale)} sequences: {where}{layout}"
