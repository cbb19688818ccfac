"""Simulate the four configurations of COPUS: the real controller and policies, on a simulated clock and with simulated gradients.

The simulator supplies the step time of a cluster at every batch. The loss follows from the goodput model itself. These figures therefore
show the effect of controller, margin and costs if the model holds. They do not show whether it holds; the real experiment tests that.

Notation (B a batch, phi the noise scale, E the progress in sequences of batches of the first size):
    phi(E)     NOISE_FIRST * (1 + E / NOISE_AGE) ** NOISE_GROWTH: small at first, and growing as the loss falls
    dE         of a step: B * SE(B) / SE(first), times the value of its learning rate relative to that of the first batch (HELPS)
    loss(E)    FLOOR + FALL * (1 + E / LOSS_AGE) ** -LOSS_POWER
The controller receives phi with noise; a step takes the table's time, with noise.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pandas as pd

from experiments.goodput import worlds
from experiments.goodput.figures import all_figures
from experiments.goodput.gains import static_targets
from experiments.goodput.sections import GoodputComparison, change_section, table_section, time_section
from experiments.goodput.variants import variants
from experiments.goodput.worlds import ASSUMED, Layout, gain_section, layout_section, paper_section
from experiments.lib.run_trace import COLUMNS, RunTrace
from experiments.lib.stated_table import stated_table
from experiments.lib.variants import Variant
from oppa import catalog
from oppa.control.controller import Controller
from oppa.control.decision import DecisionKind
from oppa.control.registry import policy_of
from oppa.control.throughput_index import ThroughputIndex
from oppa.problem.batches import over, parse_batches
from oppa.problem.job import load_job
from oppa.problem.training import Scaling
from oppa.protocol.messages import Changed, StepTaken
from oppa.random_streams import stream
from oppa.report.figures import standalone
from oppa.report.record import Section
from oppa.simulator.simulator import Simulator
from oppa.table import Table, TableRow
from oppa.table.goodput import goodput
from oppa.table.rows import ParallelStrategy

CASES: Mapping[str, tuple[str, float, float]] = {
    "copus-3b": ("3B on 1 x 8 H100 PCIe", 328e6, 35.0),
    "copus-13b": ("13B on 2 x 8 H100 PCIe", 328e6, 40.0),
    "copus-32b": ("32B on 4 x 8 H100 PCIe", 123e6, 56.0),
    "copus-7b": ("7B on 4 x 8 MI210", 215e6, 45.0),
}
"""Description, tokens to train, and seconds of a layout change, by job. The token budgets are the paper's; its changes took 30 to 56 s."""
FIRST, LARGEST, SEQUENCE = 16, 1024, 2048
PUBLISHED: Mapping[str, Mapping[int, Layout]] = {
    "copus-3b": {FIRST: (2, 1, 4), LARGEST: (8, 1, 1)},
    "copus-13b": {FIRST: (1, 2, 8), LARGEST: (4, 1, 4)},
    "copus-32b": {FIRST: (1, 2, 16), LARGEST: (2, 2, 8)},
    "copus-7b": {FIRST: (2, 4, 4), LARGEST: (8, 1, 4)},
}
"""Layouts of the paper's pessimistic and optimistic CBS baselines (table 1): the best at its first batch, and the best for large ones."""
NOISE_FIRST, NOISE_AGE, NOISE_GROWTH = 16.0, 4000.0, 1.1
HELPS: Mapping[str, Mapping[str, Any]] = {"always": {"saturating": False}, "while-noisy": {}, "never": {"scaling": "none"}}
"""Arguments of `goodput` in each world. Worlds differ in how a larger learning rate helps, and thus in what a step is worth."""
WORDS: Mapping[str, str] = {"always": "at every batch (eq. 8)", "while-noisy": "while there is noise", "never": "at no batch"}
FLOOR, FALL, LOSS_AGE, LOSS_POWER = 1.7, 9.0, 400.0, 0.45
STEP_NOISE, SCALE_NOISE = 0.02, 0.10
"""Standard deviations of the logarithms of step times and of the observed noise scale."""
WINDOW = 2048
SINGLE = 300
"""Number of first steps that are simulated one by one; during these, batches rise from the smallest to the right one."""


class SimulatedWorld(Protocol):
    """Defines a simulated cluster and the course of training on it."""

    @property
    def table(self) -> Table:
        """Return the cluster's true throughputs."""
        ...

    @property
    def change_s(self) -> float:
        """Return the seconds of a layout change."""
        ...

    @property
    def scaling(self) -> Scaling:
        """Return the scaling rule of the learning rate that goodput assumes."""
        ...

    @property
    def samples(self) -> int | None:
        """Return the samples after which training ends, or None if they are not known beforehand."""
        ...

    @property
    def resolution(self) -> float:
        """Return the progress that one simulated step may combine after the first SINGLE steps; 0 combines none."""
        ...

    def ended(self, samples: int, progress: float) -> bool:
        """Return whether training is over."""
        ...

    def noise_scale(self, progress: float) -> float:
        """Return the gradient noise scale phi at progress E, in samples."""
        ...

    def gained(self, batch: int, noise_scale: float) -> float:
        """Return the progress dE of one step."""
        ...

    def loss(self, progress: float) -> float:
        """Return the loss at progress E."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CaseWorld:
    """Implements the world of one of CASES."""

    table: Table
    samples: int
    change_s: float
    helps: str = ASSUMED
    """One of HELPS: the true effect of a larger learning rate."""
    scaling: Scaling = "sqrt"
    resolution: float = 0.0

    def ended(self, samples: int, progress: float) -> bool:
        """Return whether all samples were seen."""
        return samples >= self.samples

    def noise_scale(self, progress: float) -> float:
        """Return phi(E)."""
        return NOISE_FIRST * float((1 + progress / NOISE_AGE) ** NOISE_GROWTH)

    def gained(self, batch: int, noise_scale: float) -> float:
        """Return the progress dE of one step."""
        of_step, of_first = (goodput(each, each, noise_scale, **HELPS[self.helps]) for each in (batch, FIRST))
        return float(FIRST * of_step / of_first)

    def loss(self, progress: float) -> float:
        """Return the loss at progress E."""
        return FLOOR + FALL * float((1 + progress / LOSS_AGE) ** -LOSS_POWER)


@functools.cache
def world_of(name: str) -> CaseWorld:
    """Return the world of one of CASES, with a table of its cluster's true throughputs."""
    _, tokens, change_s = CASES[name]
    path = catalog.find("runners", "simulated") / "jobs" / f"{name}.toml"
    problem = over(load_job(path), parse_batches(f"{FIRST}..{LARGEST}"))
    simulator, candidates = Simulator.of(problem), problem.candidates()
    rows = []
    for index in range(len(candidates)):
        configuration = candidates.configuration(index)
        if (rate := simulator.steps_per_s(configuration)) is not None:
            memory = simulator.memory_bytes(configuration)
            row = TableRow(
                configuration=configuration, steps_per_s=rate, log_stddev=0.0, memory_bytes=memory, source="predicted", trials=()
            )
            rows.append(row)
    return CaseWorld(table=stated_table(load_job(path), rows), samples=int(tokens / SEQUENCE), change_s=change_s)


def simulate_run(world: SimulatedWorld, variant: Variant, seed: int) -> RunTrace:
    """Simulate a run under the real controller."""
    rates = {row.configuration: row.steps_per_s for row in world.table.rows}
    draws = stream(seed, f"goodput {variant.name}")
    throughputs = ThroughputIndex(world.table).scaled(world.scaling)
    controller = Controller(throughputs, policy_of(variant.policy), total_samples=world.samples, reconfiguration_s=world.change_s)
    present, progress, samples, elapsed_s, pause_s = variant.begins, 0.0, 0, 0.0, 0.0
    rows = list[tuple[object, ...]]()
    while not world.ended(samples, progress):
        true = world.noise_scale(progress)
        seen = true * math.exp(SCALE_NOISE * draws.standard_normal())
        seconds = math.exp(STEP_NOISE * draws.standard_normal()) / rates[present]
        loss = world.loss(progress)
        gained = world.gained(present.global_batch, true)
        count = max(1, int(world.resolution / gained)) if len(rows) >= SINGLE else 1
        progress += count * gained
        samples, elapsed_s = samples + count * present.global_batch, elapsed_s + count * seconds + pause_s
        rows.append((len(rows), samples, present.id, present.global_batch, loss, seen, count * seconds, pause_s, elapsed_s))
        pause_s = 0.0
        step = StepTaken(
            number=len(rows),
            step=len(rows),
            samples=samples,
            configuration=present,
            step_time_s=seconds,
            elapsed_s=elapsed_s,
            noise_scale=seen,
            health="healthy",
            loss=loss,
            learning_rate=1e-4,
        )
        decision = controller.step(step)
        if decision is not None and decision.command in (DecisionKind.SCALE_BS, DecisionKind.RECONFIGURE):
            moves = ParallelStrategy.of(decision.configuration) != ParallelStrategy.of(present)
            pause_s = world.change_s if moves else 0.0
            controller.changed(Changed(number=len(rows), before=present, after=decision.configuration, seconds=pause_s))
            present = decision.configuration
    return RunTrace(variant.name, seed, pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS))


def comparison_of(world: SimulatedWorld, seeds: Sequence[int]) -> GoodputComparison:
    """Run every variant with every seed; the targets are losses along the run of the best static batch."""
    traces = [simulate_run(world, variant, seed) for variant in variants(world.table, FIRST, LARGEST) for seed in seeds]
    return GoodputComparison(traces, static_targets(traces, WINDOW), WINDOW)


@functools.cache
def compared(name: str, seeds: int) -> Mapping[str, GoodputComparison]:
    """Return the comparisons of one of CASES, by the effect of a larger learning rate; a cache avoids repeated runs."""
    world = world_of(name)
    return {helps: comparison_of(dataclasses.replace(world, helps=helps), range(seeds)) for helps in HELPS}


def sections(seeds: int, names: Sequence[str] = tuple(CASES)) -> list[Section]:
    """Return a table of all gains and losses, then the best layouts, then each case in detail."""
    jobs, comparisons, tables = {name: CASES[name][0] for name in names}, _comparisons(seeds, names), _tables(names)
    found = [gain_section(comparisons, jobs, WORDS), layout_section(tables, jobs), paper_section(tables, jobs, PUBLISHED)]
    for name, words in jobs.items():
        found.append(dataclasses.replace(table_section(tables[name]), title=f"{words}: throughput by batch and layout"))
        for helps, comparison in comparisons[name].items():
            title = f"{words}: time to loss in `{helps}`, where a larger learning rate helps {WORDS[helps]}"
            found.append(time_section(comparison, "clock_s", title))
        found.append(dataclasses.replace(change_section(comparisons[name][ASSUMED]), title=f"{words}: changes of layout in `{ASSUMED}`"))
    return found


def to_json(seeds: int, names: Sequence[str] = tuple(CASES)) -> dict[str, object]:
    """Return the gains as fractions, and the best layouts, by the names of the cases."""
    return worlds.to_json(_comparisons(seeds, names), _tables(names), WORDS)


def figures(seeds: int) -> dict[str, str]:
    """Return SVG by file name: each case in the world that our objective assumes."""
    drawn = {name: all_figures(compared(name, seeds)[ASSUMED]) for name in CASES}
    return {f"{name}-{file}": standalone(svg) for name, of_case in drawn.items() for file, (_, svg) in of_case.items()}


def _comparisons(seeds: int, names: Sequence[str]) -> dict[str, Mapping[str, GoodputComparison]]:
    return {name: compared(name, seeds) for name in names}


def _tables(names: Sequence[str]) -> dict[str, Table]:
    return {name: world_of(name).table for name in names}
