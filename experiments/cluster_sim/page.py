"""Write the page of the simulated cluster: ratios by policy, FlexTrain's figure 11, thresholds and windows, and scale tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.cluster_sim.run import (
    DP_PP,
    MEASURED,
    POLICIES,
    PP,
    SHARE,
    SHARES,
    THRESHOLDS,
    WINDOWS_H,
    SimulatedTrace,
    completion_ratio,
    jobs_per_s,
    queue_ratio,
    reached,
    scaling_of,
)
from oppa.cluster.comparison import FREE, NONE
from oppa.cluster.elastic import Elasticity
from oppa.cluster.models import MODELS
from oppa.cluster.scaling import Settings
from oppa.report.figures import Axis, Series, lines, standalone
from oppa.report.inputs import Inputs
from oppa.report.record import Section, write_record
from oppa.units import format_seconds

TITLE = "Elastic jobs on a shared cluster"
NAMES = {PP: "stages alone", DP_PP: "replicas and stages", MEASURED: "as an 8B model was measured"}
COMPLETION, QUEUE = "elastic jobs, time to completion", "other jobs, time in the queue"


def sections(ran: Sequence[SimulatedTrace]) -> list[Section]:
    """Return the headline table and the table of traces."""
    return [_headline(ran), _seeds(ran)]


def write_page(
    folder: Path,
    ran: Sequence[SimulatedTrace],
    shares: Sequence[SimulatedTrace],
    thresholds: Sequence[SimulatedTrace],
    measured: Sequence[SimulatedTrace],
    tables: Mapping[str, Mapping[int, Elasticity]],
    *,
    inputs: Inputs,
) -> Path:
    """Write all tables and figures; raises InputError if a file cannot be written."""
    found = [*sections(ran), _thresholds(thresholds), *([_measured(measured)] if measured else []), _tables(tables)]
    figures = {"shares.svg": standalone(_figure_11(shares)), "thresholds.svg": standalone(_rules(thresholds))}
    return write_record(folder, TITLE, found, figures=figures, inputs=inputs)


def _headline(ran: Sequence[SimulatedTrace]) -> Section:
    rows = []
    for scaling in (PP, DP_PP):
        worlds = scaling_of(ran, scaling)
        for policy in (*POLICIES, FREE):
            rows.append(
                (
                    NAMES[scaling],
                    policy,
                    f"{completion_ratio(worlds, policy):.3f}",
                    f"{queue_ratio(worlds, policy):.3f}",
                    f"{reached(worlds, policy):.0%}",
                    round(sum(each.row(policy).changes for each in worlds) / len(worlds)),
                )
            )
    first, seeds = ran[0], len({each.world.seed for each in ran})
    none = first.row(NONE)
    return Section(
        title="Policies",
        text=f"{seeds} traces like Seren's, {first.world.days:g} days and {none.jobs} jobs each; {SHARE:.0%} of the pretraining jobs are "
        f"elastic, {none.elastic} of them. Figures are means over all jobs, relative to those without scale-up. `reached` is the share "
        "that elastic jobs save of the time that they would save if changes cost nothing (the last line of each). "
        f"One process simulates {jobs_per_s(ran):,.0f} jobs per second.",
        columns=("elastic jobs change", "policy", ">elastic jobs complete", ">other jobs wait", ">reached", ">changes"),
        rows=rows,
    )


def _seeds(ran: Sequence[SimulatedTrace]) -> Section:
    rows = []
    for each in scaling_of(ran, PP):
        none, other = each.row(NONE), next(one for one in scaling_of(ran, DP_PP) if one.world.seed == each.world.seed)
        cells = [
            f"{one.row(policy).completion_s / none.completion_s:.3f}, {one.row(policy).queue_s / max(none.queue_s, 1e-9):.2f}"
            for one in (each, other)
            for policy in ("greedy", "flextrain")
        ]
        rows.append((each.world.seed, f"{none.utilisation:.1%}", format_seconds(none.completion_s), format_seconds(none.queue_s), *cells))
    return Section(
        title="Traces",
        text="The first columns are without scale-up: utilisation, completion of elastic jobs, and queue of the other jobs. The rest are "
        "relative times, as above. A few bursts cause most of the waiting in a trace, so its queue varies more than the mean over traces.",
        columns=(
            *(">seed", ">utilisation", ">elastic jobs complete", ">other jobs wait"),
            *(f">{policy}, {NAMES[scaling]}" for scaling in (PP, DP_PP) for policy in ("greedy", "flextrain")),
        ),
        rows=rows,
    )


def _thresholds(ran: Sequence[SimulatedTrace]) -> Section:
    rows = [
        (label, f"{completion_ratio(worlds, 'flextrain'):.3f}", f"{queue_ratio(worlds, 'flextrain'):.3f}", changes)
        for label, worlds, changes in _by_rule(ran)
    ]
    return Section(
        title="Threshold and window",
        text=f"The same for `flextrain` with stages alone, by the probability threshold of a scale-up (window "
        f"{Settings().window_s / 3600:g} h), and by the window in which arrivals count (threshold {Settings().threshold}).",
        columns=("rule", ">elastic jobs complete", ">other jobs wait", ">changes"),
        rows=rows,
    )


def _by_rule(ran: Sequence[SimulatedTrace]) -> list[tuple[str, list[SimulatedTrace], int]]:
    usual = Settings()
    groups = [
        (f"threshold {value:g}", [each for each in ran if each.world.threshold == value and each.world.window_h * 3600 == usual.window_s])
        for value in THRESHOLDS
    ]
    groups += [
        (f"window {value:g} h", [each for each in ran if each.world.window_h == value and each.world.threshold == usual.threshold])
        for value in WINDOWS_H
    ]
    return [(label, of, round(sum(each.row("flextrain").changes for each in of) / len(of))) for label, of in groups if of]


def _measured(ran: Sequence[SimulatedTrace]) -> Section:
    return Section(
        title="Jobs that scale as measured",
        text="Jobs of all three sizes scale as the fastest setting of an 8B model on each number of nodes, 8 to 512 H100 (nanotron, the "
        "Ultra-Scale Playbook).",
        columns=("policy", ">elastic jobs complete", ">other jobs wait"),
        rows=[(policy, f"{completion_ratio(ran, policy):.3f}", f"{queue_ratio(ran, policy):.3f}") for policy in POLICIES],
    )


def _tables(tables: Mapping[str, Mapping[int, Elasticity]]) -> Section:
    rows = []
    for scaling, kinds in tables.items():
        for gpus, kind in kinds.items():
            model = next(model for model in MODELS if model.gpus == gpus)
            sizes = ", ".join(f"{size.gpus}: {size.speedup:.2f}" for size in kind.table.sizes)
            name, cost = "8B" if scaling == MEASURED else model.name, format_seconds(kind.save_s + kind.start_s)
            rows.append((NAMES[scaling], name, gpus, cost, sizes))
    return Section(
        title="Scale tables",
        text="oppa predicts these tables for FlexTrain's three models (its table 2), with layers, heads and slices of losses balanced. "
        "Slices of a loss are hypothetical. Hidden sizes and the cost of a change are assumed. `sizes` are GPUs, each with the speed-up "
        "over the requested number.",
        columns=("change", "model", ">requested", ">cost of a change", "sizes"),
        rows=rows,
    )


def _figure_11(ran: Sequence[SimulatedTrace]) -> str:
    panels = {}
    for title, ratio in ((COMPLETION, completion_ratio), (QUEUE, queue_ratio)):
        drawn = []
        for scaling in (PP, DP_PP):
            for policy in POLICIES:
                x = [share for share in SHARES if _of_share(ran, scaling, share)]
                y = [ratio(_of_share(ran, scaling, share), policy) for share in x]
                drawn.append(Series(name=f"{policy}, {scaling}", x=x, y=y))
        panels[title] = drawn
    return lines(
        panels, x=Axis(label="share of pretraining jobs that is elastic"), y=Axis(label="relative to no scale-up"), description="Figure 11"
    )


def _of_share(ran: Sequence[SimulatedTrace], scaling: str, share: float) -> list[SimulatedTrace]:
    return [each for each in scaling_of(ran, scaling) if each.world.share == share]


def _rules(ran: Sequence[SimulatedTrace]) -> str:
    panels = {}
    groups = _by_rule(ran)
    for title, word, values in (("threshold", "threshold", THRESHOLDS), ("window, hours", "window", WINDOWS_H)):
        of = [worlds for label, worlds, _ in groups if label.startswith(word)]
        panels[title] = [
            Series(name=name, x=list(values), y=[ratio(worlds, "flextrain") for worlds in of])
            for name, ratio in ((COMPLETION, completion_ratio), (QUEUE, queue_ratio))
        ]
    return lines(panels, x=Axis(label=""), y=Axis(label="relative to no scale-up"), description="Thresholds and windows")
