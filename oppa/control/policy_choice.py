"""Choose the policy of a run by name, and evaluate a learned policy on recorded runs before it may act.

A learned policy's name states its baseline policy: `rl,baseline=proportional`. The default is `static`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from oppa.control.decision import Policy
from oppa.control.registry import needs_table, policy_of
from oppa.control.rl.off_policy_evaluation import RecordedWindow, recorded, verdict
from oppa.control.rl.policy import ExploringPolicy
from oppa.control.rl.weights import Weights
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.problem.problem import Problem
from oppa.table.origin import decisive
from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec

MakePolicy = Callable[[ThroughputIndex | None], Policy]
RL, BASELINE = "rl", "baseline="


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """Holds the user's choice of a policy."""

    text: str = ""
    """Name of the policy with its settings, and with the baseline of a learned policy; empty: no policy."""
    weights: Path | None = None
    """File of the weights of a learned policy."""
    eval_runs: Sequence[Path] = ()
    """Folders of the recorded runs that evaluate a learned policy."""

    def resolve(self, problem: Problem, tell: Callable[[str], None]) -> tuple[str, MakePolicy | None]:
        """Return the policy's name, with its settings, and the function that makes the policy; None without a policy.

        Args:
            problem: The job of the run.
            tell: Called with the result of a learned policy's evaluation.

        Raises:
            InputError: the policy is unknown, the weights cannot be read, or recorded runs show that a learned policy may be worse.
        """
        if not self.text:
            if self.weights:
                raise InputError(f"`--weights {self.weights}` without a policy", hint="add `--policy rl`")
            return "", None
        text, baseline = _split(self.text)
        loaded = Weights.load(self.weights) if self.weights else None
        make = policy_of(text, loaded)
        learned = text.partition(",")[0] == RL
        if self.eval_runs and not learned:
            raise InputError(f"`--policy {text}` is not evaluated on recorded runs", hint="remove --eval-run")
        if learned and loaded is not None:
            tell(_require_not_worse(loaded, self.eval_runs, baseline, problem))
        return text, make


def _split(text: str) -> tuple[str, str]:
    """Return a learned policy's name with its settings, and the name of its baseline policy."""
    name, *settings = text.split(",")
    if name != RL:
        return text, "static"
    named = [each.removeprefix(BASELINE) for each in settings if each.startswith(BASELINE)]
    return ",".join([name, *(each for each in settings if not each.startswith(BASELINE))]), named[-1] if named else "static"


def _require_not_worse(weights: Weights, eval_runs: Sequence[Path], baseline: str, problem: Problem) -> str:
    """Return the evaluation of a policy that is not worse than the policy `baseline`; raise InputError if it may be worse."""
    if not eval_runs:
        hint = "record a run with `oppa train JOB --policy explore --weights FILE --run RUN`, then add `--eval-run RUN`"
        raise InputError("`--policy rl` needs recorded runs that show that it is not worse than the baseline policy", hint=hint)
    if needs_table(baseline) and baseline != "static":
        raise InputError(
            f"`--policy rl,baseline={baseline}`: `{baseline}` chooses from a table, which has no local batches", hint="use `static`"
        )
    if len({folder.resolve() for folder in eval_runs}) < len(eval_runs):
        raise InputError("a run is named twice with `--eval-run`", hint="name each run once")
    found = verdict([_recorded(folder, weights, problem) for folder in eval_runs], weights, policy_of(baseline)(None))
    if not found.passed:
        raise InputError(
            f"the learned policy may be worse than `{baseline}`: {found.words}", hint="train the policy longer, or use another policy"
        )
    return f"not worse than {baseline}: {found.words}"


def _recorded(folder: Path, weights: Weights, problem: Problem) -> list[RecordedWindow]:
    run = RunSpec.read(folder)
    if run.policy.partition(",")[0] != "explore":
        who = f"`--policy {run.policy}`" if run.policy else "no policy"
        raise InputError(
            f"`{folder}` was recorded under {who}",
            hint="record a run with `--policy explore`: only its random actions show the effect of other actions",
        )
    if decisive(run.problem)["model"] != decisive(problem)["model"]:
        raise InputError(f"`{folder}` is a run of another model", hint="record a run of this job")
    explored = policy_of(run.policy, weights)(None)
    assert isinstance(explored, ExploringPolicy)
    try:
        return recorded(ledger.standing(ledger.read(folder)), weights.actions, weights.reward, explored.chosen)
    except InputError as error:
        raise InputError(f"`{folder}`: {error.message}", hint=error.hint) from None
