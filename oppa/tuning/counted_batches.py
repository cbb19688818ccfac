"""Refuse a search whose steps come from a progress bar over batches, of which gradient accumulation makes a step.

A bar shows the number of its ticks in an epoch. If it counts optimizer steps, that number is the same in all configurations, as the global
batch is. If it counts batches, it is inversely proportional to the samples that all ranks take at once.

Notation, for a trial:
    total      ticks of an epoch
    at_once    samples of all ranks in one micro-batch
"""

import itertools
from collections.abc import Iterable

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.trials.output import recognised

FEWEST = 3
"""Ticks from which on a total tells batches from steps; rounding hides the difference below."""
HINT = (
    "state it: `--set command.steps.format=progress-bar --set command.steps.batches_per_step={num_microbatches}`,\n"
    "      with a new study; if each tick is a step, state 1 in place of `{num_microbatches}`"
)


def refuse_counted_batches(problem: Problem, study: Study, trials: Iterable[Trial], totals: dict[int, int | None]) -> None:
    """Raise InputError if the totals of two trials show that the bar of the user's program counts batches.

    Args:
        totals: Totals that were read before, by the number of the trial; this call adds those of new trials.
    """
    if problem.command is None or problem.command.steps is not None:
        return
    timed = [trial for trial in trials if trial.step_times_s]
    totals |= {trial.id: recognised(study.trial_folder(trial))[1] for trial in timed if trial.id not in totals}
    shown = ((trial.configuration, totals[trial.id]) for trial in timed)
    bars = [(configuration, total) for configuration, total in shown if total is not None and total >= FEWEST]
    for one, other in itertools.pairwise(sorted(bars, key=lambda bar: bar[0].global_batch)):
        if _count_batches(one, other):
            raise InputError(_in_words(one, other), hint=HINT)


def _count_batches(one: tuple[Configuration, int], other: tuple[Configuration, int]) -> bool:
    """Return whether two totals differ as the samples at once do, but for an epoch's last batch."""
    (first, total), (second, other_total) = one, other
    if first.global_batch != second.global_batch or total == other_total:
        return False
    return abs(total * _at_once(first) - other_total * _at_once(second)) < max(_at_once(first), _at_once(second))


def _in_words(one: tuple[Configuration, int], other: tuple[Configuration, int]) -> str:
    """Return what shows that the bar counts batches."""
    totals = " and ".join(f"{total:,} in `{configuration.id}`" for configuration, total in (one, other))
    return f"the progress bar of the program counts batches, and oppa took each for an optimizer step: its total is {totals}"


def _at_once(configuration: Configuration) -> int:
    return configuration.micro_batch * configuration.dp
