"""List every benchmark of `oppa bench`: what it shows, its record and that record's command, its inputs, and its smallest command.

This module imports nothing heavy, so that the list appears at once.
"""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from oppa.bench import checkout
from oppa.bench.declared import DESIGNERS, PROTOCOL, Declared
from oppa.bench.suites import ALL, EVERY, OWN_SEEDS, PEER_SEEDS, SUITES
from oppa.report.inputs import Inputs

RESULTS = Path("results")
TOGETHER = RESULTS / "search" / "all"
TRIALS = 30
"""Number of trials of a search in the record of all suites."""


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


def benchmarks() -> Mapping[str, Benchmark]:
    """Return the benchmarks of the package, and those of the experiments in a checkout."""
    return {**checkout.benchmarks(), **BENCHMARKS}


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


def with_own_command(shows: str, declared: Declared, folder: str, command: str, smallest: str, **arguments: Any) -> Benchmark:
    """Return a benchmark with its own command line."""
    recorded = Recorded(folder=RESULTS / folder, command=command, arguments=arguments, declared=declared)
    return Benchmark(shows=shows, smallest=smallest, declared=declared, recorded=(recorded,))


def _searched(suite: str, trials: int, *plays: Plays) -> Recorded:
    return Recorded(
        folder=RESULTS / "search" / suite,
        command=f"search --suite {suite} --seeds {max(each.seeds for each in plays)} --trials {trials} --out results/search/{suite}",
        arguments={"suite": suite, "trials": trials, "protocol": PROTOCOL},
        declared=SUITES[suite].declared,
        plays=plays,
    )


def _searched_together(suite: str) -> Recorded:
    """Return the record of a suite that `--suite all` makes; programs without a model are not for every designer."""
    asked = SUITES[suite].designers or (("random",) if SUITES[suite].source == "programs" else DESIGNERS)
    others = tuple(name for name in asked if name != "oppa")
    return Recorded(
        folder=TOGETHER / suite,
        command=f"search --suite {ALL} --out {TOGETHER}",
        arguments={"suite": suite, "trials": TRIALS, "protocol": PROTOCOL},
        declared=SUITES[suite].declared,
        plays=(Plays(designers=("oppa",), seeds=OWN_SEEDS), Plays(designers=others, seeds=PEER_SEEDS)),
    )


_POOL = Recorded(
    folder=TOGETHER,
    command=f"search --suite {ALL} --out {TOGETHER}",
    arguments={"suite": ALL, "trials": TRIALS, "protocol": PROTOCOL},
    declared=EVERY,
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
    _POOL,
    *map(_searched_together, SUITES),
)
_CI = Declared(jobs=(*SUITES["cpu"].declared.jobs, *SUITES["simulated"].declared.jobs), files=SUITES["cpu"].declared.files)
CI_PLAYS = {"cpu": Plays(designers=("oppa", "random"), seeds=4), "simulated": Plays(designers=("oppa", "random"), seeds=2)}
"""Runs of `oppa bench ci`, by suite."""
CI_TRIALS = 20
CI_ARGUMENTS: Mapping[str, Any] = {
    "trials": CI_TRIALS,
    "plays": {suite: {"designers": list(plays.designers), "seeds": plays.seeds} for suite, plays in CI_PLAYS.items()},
}

BENCHMARKS: Mapping[str, Benchmark] = {
    "search": Benchmark(
        shows="time until each designer finds the fastest configuration",
        smallest="search --suite cpu --designers random --seeds 1 --trials 2",
        declared=SUITES["cpu"].declared,
        recorded=_SEARCHED,
    ),
    "ci": with_own_command("a short search, compared with the reference", _CI, "ci", "ci --record", "ci --tasks cpu", **CI_ARGUMENTS),
}
"""Benchmarks of the package by name."""
