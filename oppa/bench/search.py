"""Does the search find the fastest in fewer trials than its peers? Replays of the CPU job measured whole, and of published runs."""

import concurrent.futures
import dataclasses
import functools
import math
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from oppa.bench import published
from oppa.bench.replay import Answer, Task, coverage, replay, trials_to
from oppa.bench.tasks import cpu_task, nanotron_tasks
from oppa.report.record import Section
from oppa.tuning.designers import STOPPING, make_designer
from oppa.tuning.stopping import make_rule

PEERS = ("oppa", "oppa-paper", "vanilla-bo", "random")
WITHIN = 0.05
JUDGED = 25
"""Trials of a replay whose intervals are judged: a longer search than most budgets allow."""
WARM = 5
"""Trials before intervals are judged."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What one replay by one designer came to."""

    task: str
    designer: str
    seed: int
    trials: float
    """Until the incumbent was within WITHIN of the best; infinite if it never was."""
    inside: int
    judged: int
    stopped: int


def search(seeds: int) -> list[Section]:
    """The designers on the CPU job, `seeds` times each, and `oppa` once on every published task where the data is present."""
    jobs = [("cpu", designer, seed) for designer in PEERS for seed in range(seeds)]
    present = not published.missing()
    names = [task.name for task in nanotron_tasks()] if present else []
    jobs += [(name, "oppa", 0) for name in names]
    outcomes = _all(jobs)
    lacking = (
        "" if present else f"Skipped: the published runs; {', '.join(published.missing())} is not in `{published.folder()}` (OPPA_DATA)."
    )
    sections = [_peers(outcomes, seeds), _pairs(outcomes)]
    return [*sections, _coverage(outcomes, names, lacking)]


def _all(jobs: Sequence[tuple[str, str, int]]) -> list[Outcome]:
    """Every replay, in as many processes as there are cores; each is single-threaded and depends on its seed alone."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=context) as pool:
        return list(pool.map(_replayed, *zip(*jobs, strict=True)))


def _replayed(name: str, designer_name: str, seed: int) -> Outcome:
    task = _tasks()[name]
    designer = make_designer(designer_name, task.problem, task.candidates, seed=seed)
    rule = make_rule(STOPPING.get(designer_name, "never"), task.problem.limits)
    at_least = JUDGED if designer_name == "oppa" else 0
    trials = len(task.recorded)
    answers = replay(task, designer, trials=trials, seed=seed, rule=rule, until=WITHIN, at_least=at_least)
    inside, count = coverage(answers[:JUDGED], after=WARM)
    return Outcome(name, designer_name, seed, trials_to(task, answers, WITHIN), inside, count, _stopped(answers))


@functools.cache
def _tasks() -> dict[str, Task]:
    tasks: list[Task] = [cpu_task(Path.cwd())]
    return {task.name: task for task in (*tasks, *([] if published.missing() else nanotron_tasks()))}


def _stopped(answers: Iterable[Answer]) -> int:
    return sum(answer.outcome == "terminated_early" for answer in answers)


def _peers(outcomes: Sequence[Outcome], seeds: int) -> Section:
    rows = []
    for name in PEERS:
        trials = _sorted(outcomes, name)
        never = sum(map(math.isinf, trials))
        rows.append((name, *(f"{_quantile(trials, q):.0f}" for q in (0.25, 0.5, 0.75, 0.9)), f"{trials[-1]:.0f}", str(never)))
    text = (
        f"Trials until the incumbent's recorded throughput was within {WITHIN:.0%} of the best of 70, in {seeds} replays each. "
        "A trial draws the recorded noise of its steps and between repeats, the same for all designers."
    )
    columns = ("designer", ">25%", ">median", ">75%", ">90%", ">worst", ">never")
    return Section(title="The CPU job, replayed", text=text, columns=columns, rows=rows)


def _pairs(outcomes: Sequence[Outcome]) -> Section:
    ours = {outcome.seed: outcome.trials for outcome in outcomes if (outcome.task, outcome.designer) == ("cpu", "oppa")}
    rows = []
    for name in PEERS[1:]:
        theirs = {outcome.seed: outcome.trials for outcome in outcomes if (outcome.task, outcome.designer) == ("cpu", name)}
        saved = sorted(theirs[seed] - ours[seed] for seed in ours)
        fewer, more = sum(each > 0 for each in saved), sum(each < 0 for each in saved)
        rows.append((name, f"{_quantile(saved, 0.5):.0f}", str(fewer), str(len(saved) - fewer - more), str(more)))
    columns = ("against", ">trials saved, median", ">fewer", ">equal", ">more")
    return Section(title="In pairs", text="`oppa` against each peer under the same noise.", columns=columns, rows=rows)


def _coverage(outcomes: Sequence[Outcome], names: Sequence[str], lacking: str) -> Section:
    rows = []
    for name in ("cpu", *names):
        runs = [outcome for outcome in outcomes if (outcome.task, outcome.designer) == (name, "oppa")]
        inside, judged = sum(run.inside for run in runs), sum(run.judged for run in runs)
        trials = _quantile(sorted(run.trials for run in runs), 0.5)
        rows.append((name, f"{trials:.0f}", str(judged), f"{inside / judged:.0%}" if judged else "", str(sum(run.stopped for run in runs))))
    ours = [outcome for outcome in outcomes if outcome.designer == "oppa"]
    share = sum(each.inside for each in ours) / max(1, sum(each.judged for each in ours))
    text = (
        f"How often a measured throughput lay in its predicted 90% interval, from trial {WARM + 1} to {JUDGED}: "
        f"{share:.0%} over all. {lacking}"
    )
    columns = ("task", f">trials to {WITHIN:.0%}", ">judged", ">inside", ">ended early")
    return Section(title="Honest intervals", text=text.strip(), columns=columns, rows=rows)


def _sorted(outcomes: Sequence[Outcome], designer: str) -> list[float]:
    return sorted(outcome.trials for outcome in outcomes if (outcome.task, outcome.designer) == ("cpu", designer))


def _quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(values, q, method="higher"))
