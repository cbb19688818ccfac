"""Whether a learned policy would have done worse than the one in force, by runs that were recorded under neither (off-policy).

The runs are those of an exploring policy, which draws each worker's step by lot. Of each window and worker the run then knows one step and
what it was worth; what another would have been worth is estimated doubly robustly (Dudik, Langford and Li 2011):

    V(pi)  =  mean over windows of  q(s, pi(s))  +  sum over workers of 1[a = pi(s)] / mu(a)  (r - q(s, a))

Notation (N windows):
    s, a       what a worker said and what its window was worth, the step that was drawn for it
    r          the reward of the window behind it, in the mean over workers: all of them wait for the slowest, and share the batch
    mu         the probability of the step: 1 / (number of steps), and more where bounds make several alike
    q          a linear model of r, of windows that are not looked at (cross-fitted, in blocks)

What the workers' steps do to the reward is taken as additive: each is valued while the others' are drawn by lot, and what these add is the
same under both policies. Both are valued on the same windows, so the interval of their difference (a bootstrap over blocks of windows)
knows what they share. It looks one window ahead: what a step does to later windows it does not see.
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oppa.control.controller import RECENT
from oppa.control.decision import HEALTHY, Policy, Situation
from oppa.control.learned.actions import Actions
from oppa.control.learned.observation import observations
from oppa.control.learned.policy import LearnedPolicy
from oppa.control.learned.reward import Reward, sample_s
from oppa.control.learned.weights import Weights
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.protocol.worker import WorkerState
from oppa.streams import stream
from oppa.training import ledger
from oppa.training.ledger import Line

Array = NDArray[np.float64]

LEAST_WINDOWS = 30
"""Fewer say nothing."""
MARGIN = 0.1
"""Standard deviations of a worker's reward that a window may be worth less, and a policy still count as not worse."""
LEVEL = 0.05
FOLDS, RIDGE, RESAMPLES = 5, 10.0, 2000
BLOCK = 5
"""Windows that follow each other are alike: they are resampled together."""
CARRIED_OUT = 0.5
"""Windows, at least, that must have gone as was drawn."""

Drawn = Callable[[Situation], Sequence[int]]
"""The steps that a policy has drawn in a situation, by their numbers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A window of a run, what was drawn behind it, and what that was worth."""

    situation: Situation
    drawn: tuple[int, ...]
    """The number of a step for each worker."""
    chosen: tuple[int, ...]
    """Of those that bounds make like it, the smallest."""
    probabilities: tuple[float, ...]
    """Of these."""
    rewards: tuple[float, ...]
    """Of each worker, in the window behind it; at the noise that was known when the step was drawn, which no step changes."""
    before: tuple[float, ...]
    """The same of the window that the situation tells of: most of what the next one will be."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What recorded runs say of a policy against another."""

    gain: float
    """By how much a window is worth more under it, in the mean over workers."""
    low: float
    high: float
    """The interval of that, of 90%."""
    margin: float
    """What it may be worth less."""
    windows: int
    agreeing: int
    """Windows of single workers in which the drawn step was the policy's own."""

    @property
    def passed(self) -> bool:
        """Whether it is not worse."""
        return self.low >= -self.margin

    @property
    def words(self) -> str:
        """For people."""
        interval = f"{self.gain:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"
        seen = f"{self.windows} windows, in which {self.agreeing} workers drew the step that it would have taken"
        return f"a window is worth {interval} more, and may be worth {self.margin:.3f} less ({seen})"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "passed": self.passed}


def recorded(lines: Iterable[Line], actions: Actions, reward: Reward, drawn: Drawn) -> list[Recorded]:
    """What a run's ledger tells of the steps that were drawn, where they were carried out before the next window began.

    Raises:
        InputError: most were not: it is a run of other weights, or its changes were refused or came late.
    """
    situations = list(_situations(lines))
    if not situations:
        return []
    first_s = sample_s(situations[0])
    found, looked_at = list[Recorded](), 0
    for before, behind in itertools.pairwise(situations):
        if len(before.workers) != len(behind.workers):  # another attempt, with other ranks
            continue
        sizes = [tuple(worker.local_batch for worker in each.workers) for each in (before, behind)]
        numbers, looked_at = tuple(drawn(before)), looked_at + 1
        if actions.after(sizes[0], numbers) != sizes[1]:
            continue
        chosen = actions.chosen(*sizes)
        likely = tuple(actions.alike(batch, number) / len(actions.steps) for batch, number in zip(sizes[0], chosen, strict=True))
        noise = {name: getattr(before, name) for name in ("noise_scale", "health", "variance_ratio")}
        rewards, early = (
            tuple(reward.of(each, least=actions.least, first_sample_s=first_s)) for each in (dataclasses.replace(behind, **noise), before)
        )
        found.append(Recorded(situation=before, drawn=numbers, chosen=tuple(chosen), probabilities=likely, rewards=rewards, before=early))
    if len(found) < CARRIED_OUT * looked_at:
        message = f"of {looked_at} windows {len(found)} went as was drawn"
        raise InputError(message, hint="take runs of these very weights, in windows of some steps, whose changes were not refused")
    return found


def verdict(runs: Sequence[Sequence[Recorded]], weights: Weights, in_force: Policy) -> Verdict:
    """A learned policy against the one in force.

    Raises:
        InputError: for fewer than LEAST_WINDOWS windows.
    """
    windows = [each for run in runs for each in run]
    if len(windows) < LEAST_WINDOWS:
        hint = "record longer ones: `oppa train JOB --policy explore --weights FILE`"
        raise InputError(f"the recorded runs have {len(windows)} windows, and fewer than {LEAST_WINDOWS} say nothing", hint=hint)
    actions = weights.actions
    rows = [np.column_stack((weights.normalised(observations(each.situation, actions)), each.before)) for each in windows]
    own, other = ([_steps(policy, each.situation, actions) for each in windows] for policy in (LearnedPolicy(weights=weights), in_force))
    valued = _values(rows, windows, (own, other), len(actions.steps))
    differences = np.array([first - second for first, second in zip(*valued, strict=True)])
    blocks = stream(0, "bootstrap").integers(len(differences), size=(RESAMPLES, -(-len(differences) // BLOCK), 1))
    picks = ((blocks + np.arange(BLOCK)) % len(differences)).reshape(RESAMPLES, -1)
    low, high = np.quantile(differences[picks].mean(1), [LEVEL, 1 - LEVEL])
    spread = float(np.std([reward for each in windows for reward in each.rewards]))
    return Verdict(
        gain=float(differences.mean()),
        low=float(low),
        high=float(high),
        margin=MARGIN * spread,
        windows=len(windows),
        agreeing=sum(one == drawn for each, mine in zip(windows, own, strict=True) for one, drawn in zip(mine, each.chosen, strict=True)),
    )


def _values(
    rows: Sequence[Array], windows: Sequence[Recorded], policies: tuple[Sequence[Sequence[int]], ...], steps: int
) -> tuple[list[float], ...]:
    """Of each window under each policy; what does not depend on the policy is left in."""
    found: tuple[list[float], ...] = tuple([0.0] * len(windows) for _ in policies)
    rewards = np.array([np.mean(each.rewards) for each in windows])
    seen = np.array([_features(row, each.chosen, steps) for row, each in zip(rows, windows, strict=True)])
    for fold in range(FOLDS):
        held = range(fold * len(windows) // FOLDS, (fold + 1) * len(windows) // FOLDS)
        known = np.setdiff1d(np.arange(len(windows)), held)
        q = ridge(seen[known], rewards[known])
        for index in held:
            unexplained = rewards[index] - seen[index] @ q
            for values, chosen in zip(found, policies, strict=True):
                likes = np.equal(windows[index].chosen, chosen[index]) / np.array(windows[index].probabilities)
                values[index] = float(_features(rows[index], chosen[index], steps) @ q + likes.sum() * unexplained)
    return found


def _features(rows: Array, chosen: Sequence[int], steps: int) -> Array:
    """What a reward is linear in: what workers say, in the mean, and for each step what those say, in the sum, who take it."""
    own = np.zeros((steps, rows.shape[1] + 1))
    np.add.at(own, list(chosen), np.column_stack((np.ones(len(rows)), rows)))
    return np.concatenate(([1.0], rows.mean(0), own.ravel()))


def ridge(seen: Array, wanted: Array) -> Array:
    """Coefficients (d,) of a ridge regression of values (n,) on features (n, d), the first of which is the intercept, left free."""
    penalties = np.full(seen.shape[1], RIDGE)
    penalties[0] = 0.0
    return np.asarray(np.linalg.solve(seen.T @ seen + np.diag(penalties), seen.T @ wanted))


def _steps(policy: Policy, situation: Situation, actions: Actions) -> list[int]:
    """The numbers of the steps that come closest to what a policy wants."""
    before = [worker.local_batch for worker in situation.workers]
    return actions.chosen(before, policy.decide(situation).local_batches or before)


def _situations(lines: Iterable[Line]) -> Iterable[Situation]:
    """The windows of a run."""
    losses, accuracy, ratio = deque[float](maxlen=RECENT), None, None
    for line in lines:
        if line["event"] == ledger.VALIDATED:
            accuracy = line.get("accuracy")
        if line["event"] in (ledger.STARTED, ledger.CHANGED):
            losses.clear()
        if line["event"] != ledger.STEP:
            continue
        if workers := line.get("workers"):
            states = tuple(WorkerState.from_dict(each) for each in workers)
            batches = tuple(each.local_batch for each in states)
            yield Situation(
                configuration=Configuration(dp=len(states), global_batch=sum(batches), micro_batch=line["micro_batch"]),
                noise_scale=line.get("noise_scale"),
                health=line.get("health", HEALTHY),
                variance_ratio=ratio,
                local_batches=batches,
                workers=states,
                losses=tuple(losses),
                accuracy=accuracy,
                samples=line["samples"][1],
            )
            losses.clear()
        if line["loss"] is not None:
            losses.append(line["loss"])
        ratio = line.get("variance_ratio") if line.get("variance_ratio") is not None else ratio
