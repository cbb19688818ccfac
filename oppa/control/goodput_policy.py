"""The policy of COPUS: throughput times statistical efficiency, over batch size and layout together (Algorithm 2).

What a change of layout costs counts as lost time. As the paper writes it, the goodput elsewhere is multiplied with T_useful / (T_elapsed +
c), which knows of the past alone and would change the layout before the last step. By default it is what is left that counts: of the h
seconds until the end the change takes c, so the goodput elsewhere is multiplied with 1 - c / h. Where nobody knows the end, h is the
time trained so far, and both say the same.

The paper asks one margin of everything: the best must be 10% better than the present configuration. Goodput is flat around its largest
value, so that the batch then stays up to 2.5 times too small; and another layout is credited with what its batch alone would have
brought. By default other batches in the present layout, which cost nothing, have a small margin of their own, and another layout must be
better by 5% than the best that can be had without it: about what a table does not know of two rows. What it takes to get there counts
apart.

Where the best lies beyond what a batch may grow at once, and nothing on the way is better than the present configuration, the paper's
controller stays. By default it goes there by steps, if they are not worse by more than the margin.

The paper's controller never looks back. By default a configuration that has been tried, and is worth less than the one before, is left.

What a larger learning rate is worth ends, by default, where noise does (`oppa.table.goodput`).

Notation:
    G      goodput (COPUS eq. 7) of an offer, and of the present configuration
    c      seconds that a change of layout takes
    h      seconds until the end, as things are
"""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import Command, Decision, Limit, Option, Policy, Situation, disbelief, stay
from oppa.control.offers import Array, Offers
from oppa.problem.configuration import Configuration
from oppa.table.rows import Strategy
from oppa.units import format_number, format_seconds

MARGIN, PAPER_MARGIN = 0.05, 0.10
"""By so much must another layout be better; the second one is COPUS's (section 4.3)."""
BATCH_MARGIN = 0.02
"""And by so much where nothing but batch sizes changes."""
UNDONE = 0.02
"""By so much must the configuration before be better, for a change to be undone."""
GROWTH = 2.0
"""The batch grows at most by this factor at once (COPUS, section 6.1)."""
Cost = Literal["horizon", "elapsed"]
Mask = NDArray[np.bool_]


class GoodputPolicy(Policy):
    """Takes the largest goodput, where that is worth a change.

    Args:
        offers: To choose from.
        margin: What the best must be better by, as a share.
        batch_margin: The same where nothing but batch sizes changes; None: there is one margin, over the present configuration, and
            nothing is gone to by steps, as the paper writes it.
        growth: The largest factor by which the batch may grow at once.
        cost: What a change of layout is weighed against: what is left (`horizon`), or what has passed (`elapsed`, as the paper writes it).
        looks_back: Whether a change that has not delivered is undone.
    """

    def __init__(
        self,
        offers: Offers,
        *,
        margin: float = MARGIN,
        batch_margin: float | None = BATCH_MARGIN,
        growth: float = GROWTH,
        cost: Cost = "horizon",
        looks_back: bool = True,
    ) -> None:
        self._offers, self._looks_back = offers, looks_back
        self._margin, self._batch_margin, self._growth, self._cost = margin, batch_margin, growth, cost

    @classmethod
    def as_written(cls, offers: Offers) -> "GoodputPolicy":
        """Algorithm 2 and eq. 8 as the paper writes them."""
        return cls(offers.as_written(), margin=PAPER_MARGIN, batch_margin=None, cost="elapsed", looks_back=False)

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
        weighed = self._weighed(goodputs, situation, current)
        if (chosen := weighed.chosen) is None:
            return self._staying(situation, weighed, current, best)
        moves = Strategy.of(chosen.configuration) != Strategy.of(situation.configuration)
        onward = "" if weighed.onward is None else f", on the way to {weighed.onward.global_batch}"
        cost = f", {format_seconds(situation.reconfiguration_s)} to get there" if moves else ""
        return Decision(
            command=Command.RECONFIGURE if moves else Command.SCALE_BS,
            configuration=chosen.configuration,
            reason=f"{_told(chosen, current, noise_scale)}{onward}{cost}",
            limits=() if chosen.configuration == best[0].configuration else weighed.against(best[0]),
            current=current,
            chosen=chosen,
            onward=weighed.onward,
            best=best,
        )

    def undo(self, situation: Situation, came_from: Configuration) -> Decision | None:
        """Back to where the job came from, if that is worth more now that both are known."""
        if not self._looks_back or situation.noise_scale is None:
            return None
        current, before = (self._offers.current(each, situation.noise_scale, None) for each in (situation.configuration, came_from))
        if current is None or before is None or not self._may(came_from, situation):
            return None
        moves = Strategy.of(came_from) != Strategy.of(situation.configuration)
        factor = cost_factor(situation, current.samples_per_s, self._cost) if moves else 1.0
        if before.goodput * factor <= current.goodput * (1 + UNDONE):
            return None
        lost = 1 - current.goodput / before.goodput
        cost = f", {format_seconds(situation.reconfiguration_s)} to get there" if moves else ""
        return Decision(
            command=Command.RECONFIGURE if moves else Command.SCALE_BS,
            configuration=before.configuration,
            reason=f"the change has not delivered: goodput is {lost:.1%} below that of {before.configuration.id}, as measured{cost}",
            current=current,
            chosen=before,
            best=(before,),
        )

    def _may(self, configuration: Configuration, situation: Situation) -> bool:
        """Whether nothing forbids a batch, however much it is worth."""
        grown = configuration.global_batch > self._growth * situation.configuration.global_batch
        return not grown and configuration not in situation.barred and configuration.global_batch < situation.too_large

    def _weighed(self, goodputs: Array, situation: Situation, current: Option) -> "_Weighed":
        offers, present = self._offers, situation.configuration
        factor = cost_factor(situation, current.samples_per_s, self._cost)
        own = offers.of_layout(present)
        worth = np.where(own, goodputs, goodputs * factor)
        worth[offers.among(situation.barred) | (offers.batches >= situation.too_large)] = -np.inf
        near = offers.batches <= self._growth * present.global_batch
        if self._batch_margin is None:
            enough = enough_elsewhere = current.goodput * (1 + self._margin)
        else:
            enough = current.goodput * (1 + self._batch_margin)
            enough_elsewhere = max(current.goodput, float(worth[own & near].max(initial=0.0))) * (1 + self._margin)
        worthwhile = worth >= np.where(own, enough, enough_elsewhere)
        chosen, onward = _largest(offers, worth, worthwhile & near), None
        if chosen is None and self._batch_margin is not None and (far := _largest(offers, worth, worthwhile)) is not None:
            bearable = near & (worth >= current.goodput * (1 - self._margin))
            chosen, onward = self._step_to(far.configuration, worth, bearable, present.global_batch), far.configuration
        return _Weighed(
            situation=situation,
            growth=self._growth,
            factor=factor,
            enough=enough,
            enough_elsewhere=enough_elsewhere,
            chosen=chosen,
            onward=onward,
        )

    def _step_to(self, far: Configuration, worth: Array, among: Mask, batch: int) -> Option | None:
        """The largest batch of these in its layout; None if there is none that is larger than the present one."""
        offers = self._offers
        return _largest(offers, offers.batches, among & offers.of_layout(far) & (offers.batches > batch), worth)

    def _staying(self, situation: Situation, weighed: "_Weighed", current: Option, best: tuple[Option, ...]) -> Decision:
        first = best[0]
        if first.configuration == situation.configuration or first.goodput <= current.goodput:
            return stay(situation, "the present configuration is the best of the table", current=current, chosen=current, best=best)
        limits = weighed.against(first)
        reason = f"{_told(first, current, situation.noise_scale or 0.0)}; not taken: {', '.join(limit.value for limit in limits)}"
        return stay(situation, reason, *limits, current=current, chosen=current, best=best)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weighed:
    """What offers are worth when all that speaks against them counts."""

    situation: Situation
    growth: float
    factor: float
    """On what needs another layout."""
    enough: float
    """The goodput that an offer in the present layout must have."""
    enough_elsewhere: float
    """And one in another."""
    chosen: Option | None
    """None: nothing is worth a change."""
    onward: Configuration | None
    """What the chosen is but a step to."""

    def against(self, option: Option) -> tuple[Limit, ...]:
        """What speaks against an option."""
        present, wanted = self.situation.configuration, option.configuration
        moves = Strategy.of(wanted) != Strategy.of(present)
        enough = self.enough_elsewhere if moves else self.enough
        reasons = {
            Limit.GROWTH: wanted.global_batch > self.growth * present.global_batch,
            Limit.BARRED: wanted in self.situation.barred,
            Limit.SPIKE: wanted.global_batch >= self.situation.too_large,
            Limit.MARGIN: option.goodput < enough,
            Limit.COST: moves and option.goodput * self.factor < enough <= option.goodput,
        }
        return tuple(limit for limit, holds in reasons.items() if holds)


def _largest(offers: Offers, values: Array, among: Mask, goodputs: Array | None = None) -> Option | None:
    """The offer with the largest value among these; None if there are none."""
    if not among.any():
        return None
    return offers.option(int(np.where(among, values, -np.inf).argmax()), values if goodputs is None else goodputs)


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
