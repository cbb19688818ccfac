"""Load a learned policy for `oppa train`, and check it on recorded runs before it may act."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.control.decision import Policy
    from oppa.control.rl.off_policy_evaluation import RecordedWindow
    from oppa.control.rl.weights import Weights
    from oppa.control.throughput_index import ThroughputIndex
    from oppa.problem.problem import Problem


def policy_maker(
    name: str, weights: Path | None, eval_runs: Sequence[Path], baseline: str, problem: "Problem"
) -> "Callable[[ThroughputIndex | None], Policy]":
    """Return the function that makes a policy of this name.

    Raises:
        InputError: the policy is not known, the weights cannot be read, or recorded runs show that a learned policy may be worse.
    """
    from oppa.control.registry import policy_of
    from oppa.control.rl.weights import Weights

    loaded = Weights.load(weights) if weights else None
    make = policy_of(name, loaded)
    learned = name.partition(",")[0] == "rl"
    if eval_runs and not learned:
        raise InputError(f"`--policy {name}` is not checked on recorded runs", hint="leave out --eval-run")
    if learned and loaded is not None:
        _require_not_worse(loaded, eval_runs, baseline, problem)
    return make


def _require_not_worse(weights: "Weights", eval_runs: Sequence[Path], baseline: str, problem: "Problem") -> None:
    """Raise InputError, with the numbers, unless recorded runs show that a policy is not worse than the policy `baseline`."""
    from oppa.cli.views import style
    from oppa.control.registry import needs_table, policy_of
    from oppa.control.rl.off_policy_evaluation import verdict

    if not eval_runs:
        hint = "record one, `oppa train JOB --policy explore --weights FILE --run RUN`, and give it: `--eval-run RUN`"
        raise InputError("`--policy rl` acts only where recorded runs say that it is not worse than what is in force", hint=hint)
    if needs_table(baseline) and baseline != "static":
        raise InputError(
            f"`--baseline-policy {baseline}` chooses from a table, which gives workers no batches of their own", hint="use static"
        )
    if len({folder.resolve() for folder in eval_runs}) < len(eval_runs):
        raise InputError("a run is named twice with `--eval-run`", hint="a copy tells nothing new: name each once")
    found = verdict([_recorded(folder, weights, problem) for folder in eval_runs], weights, policy_of(baseline)(None))
    if not found.passed:
        raise InputError(f"the learned policy would be worse than `{baseline}`: {found.words}", hint="learn longer, or train without it")
    style.err().print(f"check   not worse than {baseline}: {found.words}", markup=False, soft_wrap=True)


def _recorded(folder: Path, weights: "Weights", problem: "Problem") -> "list[RecordedWindow]":
    from oppa.control.registry import policy_of
    from oppa.control.rl.off_policy_evaluation import recorded
    from oppa.control.rl.policy import ExploringPolicy
    from oppa.table.origin import decisive
    from oppa.training.run import ledger
    from oppa.training.run.run_folder import RunSpec

    run = RunSpec.read(folder)
    if run.policy.partition(",")[0] != "explore":
        who = f"`--policy {run.policy}`" if run.policy else "no policy"
        raise InputError(f"`{folder}` was recorded under {who}", hint="only what is drawn by lot, `--policy explore`, tells of other steps")
    if decisive(run.problem)["model"] != decisive(problem)["model"]:
        raise InputError(f"`{folder}` is a run of another model", hint="record one of this job")
    explored = policy_of(run.policy, weights)(None)
    assert isinstance(explored, ExploringPolicy)
    try:
        return recorded(ledger.standing(ledger.read(folder)), weights.actions, weights.reward, explored.drawn)
    except InputError as error:
        raise InputError(f"`{folder}`: {error.message}", hint=error.hint) from None
