"""One job under one policy: what it has seen, when to decide, and what became of its decisions.

Every few steps the policy is asked. Steps of a configuration that last long enough prove it: the table is refined by them, and the policy
is asked whether the job should go back to where it came from. What cannot be built is not asked for again.

Worth is goodput times seconds. A step counts for what it has brought, however long it took, and pauses count for nothing; had the job
stayed, all time would have counted for what it stayed in, at the speed that the table, as training refines it, has for that (`Worth`).
Before the first change the two are the same but for attempts that failed: a job that never changed has gained nothing.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from oppa.control.decision import HEALTHY, Command, Decision, Limit, Option, Policy, Situation
from oppa.control.offers import Offers
from oppa.control.spikes import Spikes
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Changed, StepTaken
from oppa.table.refinement import Observation
from oppa.table.rows import Strategy
from oppa.training.step_times import WARM_UP

EVERY = 10
"""Steps from one decision to the next."""
PROOF = 10
"""Steps after which a configuration has shown how fast it is, and a change what it has brought."""
AFTERMATH = 50
"""Steps in which a spike of the loss is put down to a batch that has grown."""
RECENT = 200
"""Steps of a configuration that are remembered: a stretch may last for millions."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Goodput times seconds, so far."""

    actual: float = 0.0
    stayed: float = 0.0
    """Had the job stayed in its first configuration."""
    ideal: float = 0.0
    """Had it always been in the best of the table, and changes been free."""

    @property
    def gain(self) -> float | None:
        """What decisions have brought, as a share of what staying would have been worth; None before anything is known."""
        return self.actual / self.stayed - 1 if self.stayed > 0 else None

    @property
    def regret(self) -> float | None:
        """What is lacking of the ideal, as a share of it; None before anything is known."""
        return 1 - self.actual / self.ideal if self.ideal > 0 else None


@dataclasses.dataclass(slots=True, kw_only=True)
class _Stretch:
    """Steps in one configuration, one after the other."""

    configuration: Configuration
    local_batches: tuple[int, ...]
    """Of each worker, where they differ: such steps say nothing of the table's rows."""
    came_from: Configuration | None
    """None where the job began in it, or went back to it."""
    steps: int = 0
    warming: int = WARM_UP
    """Steps that are not counted yet."""
    counted_s: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=RECENT))
    """Step times behind the warm-up, the newest."""
    moved: bool = False
    """It began with a change of layout."""
    proven: bool = False

    def took(self, seconds: float) -> None:
        """One more step."""
        self.steps += 1
        if self.warming:
            self.warming -= 1
        else:
            self.counted_s.append(seconds)


class Controller:
    """Listens to a job, and says what it should do.

    Args:
        offers: Of the table; None where there is none, and nobody says what a batch is worth.
        policy_of: Makes the policy from offers; it is made anew as training refines them.
        total_samples: Where training ends; None where nobody knows.
        warmup_samples: Over which the learning rate rises.
        reconfiguration_s: What a change of layout is expected to take, before there was one.
        every: Steps from one decision to the next.
        proof: Steps after which a change has shown what it brings.
    """

    def __init__(
        self,
        offers: Offers | None,
        policy_of: Callable[[Offers | None], Policy],
        *,
        total_samples: int | None = None,
        warmup_samples: int = 0,
        reconfiguration_s: float = 0.0,
        every: int = EVERY,
        proof: int = PROOF,
    ) -> None:
        self._profiled, self._policy_of, self._policy = offers, policy_of, policy_of(offers)
        self.total_samples = total_samples
        """May change when a run goes on for longer."""
        self._warmup_samples = warmup_samples
        self._every, self._proof = every, proof
        self._cost_s = reconfiguration_s
        """What a change of layout will take: as the last one; before there was one, as it was said."""
        self._reconfiguring_s = 0.0
        self._paid_s = 0.0
        """What of that the worth of the run has taken in."""
        self._stretches: list[_Stretch] = []
        self._barred: set[Configuration] = set()
        self._spikes = Spikes()
        self._too_large: tuple[float, int] = (math.inf, 0)
        """Batches that made the loss rise, and until how many samples that counts."""
        self._on_the_way: Configuration | None = None
        """What the last decision chose, if only as a step to something else."""
        self._until_next = every
        self._elapsed_s = 0.0
        self._ratio: float | None = None
        """V / |g|^2 of the last step that was measured."""
        self._losses: deque[float] = deque(maxlen=RECENT)
        """Of the steps since the last window that workers have summed up."""
        self._refine([])
        self.worth = Worth()
        self.present: Option | None = None
        """What the last step was worth, by its own time; None while the noise scale cannot be believed."""

    def step(self, seen: StepTaken) -> Decision | None:
        """Take in a step; a decision, where one is due."""
        stretch = self._stretch(seen)
        stretch.took(seen.step_time_s)
        self._account(seen)
        if (began := self._spikes.wide(seen.step, seen.loss)) is not None:
            return self._rolled_back(stretch, seen, began)
        if not stretch.proven and len(stretch.counted_s) >= self._proof:
            stretch.proven = True
            self._refine(self._observations())
            if undone := self._undone(stretch, seen):
                return self._onward(stretch, seen) or undone
        if self._policy.window is not None:
            return self._behind_window(seen, stretch)
        self._until_next -= 1
        settled = stretch.proven or not stretch.moved
        if not (self._until_next <= 0 or (settled and (self._policy.restless or (self._policy.interval and seen.tested)))):
            return None
        self._until_next = max(self._every, 2 * (self._policy.interval or 0))
        return self._decide(seen, stretch)

    def changed(self, seen: Changed) -> None:
        """Take in what became of a change."""
        if Strategy.of(seen.before) != Strategy.of(seen.after) and seen.seconds:  # else it was refused before it began
            self._cost_s = seen.seconds
            self._reconfiguring_s += seen.seconds
        if seen.failure:
            self._barred.add(seen.after)
        self._losses.clear()
        if seen.failure or seen.before == seen.after:
            return
        back = bool(self._stretches) and self._stretches[-1].came_from == seen.after
        came_from = None if back else seen.before
        moved = Strategy.of(seen.before) != Strategy.of(seen.after)
        self._stretches.append(
            _Stretch(configuration=seen.after, local_batches=tuple(seen.local_batches), came_from=came_from, moved=moved)
        )
        self._until_next = max(self._every, self._proof + WARM_UP)

    def _behind_window(self, seen: StepTaken, stretch: _Stretch) -> Decision | None:
        """What a policy that goes by windows says to one that has ended."""
        decision = self._decide(seen, stretch) if seen.workers else None
        if seen.workers:
            self._losses.clear()
        if seen.loss is not None:  # the step that tells of a window is the first behind it
            self._losses.append(seen.loss)
        self._ratio = self._ratio if seen.variance_ratio is None else seen.variance_ratio
        return decision

    def _stretch(self, seen: StepTaken) -> _Stretch:
        """The present one."""
        configuration, local_batches = seen.configuration, tuple(seen.local_batches)
        last = self._stretches[-1] if self._stretches else None
        if last is None or (last.configuration, last.local_batches) != (configuration, local_batches):
            self._stretches.append(_Stretch(configuration=configuration, local_batches=local_batches, came_from=None))
        return self._stretches[-1]

    def _situation(self, seen: StepTaken, stretch: _Stretch) -> Situation:
        counted = stretch.counted_s
        return Situation(
            configuration=seen.configuration,
            noise_scale=seen.noise_scale,
            health=seen.health,
            variance_ratio=seen.variance_ratio if self._policy.window is None else self._ratio,
            worker_variance_ratio=seen.worker_variance_ratio,
            local_batches=stretch.local_batches,
            workers=tuple(seen.workers),
            losses=tuple(self._losses),
            accuracy=seen.accuracy,
            steps_per_s=len(counted) / sum(counted) if counted else None,
            elapsed_s=seen.elapsed_s,
            reconfiguring_s=self._reconfiguring_s,
            reconfiguration_s=self._cost_s,
            samples=seen.samples,
            warming_up_samples=max(0, self._warmup_samples - seen.samples),
            remaining_samples=None if self.total_samples is None else max(0, self.total_samples - seen.samples),
            barred=frozenset(self._barred),
            too_large=self._too_large[0] if seen.samples < self._too_large[1] else math.inf,
        )

    def _observations(self) -> list[Observation]:
        long = [stretch for stretch in self._stretches if len(stretch.counted_s) > 1 and not stretch.local_batches]
        return [Observation.of(stretch.configuration, list(stretch.counted_s)) for stretch in long]

    def _refine(self, observations: Sequence[Observation]) -> None:
        self._offers = self._profiled and self._profiled.refined(observations)
        if self._policy.window is None:  # else it goes by workers, not by the table
            self._policy = self._policy_of(self._offers)

    def _rolled_back(self, stretch: _Stretch, seen: StepTaken, began: int) -> Decision:
        """Back to the weights from before a wide spike, and to the smaller batch where it came soon after a larger one."""
        present, before = stretch.configuration, stretch.came_from
        told = f"the loss has risen at step {began} and stays up"
        grown = before is not None and before.global_batch < present.global_batch
        wanted, weights = present, "back to the weights from before"
        if before is not None and grown and stretch.steps - (seen.step - began) <= AFTERMATH:
            wanted, weights = before, f"back to batch {before.global_batch} from {present.global_batch}, and to the weights from before"
            self._too_large = present.global_batch, 2 * seen.samples
        reason = f"{told}: {weights}"
        shares = next((each.local_batches for each in reversed(self._stretches) if each.configuration == wanted), ())
        back = Decision(
            command=Command.ROLL_BACK,
            configuration=wanted,
            local_batches=shares,
            reason=reason,
            limits=(Limit.SPIKE,),
            before_step=began,
        )
        return self._weighed(back, self._situation(seen, stretch))

    def _undone(self, stretch: _Stretch, seen: StepTaken) -> Decision | None:
        """Back to where the job came from, if the policy wants that; None if the change stands."""
        if stretch.came_from is None or seen.believed is None:
            return None
        situation = self._situation(seen, stretch)
        undone = self._policy.undo(situation, stretch.came_from)
        return undone and self._weighed(undone, situation)

    def _onward(self, stretch: _Stretch, seen: StepTaken) -> Decision | None:
        """On from a configuration that is worse than the one before, where it was but a step on the way."""
        if self._on_the_way != stretch.configuration:
            return None
        decision = self._decide(seen, stretch)
        return None if decision.command == Command.NO_OP or decision.configuration == stretch.came_from else decision

    def _decide(self, seen: StepTaken, stretch: _Stretch) -> Decision:
        situation = self._situation(seen, stretch)
        decision = self._policy.decide(situation)
        self._on_the_way = decision.configuration if decision.onward else None
        return self._weighed(decision, situation)

    def _weighed(self, decision: Decision, situation: Situation) -> Decision:
        """The same with what there was to choose from, whatever the policy goes by; without where nobody knows what a batch is worth."""
        offers, noise_scale = self._offers, situation.noise_scale
        if decision.best or offers is None or noise_scale is None or situation.health != HEALTHY:
            return decision
        current, chosen = (
            offers.current(each, noise_scale, situation.steps_per_s if each == situation.configuration else None)
            for each in (situation.configuration, decision.configuration)
        )
        return dataclasses.replace(decision, current=current, chosen=chosen, best=offers.best(offers.goodputs(noise_scale)))

    def _account(self, seen: StepTaken) -> None:
        """Add a step to the worth of the run, and the time since the last one to what it might have been worth."""
        passed_s, self._elapsed_s = max(0.0, seen.elapsed_s - self._elapsed_s), seen.elapsed_s
        self.present, offers = None, self._offers
        if seen.believed is None or offers is None:
            return
        self.present = present = offers.measured(seen.configuration, seen.believed, 1 / seen.step_time_s)
        actual = present.goodput * seen.step_time_s
        in_vain_s, self._paid_s = self._reconfiguring_s - self._paid_s, self._reconfiguring_s
        first = offers.current(self._stretches[0].configuration, seen.believed, None) or present
        known = offers.current(seen.configuration, seen.believed, None) or present
        best = float(offers.goodputs(seen.believed).max())
        self.worth = Worth(
            actual=self.worth.actual + actual,
            stayed=self.worth.stayed + (first.goodput * passed_s if self.has_changed else actual + present.goodput * in_vain_s),
            ideal=self.worth.ideal + max(best, known.goodput) * passed_s,
        )

    @property
    def has_changed(self) -> bool:
        """The job has trained in more than the configuration that it began in."""
        return len(self._stretches) > 1

    def to_dict(self) -> dict[str, Any]:
        """What it accounts for, for JSON."""
        return {**dataclasses.asdict(self.worth), "gain": self.worth.gain, "regret": self.worth.regret, "changed": self.has_changed}
