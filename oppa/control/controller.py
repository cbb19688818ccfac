"""Control one job under one policy: record its steps, decide when the policy runs, and account for the effect of its decisions.

The policy runs every few steps. Once a configuration has run for enough steps, their times refine the table. The policy may then revert
the change. Before later decisions, all recent steps refine the table. A configuration that could not be built is not proposed again.

Worth is goodput times seconds (`GoodputAccount`). A step adds the progress it made, however long it took, and pauses add nothing. The
reference is a job that stays in its first configuration: all elapsed time counts, at the speed of that configuration in the refined table.
Before the first change the two are equal except for failed attempts: a job that never changed has gained nothing.
"""

import dataclasses
import functools
import math
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oppa.control.decision import HEALTHY, Decision, DecisionKind, JobState, Limit, Option, Policy
from oppa.control.loss_spikes import LossSpikes
from oppa.control.segment import RECENT, Segment
from oppa.control.throughput_index import ThroughputIndex
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Changed, StepTaken
from oppa.table.refinement import StepTimeObservation, plain_first, with_common_variance
from oppa.training.run.step_times import WARM_UP

EVERY = 10
"""Steps between two decisions."""
PROOF = 10
"""Steps after which the speed of a configuration, and the effect of a change, counts as measured."""
AFTERMATH = 50
"""Steps after a growth of the batch within which a loss spike is attributed to that growth."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GoodputAccount:
    """Integrates goodput over time, from the start of the run."""

    actual: float = 0.0
    """Sum over the steps that were taken."""
    stayed: float = 0.0
    """Value for a job that had stayed in its first configuration."""
    ideal: float = 0.0
    """Value for a job that had always trained in the best configuration of the table, with free changes."""

    @property
    def gain(self) -> float | None:
        """Return the relative gain of `actual` over `stayed`; None before anything is known."""
        return self.actual / self.stayed - 1 if self.stayed > 0 else None

    @property
    def regret(self) -> float | None:
        """Return the relative shortfall of `actual` from `ideal`; None before anything is known."""
        return 1 - self.actual / self.ideal if self.ideal > 0 else None


class Controller:
    """Receives the steps of a job and decides what the job should do.

    Args:
        throughputs: Candidates of the table; None without a table, in which case goodput is unknown.
        policy_of: Factory of the policy; called again whenever training refines the candidates.
        total_samples: Samples of the whole training; None if unknown.
        warmup_samples: Samples over which the learning rate rises.
        reconfiguration_s: Expected seconds of a change of layout, used until one was measured.
        every: Steps between two decisions.
        proof: Steps after which the effect of a change counts as measured.
    """

    def __init__(
        self,
        throughputs: ThroughputIndex | None,
        policy_of: Callable[[ThroughputIndex | None], Policy],
        *,
        total_samples: int | None = None,
        warmup_samples: int = 0,
        reconfiguration_s: float = 0.0,
        every: int = EVERY,
        proof: int = PROOF,
    ) -> None:
        self._profiled, self._policy_of, self._policy = throughputs, policy_of, policy_of(throughputs)
        self._total_samples, self._warmup_samples = total_samples, warmup_samples
        self._every, self._proof = every, proof
        self._cost_s = reconfiguration_s
        """Expected seconds of a change of layout, or of a restart: those of the last one, or the given estimate before there was one."""
        self._reconfiguring_s = 0.0
        """Total seconds spent on changes of layout and restarts."""
        self._paid_s = 0.0
        """The part of `_reconfiguring_s` that is already included in `worth`."""
        self._first: Configuration | None = None
        """Configuration in which the job started."""
        self._present: Segment | None = None
        self._ended: dict[Configuration, StepTimeObservation] = {}
        """Speeds of the segments that have ended."""
        self.has_changed = False
        """True if the job has left the segment in which it started."""
        self._barred: set[Configuration] = set()
        self._spikes = LossSpikes()
        self._too_large: tuple[float, int] = (math.inf, 0)
        """Global batch that made the loss rise, and the number of samples until which it stays excluded."""
        self._on_the_way: Configuration | None = None
        """Configuration of the last decision, if it was only an intermediate step; else None."""
        self._until_next = every
        self._elapsed_s = 0.0
        self._ratio: float | None = None
        """V / |g|^2 of the last step at which it was measured."""
        self._losses: deque[float] = deque(maxlen=RECENT)
        """Losses of the steps since the last window that workers reported."""
        self._refine([])
        self.worth = GoodputAccount()
        self.present: Option | None = None
        """Goodput of the last step by its own step time; None while the noise scale is unreliable or without a table."""

    @property
    def is_in_spike(self) -> bool:
        """Return True while a wide spike of the loss persists."""
        return self._spikes.is_wide

    def step(self, seen: StepTaken) -> Decision | None:
        """Record a step; return a decision if one is due, else None."""
        segment = self._segment(seen)
        segment.took(seen.step_time_s, in_two=seen.is_in_two)
        self._account(seen)
        if seen.reports_loss and (began := self._spikes.wide(seen.step, seen.loss)) is not None:
            return self._rolled_back(segment, seen, began)
        if not segment.proven and segment.counted >= self._proof:
            segment.proven = True
            if decision := self._measured(segment, seen):
                return decision
        if self._policy.window is not None:
            return self._after_window(seen, segment)
        self._until_next -= 1
        settled = segment.proven or not segment.moved
        if not (self._until_next <= 0 or (settled and (self._policy.restless or (self._policy.interval and seen.tested)))):
            return None
        self._until_next = max(self._every, 2 * (self._policy.interval or 0))
        return self._decide(seen, segment)

    def changed(self, seen: Changed) -> None:
        """Record the outcome of a change."""
        took_time = self._policy.restarts(seen.before, seen.after)
        if took_time and seen.seconds:  # 0 seconds: refused before it began
            self._cost_s = seen.seconds
            self._reconfiguring_s += seen.seconds
        if seen.failure:
            self._barred.add(seen.after)
        self._losses.clear()
        if seen.failure or seen.before == seen.after:
            return
        present = self._present
        back = present is not None and present.came_from == seen.after
        self._begin(
            Segment(
                configuration=seen.after,
                local_batches=tuple(seen.local_batches),
                came_from=None if back else seen.before,
                earlier_batches=present.local_batches if present and present.configuration == seen.before else (),
                moved=took_time,
            )
        )
        self._until_next = max(self._every, self._proof + WARM_UP)

    def _after_window(self, seen: StepTaken, segment: Segment) -> Decision | None:
        """Decide after a window, for a policy that works in windows; None if no window has ended."""
        decision = self._decide(seen, segment) if seen.workers else None
        if seen.workers:
            self._losses.clear()
        if seen.loss is not None:  # the step that reports a window is the first one after it
            self._losses.append(seen.loss)
        self._ratio = self._ratio if seen.variance_ratio is None else seen.variance_ratio
        return decision

    def _segment(self, seen: StepTaken) -> Segment:
        """Return the current segment; begin one if the configuration or the local batches differ from the last one's."""
        configuration, local_batches = seen.configuration, tuple(seen.local_batches)
        present = self._present
        if present is not None and (present.configuration, present.local_batches) == (configuration, local_batches):
            return present
        return self._begin(Segment(configuration=configuration, local_batches=local_batches, came_from=None))

    def _begin(self, segment: Segment) -> Segment:
        """Make a segment the current one, and keep the speed of the one that ends."""
        if self._present is None:
            self._first = segment.configuration
        else:
            self.has_changed = True
            self._ended = {each.configuration: each for each in self._observations(self._present)}
        self._present = segment
        return segment

    def _state(self, seen: StepTaken, segment: Segment) -> JobState:
        counted = segment.counted_s
        return JobState(
            configuration=seen.configuration,
            noise_scale=seen.noise_scale,
            health=seen.health,
            variance_ratio=seen.variance_ratio if self._policy.window is None else self._ratio,
            worker_variance_ratio=seen.worker_variance_ratio,
            local_batches=segment.local_batches,
            workers=tuple(seen.workers),
            losses=tuple(self._losses),
            accuracy=seen.accuracy,
            steps_per_s=len(counted) / sum(counted) if counted else None,
            elapsed_s=seen.elapsed_s,
            reconfiguring_s=self._reconfiguring_s,
            reconfiguration_s=self._cost_s,
            samples=seen.samples,
            warming_up_samples=max(0, self._warmup_samples - seen.samples),
            remaining_samples=None if self._total_samples is None else max(0, self._total_samples - seen.samples),
            unbuildable=frozenset(self._barred),
            too_large=self._too_large[0] if seen.samples < self._too_large[1] else math.inf,
        )

    def _observations(self, segment: Segment) -> list[StepTimeObservation]:
        """Return the speed of each configuration, the current segment included."""
        found, own = dict(self._ended), segment.observation
        if own is not None and own.configuration in found:
            own = functools.reduce(operator.add, with_common_variance(plain_first((found[own.configuration], own))))
        return list((found if own is None else {**found, own.configuration: own}).values())

    def _measured(self, segment: Segment, seen: StepTaken) -> Decision | None:
        """Refine the table by a segment; return a decision to leave its configuration if the change to it was not worth it, else None.

        A change is checked by its first steps. If those were too few without steps in two, it is checked again by enough others.
        """
        is_checked = segment.refined_at > 0
        segment.refined_at = segment.steps if len(segment.counted_s) >= self._proof else 0
        self._refine(self._observations(segment))
        undone = None if is_checked else self._undone(segment, seen)
        return undone and (self._onward(segment, seen) or undone)

    def _refine(self, observations: Sequence[StepTimeObservation]) -> None:
        self._refined_by = observations
        self._throughputs = self._profiled and self._profiled.refined(observations)
        if self._policy.window is None:  # a policy with a window uses worker reports, not the table
            self._policy = self._policy_of(self._throughputs)

    def _rolled_back(self, segment: Segment, seen: StepTaken, began: int) -> Decision:
        """Roll back to the weights from before a wide spike; also revert the batch if it had grown shortly before the spike."""
        present, before = segment.configuration, segment.came_from
        risen = f"the loss has risen at step {began} and stays up"
        grown = before is not None and before.global_batch < present.global_batch
        wanted, shares, weights = present, segment.local_batches, "restore the weights from before"
        if before is not None and grown and segment.steps - (seen.step - began) <= AFTERMATH:
            wanted, shares = before, segment.earlier_batches
            weights = f"restore batch {before.global_batch} instead of {present.global_batch}, and the weights from before"
            self._too_large = present.global_batch, 2 * seen.samples
        reason = f"{risen}: {weights}"
        back = Decision(
            command=DecisionKind.ROLL_BACK,
            configuration=wanted,
            local_batches=shares,
            reason=reason,
            limits=(Limit.SPIKE,),
            before_step=began,
        )
        return self._weighed(back, self._state(seen, segment))

    def _undone(self, segment: Segment, seen: StepTaken) -> Decision | None:
        """Return a decision to revert the last change, if the policy chooses so; None if the change is kept."""
        if segment.came_from is None or seen.reliable_noise_scale is None:
            return None
        state = self._state(seen, segment)
        undone = self._policy.undo(state, segment.came_from)
        return undone and self._weighed(undone, state)

    def _onward(self, segment: Segment, seen: StepTaken) -> Decision | None:
        """Decide to move on from an intermediate step instead of reverting it; None if it is not one, or no further step pays off."""
        if self._on_the_way != segment.configuration:
            return None
        decision = self._decide(seen, segment)
        return None if decision.command == DecisionKind.NO_OP or decision.configuration == segment.came_from else decision

    def _decide(self, seen: StepTaken, segment: Segment) -> Decision:
        if segment.is_due(self._proof) and (decision := self._measured(segment, seen)):
            return decision
        state = self._state(seen, segment)
        decision = self._policy.decide(state)
        self._on_the_way = decision.configuration if decision.onward else None
        return self._weighed(decision, state)

    def _weighed(self, decision: Decision, state: JobState) -> Decision:
        """Add the goodput of the current, chosen and best candidates to a decision of any policy, and that of a change to its reason.

        Without a table or a reliable noise scale the decision is returned unchanged.
        """
        throughputs, noise_scale = self._throughputs, state.noise_scale
        if decision.best or throughputs is None or noise_scale is None or state.health != HEALTHY:
            return decision
        current, chosen = (
            throughputs.current(each, noise_scale, state.steps_per_s if each == state.configuration else None)
            for each in (state.configuration, decision.configuration)
        )
        best, reason = throughputs.best(throughputs.goodputs(noise_scale)), decision.reason
        if current and chosen and current.configuration != chosen.configuration and decision.command != DecisionKind.ROLL_BACK:
            reason = f"{reason}; goodput {chosen.goodput / current.goodput - 1:+.1%}"
        return dataclasses.replace(decision, reason=reason, current=current, chosen=chosen, best=best)

    def _account(self, seen: StepTaken) -> None:
        """Add a step to the actual worth of the run, and the time since the last step to the two references."""
        passed_s, self._elapsed_s = max(0.0, seen.elapsed_s - self._elapsed_s), seen.elapsed_s
        self.present, throughputs = None, self._throughputs
        if seen.reliable_noise_scale is None or throughputs is None:
            return
        self.present = present = throughputs.measured(seen.configuration, seen.reliable_noise_scale, 1 / seen.step_time_s)
        actual = present.goodput * seen.step_time_s
        in_vain_s, self._paid_s = self._reconfiguring_s - self._paid_s, self._reconfiguring_s
        assert self._first is not None
        first = throughputs.current(self._first, seen.reliable_noise_scale, None) or present
        known = throughputs.current(seen.configuration, seen.reliable_noise_scale, None) or present
        best = throughputs.largest_goodput(seen.reliable_noise_scale)
        self.worth = GoodputAccount(
            actual=self.worth.actual + actual,
            stayed=self.worth.stayed + (first.goodput * passed_s if self.has_changed else actual + present.goodput * in_vain_s),
            ideal=self.worth.ideal + max(best, known.goodput) * passed_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the account of the run as a JSON-serialisable dict."""
        return {**dataclasses.asdict(self.worth), "gain": self.worth.gain, "regret": self.worth.regret, "changed": self.has_changed}

    def snapshot(self) -> dict[str, Any]:
        """Return all that later decisions depend on, besides the arguments of the constructor, as a JSON-serialisable dict."""
        largest, until = self._too_large
        return {
            "cost_s": self._cost_s,
            "reconfiguring_s": self._reconfiguring_s,
            "paid_s": self._paid_s,
            "first": self._first and self._first.to_dict(),
            "segment": self._present and self._present.to_dict(),
            "ended": [each.to_dict() for each in self._ended.values()],
            "refined_by": [each.to_dict() for each in self._refined_by],
            "has_changed": self.has_changed,
            "unbuildable": [each.to_dict() for each in sorted(self._barred, key=repr)],
            "spikes": self._spikes.snapshot(),
            "too_large": None if math.isinf(largest) else [largest, until],
            "on_the_way": self._on_the_way and self._on_the_way.to_dict(),
            "until_next": self._until_next,
            "elapsed_s": self._elapsed_s,
            "variance_ratio": self._ratio,
            "losses": list(self._losses),
            "worth": dataclasses.asdict(self.worth),
            "present": self.present and self.present.to_dict(),
        }

    def succeed(self, earlier: "Controller") -> None:
        """Continue in the place of an earlier controller of the job.

        A policy that works in windows stays, because it may have learned.
        """
        self.restore(earlier.snapshot())
        if self._policy.window is not None:
            self._policy = earlier._policy

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `snapshot` returned."""
        self._reconfiguring_s, self._paid_s = state["reconfiguring_s"], state["paid_s"]
        if self._reconfiguring_s:  # else `cost_s` is the estimate of an earlier controller
            self._cost_s = state["cost_s"]
        self._first, self._on_the_way = (
            None if values is None else Configuration.from_dict(values) for values in (state["first"], state["on_the_way"])
        )
        self._present = None if state["segment"] is None else Segment.from_dict(state["segment"])
        ended = [StepTimeObservation.from_dict(values) for values in state["ended"]]
        self._ended = {each.configuration: each for each in ended}
        self._refine([StepTimeObservation.from_dict(values) for values in state["refined_by"]])
        self.has_changed, self._until_next, self._elapsed_s = state["has_changed"], state["until_next"], state["elapsed_s"]
        self._barred = {Configuration.from_dict(values) for values in state["unbuildable"]}
        self._spikes.restore(state["spikes"])
        if state["too_large"] is not None:
            self._too_large = state["too_large"][0], state["too_large"][1]
        self._ratio = state["variance_ratio"]
        self._losses.extend(state["losses"])
        self.worth = GoodputAccount(**state["worth"])
        self.present = None if state["present"] is None else Option.from_dict(state["present"])
