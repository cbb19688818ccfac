"""Test if a learned policy would be worse than the baseline policy, on runs recorded under neither (off-policy evaluation).

The runs are those of an exploring policy, which draws each worker's step uniformly at random. For each window and worker, such a run has
one step and its reward. The reward of another step is estimated doubly robustly (Dudik, Langford and Li 2011):

    V(pi)  =  mean over windows of  q(s, pi(s))  +  sum over workers of 1[a = pi(s)] / mu(a)  (r - q(s, a))

Notation (N windows):
    s, a       a worker's observation and the reward of its window; the step that was drawn for it
    r          the reward of the following window, averaged over workers: all of them wait for the slowest, and share the batch
    mu         the probability of the step: 1 / (number of steps), and more where bounds make several steps equal
    q          a linear model of r, fitted to other windows (cross-fitted, in blocks)

The effects of the workers' steps on the reward are assumed to be additive. Each step is evaluated while the steps of the other workers are
random, and their contribution is the same under both policies. Both policies are evaluated on the same windows, so that the interval of
their difference (a bootstrap over blocks of windows) excludes common variation. The estimate covers one window ahead, and ignores effects
of a step on later windows.
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import HEALTHY, JobState, Policy
from oppa.control.rl.actions import Actions
from oppa.control.rl.observation import observations
from oppa.control.rl.policy import LearnedPolicy
from oppa.control.rl.reward import Reward, sample_s
from oppa.control.rl.weights import Weights
from oppa.control.segment import RECENT
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.protocol.worker import WorkerState
from oppa.random_streams import stream
from oppa.training.run import ledger
from oppa.training.run.ledger import Line

Array = NDArray[np.float64]

LEAST_WINDOWS = 30
"""Minimum number of windows for a verdict."""
MARGIN = 0.1
"""Tolerated loss of reward per window, in standard deviations of a worker's reward; up to it a policy counts as not worse."""
LEVEL = 0.05
"""Tail probability on either side of the interval."""
FOLDS, RIDGE, RESAMPLES = 5, 10.0, 2000
"""Folds of the cross-fit, ridge penalty, and bootstrap resamples."""
BLOCK = 5
"""Windows of a bootstrap block: consecutive windows are correlated, so they are resampled together."""
CARRIED_OUT = 0.5
"""Minimum share of windows whose drawn steps must have been carried out."""

Drawn = Callable[[JobState], Sequence[int]]
"""Function that returns the numbers of the steps that a policy drew in a state."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWindow:
    """Holds a window of a run, the steps drawn after it, and their rewards."""

    state: JobState
    drawn: tuple[int, ...]
    """Number of the drawn step for each worker."""
    chosen: tuple[int, ...]
    """The same, but the smallest of the steps that bounds make equal to the drawn one."""
    probabilities: tuple[float, ...]
    """Probability of each chosen step."""
    rewards: tuple[float, ...]
    """Reward of each worker in the following window, at the gradient noise known when the step was drawn; no step changes that."""
    before: tuple[float, ...]
    """Reward of each worker in the window of `state`; it predicts most of the next one."""
    number: int
    """Number of the window in its run, of which others may be left out."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict:
    """Holds the result of comparing a policy with another on recorded runs."""

    gain: float
    """Estimated gain in the reward of a window, averaged over workers."""
    low: float
    high: float
    """Bounds `low` and `high` of the 90% interval of `gain`."""
    margin: float
    """Tolerated loss of reward per window."""
    windows: int
    agreeing: int
    """Number of pairs of window and worker in which the drawn step equals the policy's own."""

    @property
    def passed(self) -> bool:
        """Return True if the policy is not worse, within the margin."""
        return self.low >= -self.margin

    @property
    def words(self) -> str:
        """Return a human-readable summary."""
        interval = f"{self.gain:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"
        seen = f"{self.windows} windows, in which {self.agreeing} workers drew the step that the policy chooses"
        return f"the reward of a window changes by {interval}; down to {-self.margin:.3f} counts as not worse ({seen})"


def recorded(lines: Iterable[Line], actions: Actions, reward: Reward, drawn: Drawn) -> list[RecordedWindow]:
    """Return the windows of a run whose drawn steps were carried out before the next window began.

    Args:
        lines: Ledger of the run.
        actions: Actions that were drawn from.
        reward: Reward function.
        drawn: Function that repeats the draw for a state.

    Raises:
        InputError: if most steps were not carried out: the run used other weights, or its changes were refused or late.
    """
    states = list(_states(lines))
    if not states:
        return []
    first_s = sample_s(states[0])
    found, checked = list[RecordedWindow](), 0
    for number, (before, following) in enumerate(itertools.pairwise(states)):
        if len(before.workers) != len(following.workers):  # the run restarted with another number of ranks
            continue
        sizes = [tuple(worker.local_batch for worker in each.workers) for each in (before, following)]
        numbers, checked = tuple(drawn(before)), checked + 1
        if actions.after(sizes[0], numbers) != sizes[1]:
            continue
        chosen = actions.chosen(*sizes)
        likely = tuple(actions.alike(batch, number) / len(actions.steps) for batch, number in zip(sizes[0], chosen, strict=True))
        noise = {name: getattr(before, name) for name in ("noise_scale", "health", "variance_ratio")}
        rewards, early = (
            tuple(reward.of(each, least=actions.least, first_sample_s=first_s))
            for each in (dataclasses.replace(following, **noise), before)
        )
        found.append(
            RecordedWindow(
                state=before,
                drawn=numbers,
                chosen=tuple(chosen),
                probabilities=likely,
                rewards=rewards,
                before=early,
                number=number,
            )
        )
    if len(found) < CARRIED_OUT * checked:
        message = f"only {len(found)} of {checked} windows carried out the steps that were drawn"
        raise InputError(message, hint="use runs with the same weights and windows of several steps, whose changes were not refused")
    return found


def verdict(runs: Sequence[Sequence[RecordedWindow]], weights: Weights, baseline: Policy) -> PolicyVerdict:
    """Compare a learned policy with the baseline policy.

    Args:
        runs: Recorded windows of each run.
        weights: Weights of the learned policy.
        baseline: Baseline policy.

    Raises:
        InputError: for fewer than LEAST_WINDOWS windows.
    """
    windows = [each for run in runs for each in run]
    if len(windows) < LEAST_WINDOWS:
        hint = "record longer runs: `oppa train JOB --policy explore --weights FILE`"
        raise InputError(f"the recorded runs have {len(windows)} windows, fewer than the {LEAST_WINDOWS} that a verdict needs", hint=hint)
    actions = weights.actions
    rows = [np.column_stack((weights.normalised(observations(each.state, actions)), each.before)) for each in windows]
    own, other = ([_steps(policy, each.state, actions) for each in windows] for policy in (LearnedPolicy(weights=weights), baseline))
    valued = _values(rows, windows, (own, other), len(actions.steps))
    differences = np.array([first - second for first, second in zip(*valued, strict=True)])
    # not scipy's bootstrap: it draws as many blocks as there are, and these overlap, so that a sample needs only len / BLOCK of them
    blocks = stream(0, "bootstrap").integers(len(differences), size=(RESAMPLES, -(-len(differences) // BLOCK), 1))
    picks = ((blocks + np.arange(BLOCK)) % len(differences)).reshape(RESAMPLES, -1)
    low, high = np.quantile(differences[picks].mean(1), [LEVEL, 1 - LEVEL])
    spread = float(np.std([reward for each in windows for reward in each.rewards]))
    return PolicyVerdict(
        gain=float(differences.mean()),
        low=float(low),
        high=float(high),
        margin=MARGIN * spread,
        windows=len(windows),
        agreeing=sum(one == drawn for each, mine in zip(windows, own, strict=True) for one, drawn in zip(mine, each.chosen, strict=True)),
    )


def _values(
    rows: Sequence[Array], windows: Sequence[RecordedWindow], policies: tuple[Sequence[Sequence[int]], ...], steps: int
) -> tuple[list[float], ...]:
    """Return the estimated reward of each window under each policy, including terms common to all policies."""
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
    """Return the features of the linear reward model.

    They are an intercept and the mean of the workers' rows. Each step adds the number and the sum of the rows that take it.
    """
    own = np.zeros((steps, rows.shape[1] + 1))
    np.add.at(own, list(chosen), np.column_stack((np.ones(len(rows)), rows)))
    return np.concatenate(([1.0], rows.mean(0), own.ravel()))


def ridge(seen: Array, wanted: Array) -> Array:
    """Return the coefficients (d,) of a ridge regression of values (n,) on features (n, d); the first is an unpenalised intercept."""
    penalties = np.full(seen.shape[1], RIDGE)
    penalties[0] = 0.0
    return np.asarray(np.linalg.solve(seen.T @ seen + np.diag(penalties), seen.T @ wanted))


def _steps(policy: Policy, state: JobState, actions: Actions) -> list[int]:
    """Return the numbers of the steps that come closest to a policy's decision."""
    before = [worker.local_batch for worker in state.workers]
    return actions.chosen(before, policy.decide(state).local_batches or before)


def _states(lines: Iterable[Line]) -> Iterable[JobState]:
    """Yield the state at the end of each window of a run."""
    losses, accuracy, ratio = deque[float](maxlen=RECENT), None, None
    for line in lines:
        if line["event"] == ledger.VALIDATED:
            accuracy = line.get("accuracy")
        if line["event"] in (ledger.STARTED, ledger.CHANGED):
            losses.clear()
        if line["event"] != ledger.STEP:
            continue
        if workers := line.get("workers"):
            states = tuple(WorkerState(**each) for each in workers)
            batches = tuple(each.local_batch for each in states)
            yield JobState(
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
