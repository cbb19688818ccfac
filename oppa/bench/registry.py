"""List every benchmark of `oppa bench`: what it shows, its record and that record's command, its inputs, and its smallest command.

This module imports nothing heavy, so that the list appears at once.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.bench import checkout
from oppa.bench.declared import COST_MODEL, DESIGNERS, OVERHEAD, REPLAY, SIMULATED, SUITES, Declared, joined, simulated_job
from oppa.bench.suites import SUITES as OWN
from oppa.bench.suites import Suite
from oppa.report.inputs import Inputs

RESULTS = Path("results")
ALL = "all"
"""Name of the command that runs all short benchmarks."""
SHORT = ("help", "start-up", "prior", "machine")
"""The short benchmarks; `prior` is an experiment, which a checkout has."""
NANOTRON = Declared(files=(REPLAY.as_posix(), *COST_MODEL, "priors/hardware/H100.toml"), data=("nanotron_h100.csv",))
"""Inputs of the benchmarks on the measurements of nanotron."""
PRIOR = Declared(
    files=(*NANOTRON.files, "priors/hardware/A100-80GB.toml"),
    data=(*NANOTRON.data, "korthikanti_recompute_a100.csv", "nccl_allreduce.csv"),
)
"""Inputs of the benchmark `prior`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plays:
    """Holds the runs of one call of `oppa bench search`: its designers, and the number of seeds for each designer and task."""

    designers: tuple[str, ...] = DESIGNERS
    seeds: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Describes a record and the command that makes it."""

    folder: Path
    """Folder of the record, relative to the checkout."""
    command: str
    """Command line after `oppa bench`."""
    arguments: Mapping[str, Any]
    """Arguments that the figures depend on."""
    declared: Declared
    plays: tuple[Plays, ...] = ()
    """Runs that must be in the record, if it is a log."""

    def inputs(self) -> Inputs:
        """Return the inputs that its command would have now."""
        return self.declared.inputs(**self.arguments)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Describes a command of `oppa bench`."""

    shows: str
    smallest: str
    """Shortest command line that really starts the benchmark, after `oppa bench`."""
    declared: Declared
    recorded: tuple[Recorded, ...]
    needs_data: bool = False
    """The benchmark cannot start without the measured data that it declares."""


def suites() -> Mapping[str, Suite]:
    """Return the suites of the package, and those of the experiments in a checkout."""
    return {**OWN, **checkout.suites()}


def benchmarks() -> Mapping[str, Benchmark]:
    """Return the benchmarks of the package, and those of the experiments in a checkout."""
    return {**BENCHMARKS, **checkout.benchmarks()}


def inputs(name: str, tasks: Collection[str] | None = None, **arguments: Any) -> Inputs:
    """Return the inputs of a benchmark's figures.

    Args:
        tasks: Tasks to include; all by default.
        arguments: Arguments that the figures depend on.

    Raises:
        InputError: for an unknown task.
    """
    declared = benchmarks()[name].declared
    return (declared if tasks is None else declared.only(tasks)).inputs(**arguments)


def measured_inputs(names: Sequence[str], repeats: int, tasks: Collection[str] | None = None) -> Inputs:
    """Return the inputs of the figures of one of `suites`, or of several in one record."""
    if len(names) == 1:
        return inputs(names[0], tasks, **({"repeats": repeats} if suites()[names[0]].repeated else {}))
    return joined(benchmarks()[name].declared for name in names).inputs(benchmarks=list(names), repeats=repeats)


def short() -> list[str]:
    """Return the benchmarks that `oppa bench all` runs; each takes seconds."""
    return [name for name in SHORT if name in suites()]


def with_own_record(name: str, suite: Suite, declared: Declared, *, repeats: int = 7, smallest: str = "") -> Benchmark:
    """Return a suite with a record of its own.

    Args:
        repeats: Repeats of the record.
        smallest: Arguments of the shortest command, besides `--repeats 1`.
    """
    recorded = Recorded(
        folder=RESULTS / name,
        command=f"{name}{f' --repeats {repeats}' if suite.repeated else ''} --out results/{name}",
        arguments={"repeats": repeats} if suite.repeated else {},
        declared=declared,
    )
    return Benchmark(
        shows=suite.about,
        smallest=f"{name} --repeats 1 {smallest}".strip(),
        declared=declared,
        recorded=(recorded,),
        needs_data=bool(declared.data),
    )


def with_own_command(shows: str, declared: Declared, folder: str, command: str, smallest: str, **arguments: Any) -> Benchmark:
    """Return a benchmark with its own command line."""
    recorded = Recorded(folder=RESULTS / folder, command=command, arguments=arguments, declared=declared)
    return Benchmark(shows=shows, smallest=smallest, declared=declared, recorded=(recorded,))


_DECLARED = {
    "help": Declared(),
    "start-up": Declared(files=("runners/torch/runner.toml",)),
    "machine": Declared(files=("priors/hardware/CPU.toml", "priors/step_time.toml")),
}


def _together(name: str, repeats: int = 5) -> Benchmark:
    """Return one of `suites` that shares the record of `oppa bench all`."""
    recorded = Recorded(
        folder=RESULTS / "bench",
        command=f"{ALL} --repeats {repeats} --out results/bench",
        arguments={"benchmarks": list(SHORT), "repeats": repeats},
        declared=joined((*_DECLARED.values(), PRIOR)),
    )
    return Benchmark(shows=OWN[name].about, smallest=f"{name} --repeats 1", declared=_DECLARED[name], recorded=(recorded,))


def _searched(suite: str, trials: int, *plays: Plays) -> Recorded:
    return Recorded(
        folder=RESULTS / "search" / suite,
        command=f"search --suite {suite} --seeds {max(each.seeds for each in plays)} --trials {trials} --out results/search/{suite}",
        arguments={"suite": suite, "trials": trials},
        declared=SUITES[suite],
        plays=plays,
    )


_SEARCHED = (
    _searched("simulated", 40, Plays(seeds=3)),
    _searched("cpu", 30, Plays(seeds=10)),
    _searched(
        "replay",
        30,
        Plays(designers=tuple(name for name in DESIGNERS if name != "oppa-paper"), seeds=10),
        Plays(designers=("oppa-paper",), seeds=3),
    ),
)
_CI = Declared(jobs=(*(SUITES["cpu"].jobs), *map(simulated_job, SIMULATED)), files=SUITES["cpu"].files)
CI_PLAYS = {"cpu": Plays(designers=("oppa", "random"), seeds=4), "simulated": Plays(designers=("oppa", "random"), seeds=2)}
"""Runs of `oppa bench ci`, by suite."""
CI_TRIALS = 20
CI_ARGUMENTS: Mapping[str, Any] = {
    "trials": CI_TRIALS,
    "plays": {suite: {"designers": list(plays.designers), "seeds": plays.seeds} for suite, plays in CI_PLAYS.items()},
}

BENCHMARKS: Mapping[str, Benchmark] = {
    "help": _together("help"),
    "start-up": _together("start-up"),
    "machine": _together("machine"),
    "search": Benchmark(
        shows="time until each designer finds the fastest configuration",
        smallest="search --suite cpu --designers random --seeds 1 --trials 2",
        declared=SUITES["cpu"],
        recorded=_SEARCHED,
    ),
    "ci": with_own_command("a short search, compared with the reference", _CI, "ci", "ci --record", "ci --tasks cpu", **CI_ARGUMENTS),
    "overhead": with_own_record(
        "overhead",
        OWN["overhead"],
        Declared(files=("search_spaces/colossalai.toml", *COST_MODEL, "priors/hardware/A100-80GB.toml"), parts=OVERHEAD),
        smallest="--tasks 1000",
    ),
}
"""Benchmarks of the package by name, short ones first."""
