"""List every benchmark of `oppa bench`: what it shows, its record and that record's command, its inputs, and its smallest command.

This module imports nothing heavy, so that the list appears at once.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.bench.declared import (
    COPUS,
    COST_MODEL,
    DESIGNERS,
    DYNAMIX,
    ELASTIC,
    OVERHEAD,
    POLLUX,
    PROFILED,
    REPLAY,
    SIMULATED,
    SUITES,
    Declared,
    joined,
    simulated_job,
)
from oppa.bench.suites import SUITES as MEASURED
from oppa.report.inputs import Inputs

RESULTS = Path("results")
ALL = "all"
"""Name of the command that runs all quick benchmarks."""


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


def inputs(name: str, tasks: Collection[str] | None = None, **arguments: Any) -> Inputs:
    """Return the inputs of a benchmark's figures.

    Args:
        tasks: Tasks to include; all by default.
        arguments: Arguments that the figures depend on.

    Raises:
        InputError: for an unknown task.
    """
    declared = BENCHMARKS[name].declared
    return (declared if tasks is None else declared.only(tasks)).inputs(**arguments)


def measured_inputs(names: Sequence[str], repeats: int, tasks: Collection[str] | None = None) -> Inputs:
    """Return the inputs of the figures of one of `suites`, or of several in one record."""
    if len(names) == 1:
        return inputs(names[0], tasks, **({"repeats": repeats} if MEASURED[names[0]].repeated else {}))
    return joined(BENCHMARKS[name].declared for name in names).inputs(benchmarks=list(names), repeats=repeats)


def quick() -> list[str]:
    """Return the benchmarks that `oppa bench all` runs; each takes seconds."""
    return [name for name, suite in MEASURED.items() if not suite.when_named]


_NOTHING = Declared()
_NANOTRON = Declared(files=(REPLAY.as_posix(), *COST_MODEL, "priors/hardware/H100.toml"), data=("nanotron_h100.csv",))
_QUICK = {
    "help": _NOTHING,
    "start-up": Declared(files=("runners/torch/runner.toml",)),
    "prior": Declared(
        files=(*_NANOTRON.files, "priors/hardware/A100-80GB.toml"),
        data=(*_NANOTRON.data, "korthikanti_recompute_a100.csv", "nccl_allreduce.csv"),
    ),
    "machine": Declared(files=("priors/hardware/CPU.toml", "priors/step_time.toml")),
}
_SIMULATOR = Declared(
    files=(REPLAY.as_posix(), "priors/clusters/H100.toml", "priors/clusters/A100-80GB.toml"),
    data=(*_QUICK["prior"].data, "pipeline_stage_times.csv", "pipeline_schedules_measured.csv"),
)
_ORDERS = Declared(data=("pipeline_stage_times.csv", "pipeline_schedules_measured.csv"))


def _simulated(names: Collection[str], *, believed: bool) -> Declared:
    return Declared(jobs=tuple(map(simulated_job, names)), believed=believed)


def _example(name: str, *files: str, believed: bool = False) -> Declared:
    return Declared(jobs=(Path("examples", f"{name}.toml"),), files=files, believed=believed)


def _together(name: str, repeats: int = 5) -> Benchmark:
    """Return one of `suites` that shares the record of `oppa bench all`."""
    recorded = Recorded(
        folder=RESULTS / "bench",
        command=f"{ALL} --repeats {repeats} --out results/bench",
        arguments={"benchmarks": quick(), "repeats": repeats},
        declared=joined(_QUICK.values()),
    )
    return Benchmark(shows=MEASURED[name].about, smallest=f"{name} --repeats 1", declared=_QUICK[name], recorded=(recorded,))


def _alone(name: str, declared: Declared, *, repeats: int = 7, smallest: str = "") -> Benchmark:
    """Return one of `suites` with a record of its own."""
    repeated = MEASURED[name].repeated
    recorded = Recorded(
        folder=RESULTS / name,
        command=f"{name}{f' --repeats {repeats}' if repeated else ''} --out results/{name}",
        arguments={"repeats": repeats} if repeated else {},
        declared=declared,
    )
    return Benchmark(
        shows=MEASURED[name].about,
        smallest=f"{name} --repeats 1 {smallest}".strip(),
        declared=declared,
        recorded=(recorded,),
        needs_data=bool(declared.data),
    )


def _own(shows: str, declared: Declared, folder: str, command: str, smallest: str, **arguments: Any) -> Benchmark:
    """Return a benchmark with its own command line."""
    recorded = Recorded(folder=RESULTS / folder, command=command, arguments=arguments, declared=declared)
    return Benchmark(shows=shows, smallest=smallest, declared=declared, recorded=(recorded,))


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
    "prior": _alone("prior", _QUICK["prior"]),
    "calibrate": _alone("calibrate", _NANOTRON),
    "simulator": _alone("simulator", _SIMULATOR),
    "search": Benchmark(
        shows="how soon each designer finds the fastest",
        smallest="search --suite cpu --designers random --seeds 1 --trials 2",
        declared=SUITES["cpu"],
        recorded=_SEARCHED,
    ),
    "ci": _own("a short search against the reference", _CI, "ci", "ci --record", "ci --tasks cpu", **CI_ARGUMENTS),
    "overhead": _alone(
        "overhead",
        Declared(files=("search_spaces/colossalai.toml", *COST_MODEL, "priors/hardware/A100-80GB.toml"), parts=OVERHEAD),
        smallest="--tasks 1000",
    ),
    "stopping": _alone("stopping", _simulated(SIMULATED, believed=False)),
    "profile": _alone("profile", _simulated(PROFILED, believed=True), repeats=2, smallest="--tasks qwen2-1.5b"),
    "control": _own(
        "gradient statistics, changes of layout and profiles, on real ranks",
        _example("profile", believed=True),
        "control",
        "control --repeats 5 --out results/control",
        "control --repeats 1 --parts resharding",
        repeats=5,
    ),
    "service": _own(
        "the control service under load",
        Declared(files=("examples/cpu.toml",)),
        "service",
        "service --out results/service",
        "service --jobs 20 --seconds 2 --malformed 320 --kills 1",
        jobs=1000,
        seconds=60,
        malformed=20_000,
        kills=20,
    ),
    "goodput": _own(
        "time to a target loss under each policy, trained for real",
        _example("goodput"),
        "goodput",
        "goodput --run --seeds 10",
        "goodput",
        seeds=10,
    ),
    "goodput-simulated": _alone("goodput-simulated", _simulated(COPUS, believed=False), repeats=10, smallest="--tasks copus-3b"),
    "goodput-pollux": _alone(
        "goodput-pollux",
        Declared(data=("adaptdl_throughput_t4.csv", "adaptdl_gradstats.csv"), parts=POLLUX),
        repeats=5,
        smallest="--tasks ncf",
    ),
    "norm-test": _own(
        "the norm test against constant batches", _example("norm_test"), "norm-test", "norm-test --run --seeds 5", "norm-test", seeds=5
    ),
    "policies": _own(
        "every policy on one job",
        _example("digits", "priors/learning_curves/digits.toml"),
        "policies",
        "policies --run --seeds 3",
        "policies",
        seeds=3,
    ),
    "policies-simulated": _alone(
        "policies-simulated",
        Declared(files=("priors/learning_curves/digits.toml",), parts=DYNAMIX),
        repeats=10,
        smallest="--tasks 8",
    ),
    "schedule": _own(
        "schedules of a pipeline, by name and searched for",
        _ORDERS,
        "schedule",
        "schedule --instances 100 --out results/schedule",
        "schedule --times examples/stage_times.csv --instances 1",
        instances=100,
    ),
    "pipelines": _own(
        "pipelines run for real beside their predictions", _NOTHING, "pipelines", "pipelines --run --rounds 3", "pipelines", rounds=3
    ),
    "cluster-sim": _own(
        "elastic jobs on a shared cluster, simulated",
        Declared(files=(REPLAY.as_posix(),), data=_NANOTRON.data, parts=ELASTIC),
        "cluster",
        "cluster-sim --out results/cluster",
        "cluster-sim --seeds 1 --days 5 --tasks small",
        seeds=5,
        days=90.0,
    ),
}
"""Benchmarks by name, quick ones first."""
