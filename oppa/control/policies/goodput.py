"""Implement the policy of COPUS: maximise throughput times statistical efficiency over batch size and layout together (Algorithm 2).

The policy differs from the paper in five points; `as_written` restores the paper's form of each.

Cost of a change of layout, or of a restart. The paper multiplies the goodput of another layout by T_useful / (T_elapsed + c). That
considers the past alone, and would still change the layout before the last step. By default the remaining time counts. The change takes c
of the h seconds until the end, so the goodput is multiplied by 1 - c / h. If the end is unknown, h is the time trained so far, and both
forms agree.

Margins. The paper has one margin: the best must be 10% better than the present configuration. Goodput is flat around its maximum, so the
batch then stays up to 2.5 times too small. Another layout is also credited with the gain of its batch size alone. By default other
batches in the present layout, which mostly cost nothing, have a small margin of their own. Another layout must be 5% better than the best
candidate in the present layout: 5% is about the uncertainty between two rows of a table. The cost of the change counts separately.

Growth. Sometimes the best candidate exceeds the growth limit, and no intermediate batch is better than the present one. The paper's
controller then stays. By default it goes there in steps, if they are not worse than the present configuration by more than the margin.

Spikes. If the loss rose at the present batch, the best candidate below that batch is chosen, in the paper's form too.

Reverts. The paper's controller never reverts a change. By default a configuration that turns out worse than the previous one is left.

Learning rate. By default a larger learning rate counts only while there is gradient noise (`oppa.table.goodput`).

Notation:
    G      goodput (COPUS eq. 7) of a candidate, or of the present configuration
    c      seconds that a change of layout takes
    h      seconds until the end at the present throughput
"""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import Decision, DecisionKind, JobState, Limit, Option, Policy, reject_unreliable, stay
from oppa.control.throughput_index import Array, ThroughputIndex
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.table.rows import same_strategy
from oppa.units import format_number

MARGIN, PAPER_MARGIN = 0.05, 0.10
"""Relative margin by which another layout must be better; the second is that of COPUS (section 4.3)."""
BATCH_MARGIN = 0.02
"""Relative margin for a change of batch sizes alone."""
UNDONE = 0.02
"""Relative margin by which the previous configuration must be better for a revert."""
GROWTH = 2.0
"""Largest factor by which the batch may grow in one decision (COPUS, section 6.1)."""
Cost = Literal["horizon", "elapsed"]
Mask = NDArray[np.bool_]


def require_growth(growth: float) -> None:
    """Raise InputError for a limit under which no batch could ever grow."""
    if not growth > 1:
        raise InputError(f"`growth = {growth:g}` is out of range", hint=f"use a factor above 1, such as {GROWTH:g}")


class GoodputPolicy(Policy):
    """Chooses the candidate with the largest goodput, if it justifies a change.

    Args:
        throughputs: Candidates to choose from.
        margin: Relative margin by which another layout must be better.
        batch_margin: Relative margin for a change of batch sizes alone. None: `margin` applies to every change, relative to the present
            configuration, and there are no intermediate steps, as in the paper.
        growth: Largest factor by which the batch may grow in one decision.
        cost: Time to which a change of layout is related: the remaining (`horizon`), or the elapsed time (`elapsed`, as in the paper).
        looks_back: True to revert a change that made goodput worse.

    Raises:
        InputError: if a margin is negative, or `growth` is not above 1.
    """

    def __init__(
        self,
        throughputs: ThroughputIndex,
        *,
        margin: float = MARGIN,
        batch_margin: float | None = BATCH_MARGIN,
        growth: float = GROWTH,
        cost: Cost = "horizon",
        looks_back: bool = True,
    ) -> None:
        require_growth(growth)
        for name, value in (("margin", margin), ("batch_margin", batch_margin)):
            if value is not None and not value >= 0:
                raise InputError(f"`{name} = {value:g}` is negative", hint="use 0 or more, such as 0.05 for 5%")
        self._throughputs, self._looks_back = throughputs, looks_back
        self._margin, self._batch_margin, self._growth, self._cost = margin, batch_margin, growth, cost

    @classmethod
    def as_written(cls, throughputs: ThroughputIndex) -> "GoodputPolicy":
        """Build the policy with Algorithm 2 and eq. 8 as the paper writes them."""
        return cls(throughputs.as_written(), margin=PAPER_MARGIN, batch_margin=None, cost="elapsed", looks_back=False)

    def decide(self, state: JobState) -> Decision:
        """Return a decision with the configuration to train in."""
        if (unreliable := reject_unreliable(state)) is not None:
            return unreliable
        assert state.noise_scale is not None
        throughputs, noise_scale = self._throughputs, state.noise_scale
        best = throughputs.best(throughputs.goodputs(noise_scale))
        current = throughputs.current(state.configuration, noise_scale, state.steps_per_s)
        if current is None:
            return stay(state, "the throughput of the present configuration is not known yet", Limit.UNKNOWN, best=best)
        weighed = self._weighed(noise_scale, state, current)
        if (chosen := weighed.chosen) is None:
            return self._staying(state, weighed, current, best)
        moves = not same_strategy(chosen.configuration, state.configuration)
        onward = "" if weighed.onward is None else f", as a step towards {weighed.onward.global_batch}"
        risen = f"the loss rose at batch {state.too_large:g}: " if state.is_too_large else ""
        return Decision(
            command=DecisionKind.RECONFIGURE if moves else DecisionKind.SCALE_BS,
            configuration=chosen.configuration,
            reason=f"{risen}{_comparison(chosen, current, noise_scale)}{onward}{state.cost_of(chosen.configuration)}",
            limits=() if chosen.configuration == best[0].configuration else weighed.against(best[0]),
            current=current,
            chosen=chosen,
            onward=weighed.onward,
            best=best,
        )

    def undo(self, state: JobState, came_from: Configuration) -> Decision | None:
        """Return a decision to revert to `came_from` if its goodput is now larger, by UNDONE and after the cost; else None."""
        if not self._looks_back or state.noise_scale is None:
            return None
        current, before = (self._throughputs.current(each, state.noise_scale, None) for each in (state.configuration, came_from))
        if current is None or before is None or not self._may(came_from, state):
            return None
        moves = not same_strategy(came_from, state.configuration)
        factor = cost_factor(state, current.samples_per_s, self._cost) if state.pays_for(came_from) else 1.0
        if before.goodput * factor <= current.goodput * (1 + UNDONE):
            return None
        lost, cost = 1 - current.goodput / before.goodput, state.cost_of(came_from)
        return Decision(
            command=DecisionKind.RECONFIGURE if moves else DecisionKind.SCALE_BS,
            configuration=before.configuration,
            reason=f"the change did not pay off: the measured goodput is {lost:.1%} below that of {before.configuration.id}{cost}",
            current=current,
            chosen=before,
            best=(before,),
        )

    def _may(self, configuration: Configuration, state: JobState) -> bool:
        """Return True if neither the growth limit, a failed build nor a loss spike excludes a configuration."""
        grown = configuration.global_batch > self._growth * state.configuration.global_batch
        return not grown and configuration not in state.unbuildable and configuration.global_batch < state.too_large

    def _weighed(self, noise_scale: float, state: JobState, current: Option) -> "_Weighed":
        throughputs, present = self._throughputs.avoiding(state.unbuildable), state.configuration
        goodputs = throughputs.goodputs(noise_scale)
        factor = cost_factor(state, current.samples_per_s, self._cost)
        own = throughputs.of_layout(present)
        worth = np.where(own & ~throughputs.among(state.restarting), goodputs, goodputs * factor)
        worth[throughputs.among(state.unbuildable) | (throughputs.batches >= state.too_large)] = -np.inf
        near = throughputs.batches <= self._growth * present.global_batch
        least = 0.0 if state.is_too_large else current.goodput
        if self._batch_margin is None:
            enough = enough_elsewhere = least * (1 + self._margin)
        else:
            enough = least * (1 + self._batch_margin)
            enough_elsewhere = max(least, float(worth[own & near].max(initial=0.0))) * (1 + self._margin)
        worthwhile = (worth > 0) & (worth >= np.where(own, enough, enough_elsewhere))
        chosen, onward = _largest(throughputs, worth, worthwhile & near), None
        if chosen is None and self._batch_margin is not None and (far := _largest(throughputs, worth, worthwhile)) is not None:
            larger = near & (throughputs.batches > present.global_batch) & throughputs.of_layout(far.configuration)
            bearable = larger & (worth >= current.goodput * (1 - self._margin))
            chosen, onward = _largest(throughputs, throughputs.batches, bearable, worth), far.configuration
        return _Weighed(
            state=state, growth=self._growth, factor=factor, enough=enough, enough_elsewhere=enough_elsewhere, chosen=chosen, onward=onward
        )

    def _staying(self, state: JobState, weighed: "_Weighed", current: Option, best: tuple[Option, ...]) -> Decision:
        first = best[0]
        if state.is_too_large:
            reason = f"the loss rose at batch {state.too_large:g}, and no smaller batch can be reached"
            return stay(state, reason, *weighed.against(first), current=current, chosen=current, best=best)
        if first.configuration == state.configuration or first.goodput <= current.goodput:
            return stay(state, "the present configuration is the best of the table", current=current, chosen=current, best=best)
        limits = weighed.against(first)
        reason = f"{_comparison(first, current, state.noise_scale or 0.0)}; excluded by: {', '.join(limit.value for limit in limits)}"
        return stay(state, reason, *limits, current=current, chosen=current, best=best)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weighed:
    """Holds the result of comparing all candidates: the chosen one, and the thresholds that the others had to reach."""

    state: JobState
    growth: float
    factor: float
    """Factor from 0 to 1 on the goodput of what takes a change of layout or a restart, for its cost."""
    enough: float
    """Minimum goodput of a candidate in the present layout."""
    enough_elsewhere: float
    """Minimum goodput of a candidate in another layout, after the cost."""
    chosen: Option | None
    """Chosen candidate; None if no candidate justifies a change."""
    onward: Configuration | None
    """Final target, if `chosen` is only an intermediate step to it."""

    def against(self, option: Option) -> tuple[Limit, ...]:
        """Return the limits that exclude a candidate."""
        present, wanted = self.state.configuration, option.configuration
        moves = not same_strategy(wanted, present)
        enough = self.enough_elsewhere if moves else self.enough
        reasons = {
            Limit.GROWTH: wanted.global_batch > self.growth * present.global_batch,
            Limit.UNBUILDABLE: wanted in self.state.unbuildable,
            Limit.SPIKE: wanted.global_batch >= self.state.too_large,
            Limit.MARGIN: option.goodput < enough,
            Limit.COST: self.state.pays_for(wanted) and option.goodput * self.factor < enough <= option.goodput,
        }
        return tuple(limit for limit, holds in reasons.items() if holds)


def _largest(throughputs: ThroughputIndex, values: Array, among: Mask, goodputs: Array | None = None) -> Option | None:
    """Return the candidate with the largest value within the mask `among`; None if the mask is empty.

    The returned goodput is taken from `goodputs`, or from `values` if that is None.
    """
    if not among.any():
        return None
    return throughputs.option(int(np.where(among, values, -np.inf).argmax()), values if goodputs is None else goodputs)


def cost_factor(state: JobState, samples_per_s: float, cost: Cost = "horizon") -> float:
    """Return the factor from 0 to 1 on the goodput of another configuration that accounts for the time of a change.

    Args:
        samples_per_s: Present throughput.
        cost: `elapsed`: T_useful / (T_elapsed + c), COPUS, Algorithm 2, line 8. `horizon`: 1 - c / h.
    """
    seconds = state.reconfiguration_s
    if cost == "elapsed":
        total = state.elapsed_s + seconds
        return state.useful_s / total if total > 0 else 1.0
    if seconds <= 0:
        return 1.0
    left = state.remaining_samples
    horizon_s = state.useful_s if left is None else left / samples_per_s
    return max(0.0, 1 - seconds / horizon_s) if horizon_s > 0 else 0.0


def _comparison(option: Option, current: Option, noise_scale: float) -> str:
    """Return a human-readable comparison of a candidate with the present configuration."""
    wanted, present = option.configuration, current.configuration
    gain = option.goodput / current.goodput - 1
    where = (
        f"batch {present.global_batch} to {wanted.global_batch}"
        if wanted.global_batch != present.global_batch
        else f"batch {wanted.global_batch}"
    )
    layout = "" if wanted.id == present.id else f", {present.id} to {wanted.id}"
    return f"goodput {gain:+.1%} at a noise scale of {format_number(noise_scale)} sequences: {where}{layout}"
