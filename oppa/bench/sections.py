"""Make the tables of a comparison, each from its runs alone."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from oppa.bench.run_designer import RUN_S
from oppa.bench.runs import RAN, SearchRun
from oppa.bench.scores import (
    OURS,
    best_after,
    best_peer,
    break_even_s,
    grouped,
    longest_s,
    natural,
    ratio,
    summary,
    trials_to,
    until_it_pays,
    untuned,
    user_scores,
)
from oppa.problem.configuration import parse_id
from oppa.report.record import Section
from oppa.study.records import EVEN, QUANTILE

COLUMNS = ("designer", ">best at 5", ">10", ">20", ">trials to 95%", ">90% of runs", ">seconds")
WARM = 5
"""First trials of each run, which the evaluation of prediction intervals leaves out."""
MINUTES = (5, 10, 20)
CHANCES = (0.0, 0.1, 0.3, 0.7, 0.9, 0.99, math.inf)
"""Boundaries of probabilities, between which trials are counted together."""
TUNED_S, TRAINED_S = 1200.0, 4 * 3600.0
"""Seconds of search, as in the paper's figure 5, and of the whole run of four hours."""


def comparison_sections(runs: Sequence[SearchRun], apart: Sequence[SearchRun], trials: int) -> list[Section]:
    """Return a table of all designers over the tasks that count together, and one over those reported separately."""
    made = [_compared("All tasks together", runs, trials)] if runs else []
    return [*made, *([_compared("Apart: the largest clusters" if runs else "All tasks together", apart, trials)] if apart else [])]


def task_section(runs: Sequence[SearchRun], trials: int) -> Section:
    """Tabulate the median trials to 95%, by designer and task."""
    designers = list(grouped(runs))
    tasks = list(dict.fromkeys(run.task for run in sorted(runs, key=lambda run: natural(run.task))))
    rows = []
    for task in tasks:
        medians = {}
        for name in designers:
            reached = [trials_to(run, trials) for run in runs if (run.task, run.designer) == (task, name)]
            medians[name] = statistics.median(reached) if reached else None
        rows.append((task, *("" if median is None else f"{median:g}" for median in medians.values())))
    text = f"Median over the seeds of the first trial after which the incumbent is within 5% of the best; {trials + 1}: never."
    return Section(title="Task by task", text=text, columns=("task", *(f">{name}" for name in designers)), rows=rows)


def clock_section(runs: Sequence[SearchRun]) -> Section:
    """Tabulate the incumbents after five, ten and twenty minutes, by designer and task."""
    groups = grouped(runs)
    rows = []
    for task in sorted({run.task for run in runs}, key=natural):
        for minutes in MINUTES:
            found = ([best_after(run, 60 * minutes) for run in group if run.task == task] for group in groups.values())
            rows.append((task, str(minutes), *(f"{statistics.median(shares):.3f}" if shares else "" for shares in found)))
    text = "Median over the seeds of the incumbent's true throughput over the best there is, when so many minutes have passed."
    return Section(
        title="Minute by minute (figure 4)", text=text, columns=("task", ">minutes", *(f">{name}" for name in groups)), rows=rows
    )


def break_even_section(runs: Sequence[SearchRun]) -> Section:
    """Tabulate figure 5 of the paper: trials within twenty minutes, and the value of that tuning in a run of four hours."""
    rows, start = [], untuned(runs)
    for name, group in grouped(runs).items():
        trials = statistics.median(sum(end <= TUNED_S for end in run.seconds) for run in group)
        found = [best_after(run, TUNED_S) for run in group]
        worth = [share * (TRAINED_S - min(TUNED_S, run.seconds[-1])) / TRAINED_S for share, run in zip(found, group, strict=True) if share]
        overtaken = [break_even_s(run, TUNED_S, start[run.task]) for run in group if run.task in start]
        pays_s = statistics.median(overtaken) if overtaken else math.inf
        pays = f"{pays_s / 60:.0f}" if pays_s < math.inf else "never" if overtaken else ""
        cells = (f"{statistics.mean(found):.3f}", f"{statistics.mean(worth):.3f}" if worth else "", pays, str(len(group) - len(worth)))
        rows.append((name, f"{trials:g}", *cells))
    text = (
        "Twenty minutes of tuning, then training with what was found until four hours have passed since the start. Training steps are "
        "counted against four hours with the best configuration from the first second on; means over tasks and seeds. A search with "
        "nothing left to try ends sooner. It pays after so many minutes, in the median: by then it has overtaken a job "
        "that trains from the first second on, untuned."
    )
    columns = ("designer", ">trials in 20 min", ">best found", ">training steps", ">pays after", ">found nothing")
    return Section(title="What tuning is worth (figure 5)", text=text, columns=columns, rows=rows)


def user_section(runs: Sequence[SearchRun]) -> Section | None:
    """Tabulate what a search gains and costs a user."""
    start, rows, groups = untuned(runs), [], dict[str, list[SearchRun]]()
    for name, group in grouped(runs).items():
        paying = [until_it_pays(run) for run in group]
        groups[name] = paying
        if paying != group:
            groups[f"{name}, all trials"] = group
    for name, group in groups.items():
        of = user_scores(group, start)
        gains = (of[f"net_gain_s_{which}"] for which in ("median", "p10", "worst_task"))
        cells = (*("" if gain is None else f"{gain / 3600:+.2f}" for gain in gains), f"{of['out_of_memory_median']:g}")
        rows.append((name, *cells, "" if of["first_fits"] is None else f"{of['first_fits']:.0%}"))
    text = (
        f"Net gain: hours that a training run of {RUN_S / 3600:g} hours, if untuned, saves with the last incumbent, minus the hours of "
        "the search. Its median and 10th percentile are over tasks and seeds; the worst task has the lowest median. An untuned job has "
        "the user's baseline, or else the framework's default; where that does not run, the first configuration of `random` that does. "
        "Designers that predict the gain of a trial end a search once the next one does not pay for that run, as `oppa tune` does if "
        "`run_length` is stated. Peers predict none; the rows with all trials compare with them. Out of memory: median number of such "
        "trials in a search, failures included where a table does not tell them apart. First pick fits: share of searches in which the "
        "first trial that the designer chose ran. A baseline before it does not count."
    )
    columns = ("designer", ">net gain", ">10th percentile", ">worst task", ">out of memory", ">first pick fits")
    return Section(title="What a user gains", text=text, columns=columns, rows=rows) if rows else None


def ablation_section(runs: Sequence[SearchRun], trials: int) -> Section | None:
    """Tabulate the contribution of each part of `oppa` (figures 7 and 24 of the paper)."""
    groups, longest = {name: group for name, group in grouped(runs).items() if name in OURS}, longest_s(runs, trials)
    if len(groups) < 2:
        return None
    rows = [
        (name, *figures_of(summary(group, trials, longest)), f"{statistics.median(sum(run.steps) for run in group):g}")
        for name, group in groups.items()
    ]
    text = "`oppa` without its prior, without early termination, and as the paper writes it; median training steps of all trials of a play."
    return Section(title="Ablations (figures 7 and 24)", text=text, columns=(*COLUMNS, ">training steps"), rows=rows)


def coverage_section(runs: Sequence[SearchRun]) -> Section | None:
    """Tabulate the coverage of the prediction intervals and the errors of the predictions."""
    rows = []
    for name, group in grouped(runs).items():
        pairs = [pair for run in group for pair in list(zip(run.predicted, run.measured, run.log_stddev, strict=True))[WARM:]]
        judged = [(p, m, s) for p, m, s in pairs if p and m and s]
        if judged:
            inside = sum(abs(math.log(m / p)) <= QUANTILE * s for p, m, s in judged)
            error = statistics.median(abs(m / p - 1) for p, m, _ in judged)
            rows.append((name, str(len(judged)), f"{inside / len(judged):.0%}", f"{error:.1%}"))
    text = f"Throughput predicted before each trial from the {WARM + 1}th on, against what it measured."
    columns = ("designer", ">trials", ">in the 90% interval", ">median error")
    return Section(title="Predicted against measured (figures 6, 20 to 22)", text=text, columns=columns, rows=rows) if rows else None


def confusion_section(runs: Sequence[SearchRun]) -> Section | None:
    """Tabulate the trials that were predicted to fit against those that ran (figure 23 of the paper)."""
    rows = []
    for name, group in grouped(runs).items():
        judged = [(fits, letter in RAN) for run in group for fits, letter in zip(_predicted_to_fit(run), run.outcomes, strict=True)]
        if any(fits is not None for fits, _ in judged):
            rows.append((name, *(str(judged.count(case)) for case in ((True, True), (True, False), (False, True), (False, False)))))
    text = (
        "Each trial was predicted to fit, which means with a probability of at least one half, or not; and it ran, or failed. "
        "Older runs lack probabilities, and are judged by whether the predicted memory is at most the limit. A recorded failure may have "
        "other causes than memory."
    )
    columns = ("designer", ">fits, ran", ">fits, failed", ">too large, ran", ">too large, failed")
    return Section(title="Memory (figure 23)", text=text, columns=columns, rows=rows) if rows else None


def _predicted_to_fit(run: SearchRun) -> list[bool | None]:
    """Return whether each trial's configuration was predicted to fit; None where no memory was predicted."""
    by_memory = [None if need is None else need <= 1 for need in run.predicted_memory]
    return [by_need if chance is None else chance >= EVEN for chance, by_need in zip(run.chances, by_memory, strict=True)]


def fit_section(runs: Sequence[SearchRun]) -> Section | None:
    """Tabulate the predicted probabilities to fit against the share of trials that ran, by designer; None without probabilities."""
    rows = []
    for name, group in grouped(runs).items():
        of_trials = (pair for run in group for pair in zip(run.chances, run.outcomes, strict=True))
        pairs = [(chance, letter in RAN) for chance, letter in of_trials if chance is not None]
        for low, high in itertools.pairwise(CHANCES):
            within = [(chance, ran) for chance, ran in pairs if low <= chance < high]
            if within:
                expected, ran = (statistics.fmean(each) for each in zip(*within, strict=True))
                rows.append((name, f"{low:.0%} - {min(high, 1):.0%}", str(len(within)), f"{expected:.0%}", f"{ran:.0%}"))
    text = (
        "Trials of configurations that the designer had not tried, by their predicted probability to fit: how many should have run, and "
        "how many did. What is tried is chosen for its predicted speed and its probability, so that errors of both are favoured. A "
        "recorded failure may have other causes than memory."
    )
    columns = ("designer", "probability", ">trials", ">expected to run", ">ran")
    return Section(title="Probability to fit", text=text, columns=columns, rows=rows) if rows else None


def winner_section(runs: Sequence[SearchRun]) -> Section | None:
    """Tabulate the configurations that `oppa` returns, over the seeds (table 4 of the paper)."""
    rows = []
    ours = [run for run in runs if run.designer == "oppa" and run.winner]
    names = ("dp", "tp", "pp", "zero_stage", "micro_batch", "model_chunks", "schedule", "recompute")
    for task in sorted({run.task for run in ours}, key=natural):
        found = [parse_id(run.winner or "") or {} for run in ours if run.task == task]
        rows.append((task, *(" or ".join(dict.fromkeys(str(each.get(name)) for each in found)) for name in names)))
    text = "What `oppa` returns at the end of each play: several values mean that seeds differ, and that nothing speaks for one of them."
    return Section(title="Winners (Table 4)", text=text, columns=("task", *names), rows=rows) if rows else None


def length_scale_section(runs: Sequence[SearchRun]) -> Section | None:
    """Tabulate the length scales that `oppa` has learned at the end of its runs (table 5 of the paper)."""
    learned: dict[str, list[Mapping[str, float]]] = {}
    for run in runs:
        if run.designer == "oppa" and run.length_scales:
            learned.setdefault(run.task, []).append(run.length_scales)
    tasks = sorted(learned, key=natural)
    names = list(dict.fromkeys(name for task in tasks for scales in learned[task] for name in sorted(scales)))
    rows = [(name, *(_median_of(name, learned[task]) for task in tasks)) for name in names]
    text = (
        "Logarithms of the length scales of the throughput's residual, medians over the seeds. A short one means that the residual depends "
        "strongly on the parameter, which the cost model may describe badly. Empty: the task does not vary the parameter."
    )
    columns = ("parameter", *(f">{task}" for task in tasks))
    return Section(title="Length scales (Table 5)", text=text, columns=columns, rows=rows) if rows else None


def _median_of(name: str, learned: Sequence[Mapping[str, float]]) -> str:
    known = [scales[name] for scales in learned if name in scales]
    return f"{statistics.median(known):.2f}" if known else ""


def thinking_section(runs: Sequence[SearchRun]) -> Section:
    """Tabulate the seconds of each designer per suggestion, on the machine that ran the comparison."""
    rows = []
    for name, group in grouped(runs).items():
        each = [run.thinking_s / len(run.outcomes) for run in group if run.outcomes]
        rows.append((name, f"{statistics.median(each):.3f}" if each else "", f"{max(each):.3f}" if each else ""))
    text = (
        "Wall-clock seconds in which a designer suggests, predicts and learns, per trial: median over plays, and the slowest play. They "
        "are not part of the seconds above, which pass on the task's clock."
    )
    return Section(title="Seconds per suggestion", text=text, columns=("designer", ">median", ">slowest play"), rows=rows)


def _compared(title: str, runs: Sequence[SearchRun], trials: int) -> Section:
    groups, longest = grouped(runs), longest_s(runs, trials)
    tasks = len(longest)
    rows = [(name, len(group), *figures_of(summary(group, trials, longest)), _share(runs, name, trials)) for name, group in groups.items()]
    text = (
        f"{tasks} task{'s' * (tasks > 1)}, plays of {trials} trials. Best: true throughput of the incumbent over the best there is, mean. "
        "The incumbent has the best measured throughput, so noise can lower its true value. First trial after which it is within 5% of "
        f"the best: median and 90th percentile ({trials + 1}: never). Median seconds until then; a search that never gets there counts "
        "as long as the longest search of its task. `oppa`'s share: its seconds over the designer's, geometric mean of the tasks' medians. "
        "There, the longest search is that of one of the two designers."
    )
    peer = best_peer(runs, trials)
    said = f" Against the best peer, `{peer[0]}`, `oppa` takes {peer[1]:.2f} of the time." if peer else ""
    return Section(title=title, text=text + said, columns=("designer", ">plays", *COLUMNS[1:], ">oppa's share"), rows=rows)


def figures_of(of: Mapping[str, float | None]) -> tuple[str, ...]:
    """Return the figures of a summary as words: best after 5, 10 and 20 trials, and the trials and seconds to 95%; empty if None."""
    rises = ("" if best is None else f"{best:.3f}" for best in (of[f"best_at_{k}"] for k in (5, 10, 20)))
    return (*rises, f"{of['trials_to_95_median']:g}", f"{of['trials_to_95_p90']:g}", f"{of['seconds_to_95_median']:.0f}")


def _share(runs: Sequence[SearchRun], name: str, trials: int) -> str:
    if name == "oppa" or not any(run.designer == "oppa" for run in runs):
        return ""
    share = ratio(runs, "oppa", name, trials)
    return "" if math.isnan(share) else f"{share:.2f}"
