"""Search each task in two sizes and plainly, with the same noise, and record regret and GPU-hours (`oppa bench proxy`).

The search at the smaller size has a third of the plain one's trials, as in `oppa tune`. The best three by its prediction then run at full
size. Neither includes the repeats of verification, which are the same for both. Regret is the loss of true throughput against the full-size
best. What the plain search returns at the GPU-hours of both sizes together is recorded, too.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.proxy.tasks import TwoSizes, load
from oppa.atomic_write import write_atomically
from oppa.bench.run_designer import TrialRecord, observation, run_designer
from oppa.errors import InputError
from oppa.report.record import write_texts, written
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.proxy.budget import smaller_trials
from oppa.tuning.proxy.upward import ATTEMPTS, Upward
from oppa.tuning.spending import gpu_hours
from oppa.tuning.stopping import make_rule

TRIALS = 30
"""Trials of the plain search."""
LOG = "comparisons.jsonl"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TwoSizeComparison:
    """Compares a search in two sizes with a plain one, on one task with one seed."""

    task: str
    seed: int
    hosts: tuple[int, int]
    """Hosts at full size and at the smaller one."""
    layers: tuple[int, int]
    matched: float
    """Share of the full-size configurations that have a stand-in."""
    regret: float
    """Loss of throughput of the configuration that the search in two sizes returns, against the best; 1 if it returns none."""
    first_regret: float
    """`regret` of the best configuration after the first trial at full size."""
    failed: int
    """Trials at full size that measured nothing."""
    gpu_hours: tuple[float, float]
    """GPU-hours at the smaller size and at full size."""
    plain_regret: float
    plain_gpu_hours: float
    plain_regret_at_same: float
    """Regret of the plain search at the GPU-hours of both sizes together."""
    exhaustive_gpu_hours: float

    @property
    def share(self) -> float:
        """Return the GPU-hours of both sizes as a share of the plain search's."""
        return sum(self.gpu_hours) / self.plain_gpu_hours

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**dataclasses.asdict(self), "share": self.share}


def compare(sizes: TwoSizes, seed: int, trials: int = TRIALS) -> TwoSizeComparison:
    """Search a task in two sizes and plainly, with one seed."""
    full, small, proxy = sizes.full, sizes.small, sizes.proxy
    rule = make_rule("sure", full.problem.limits)
    plain = run_designer(full, Oppa(full.problem, full.candidates, seed=seed), rule, seed=seed, trials=trials)
    below = run_designer(small, Oppa(small.problem, small.candidates, seed=seed), rule, seed=seed, trials=smaller_trials(trials))
    observed = [observation(each.candidate, each.result, each.prediction) for each in below]
    upward = Upward(full.problem, full.candidates, proxy, observed)
    above = run_designer(full, upward, rule, seed=seed, trials=ATTEMPTS)
    spent = hours(small, below), hours(full, above)
    return TwoSizeComparison(
        task=sizes.name,
        seed=seed,
        hosts=(full.problem.cluster.hosts, small.problem.cluster.hosts),
        layers=(full.problem.model.layers, small.problem.model.layers),
        matched=float(proxy.matched.mean()),
        regret=regret(full, above),
        first_regret=regret(full, above[:1]),
        failed=sum(each.result.estimate is None for each in above),
        gpu_hours=spent,
        plain_regret=regret(full, plain),
        plain_gpu_hours=hours(full, plain),
        plain_regret_at_same=regret(full, within(full, plain, sum(spent))),
        exhaustive_gpu_hours=exhaustive_hours(full, plain),
    )


def hours(task: BenchmarkTask, records: Sequence[TrialRecord]) -> float:
    """Return the GPU-hours of trials."""
    return gpu_hours(task.problem.cluster, sum(each.result.seconds for each in records))


def within(task: BenchmarkTask, records: Sequence[TrialRecord], limit: float) -> Sequence[TrialRecord]:
    """Return the first trials that end within so many GPU-hours."""
    return [each for at, each in enumerate(records) if hours(task, records[: at + 1]) <= limit]


def regret(task: BenchmarkTask, records: Sequence[TrialRecord]) -> float:
    """Return the loss of true throughput of the last incumbent against the best; 1 if there is none."""
    if not records or records[-1].incumbent is None:
        return 1.0
    return float(1 - task.steps_per_s[records[-1].incumbent] / task.best)


def exhaustive_hours(task: BenchmarkTask, records: Sequence[TrialRecord]) -> float:
    """Return the GPU-hours of a complete trial of every configuration, with the median start-up of a search's trials."""
    start_s = float(np.median([each.result.setup_s for each in records if each.result.setup_s is not None]))
    steps_s = float(np.nansum(task.problem.limits.q_max / task.steps_per_s))
    return gpu_hours(task.problem.cluster, len(task.candidates) * start_s + steps_s)


def comparisons(
    names: Sequence[str], seeds: int, out: Path | None, tell: Callable[[str], None], files: Mapping[str, str]
) -> list[TwoSizeComparison]:
    """Return all comparisons; those in the log of the record's folder are not run again, and new ones are added to it.

    Args:
        files: Digests of the files that decide the result, by name.

    Raises:
        InputError: The log has comparisons with other files, or cannot be written.
    """
    done = read_log(out, files)
    if out:
        write_texts(out, {})  # refuses a folder that cannot be written before anything runs
    for name in names:
        missing = [seed for seed in range(seeds) if (name, seed) not in done]
        sizes = load(name) if missing else None
        for seed in missing:
            assert sizes is not None
            tell(f"{name}, seed {seed}")
            done[name, seed] = compare(sizes, seed)
            if out:
                _append(out, dataclasses.asdict(done[name, seed]), files)
    return [done[name, seed] for name in names for seed in range(seeds)]


def read_log(out: Path | None, files: Mapping[str, str]) -> dict[tuple[str, int], TwoSizeComparison]:
    """Return the comparisons in a log, by task and seed; raises InputError if they are with other files."""
    lines = _lines(out)
    if out is None or not lines:
        return {}
    before = json.loads(lines[0]).get("files", {})
    if changed := sorted(name for name in {*before, *files} if before.get(name) != files.get(name)):
        raise InputError(
            f"`{out / LOG}` has comparisons with other files: {', '.join(changed)}", hint="remove it to repeat all its comparisons"
        )
    read = [TwoSizeComparison(**_tuples(json.loads(line))) for line in lines[1:]]
    return {(each.task, each.seed): each for each in read}


def _append(out: Path, entry: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Append an entry to the log, whose first line has the digests of the files; raises InputError if it cannot be written."""
    lines = [*(_lines(out) or [json.dumps({"files": dict(files)})]), json.dumps(dict(entry))]
    with written(out):
        write_atomically(out / LOG, "".join(f"{line}\n" for line in lines).encode())


def _lines(out: Path | None) -> list[str]:
    """Return the complete lines of the log; an interrupted call may have left an incomplete one."""
    text = (out / LOG).read_text() if out and (out / LOG).is_file() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a comparison, as JSON has lists for its tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
