"""List the papers' experiments: their suites and command lines, what they show, and the inputs of their records.

This module imports nothing heavy, so that `oppa bench` lists them at once.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from oppa.bench.declared import REPLAY, SIMULATED, Declared, simulated_job
from oppa.bench.registry import NANOTRON, PRIOR, Benchmark, with_own_command, with_own_record
from oppa.bench.suites import Suite

COPUS = ("copus-3b", "copus-13b", "copus-32b", "copus-7b")
"""COPUS's four configurations (section 6.1)."""
PROFILED = ("bert", "llama-2-7b", "llama-3.2-1b", "moe", "qwen2-1.5b")
"""The simulated jobs whose profiles are compared."""
POLLUX = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
"""Pollux's workloads, by their names in its measurements."""
DYNAMIX = ("8", "16", "32")
"""Numbers of simulated workers in DYNAMIX's Table I."""
ELASTIC = ("small", "medium", "large")
"""Models whose jobs scale up and down on the simulated cluster (FlexTrain's table 2)."""

_COMMANDS = {
    name: f"experiments.{name.replace('-', '_')}.command"
    for name in ("control", "service", "goodput", "norm-test", "policies", "schedule", "pipelines", "cluster-sim")
}
_SIMULATOR = Declared(
    files=(REPLAY.as_posix(), "priors/clusters/H100.toml", "priors/clusters/A100-80GB.toml"),
    data=(*PRIOR.data, "pipeline_stage_times.csv", "pipeline_schedules_measured.csv"),
)
_SCHEDULES = Declared(data=("pipeline_stage_times.csv", "pipeline_schedules_measured.csv"))


def commands() -> Mapping[str, Callable[..., None]]:
    """Return the experiments that have a command line of their own, by name."""
    return {name: importlib.import_module(module).command for name, module in _COMMANDS.items()}


def _simulated(names: Collection[str], *, believed: bool) -> Declared:
    return Declared(jobs=tuple(map(simulated_job, names)), believed=believed)


def _example(name: str, *files: str, believed: bool = False) -> Declared:
    return Declared(jobs=(Path("examples", f"{name}.toml"),), files=files, believed=believed)


SUITES: Mapping[str, Suite] = {
    "prior": Suite(about="the prior's predictions against published measurements", run="experiments.prior.run:prior", repeated=False),
    "calibrate": Suite(
        about="the coefficients of `priors/`, fitted to published measurements", run="experiments.prior.calibrate:calibrate", repeated=False
    ),
    "simulator": Suite(about="the simulator against published measurements", run="experiments.simulator.run:simulator", repeated=False),
    "stopping": Suite(
        about="when repetitions may end early, and how far off estimates are",
        run="experiments.stopping.run:stopping",
        figures="experiments.stopping.run:figures",
    ),
    "profile": Suite(
        about="an active profile against an exhaustive one, on simulated clusters",
        run="experiments.profile.simulated:profile",
        tasks=PROFILED,
    ),
    "goodput-simulated": Suite(
        about="time to loss under each policy, on simulated clusters",
        run="experiments.goodput.simulated:sections",
        figures="experiments.goodput.simulated:figures",
        to_json="experiments.goodput.simulated:to_json",
        tasks=COPUS,
    ),
    "goodput-pollux": Suite(
        about="time to Pollux's results under each policy, on its measured step times",
        run="experiments.goodput.pollux:sections",
        tasks=POLLUX,
    ),
    "policies-simulated": Suite(
        about="learned batches at 8, 16 and 32 simulated workers",
        run="experiments.policies.simulated:sections",
        figures="experiments.policies.simulated:figures",
        to_json="experiments.policies.simulated:to_json",
        tasks=DYNAMIX,
    ),
}
"""The experiments that run with a number of repeats."""
BENCHMARKS: Mapping[str, Benchmark] = {
    "prior": with_own_record("prior", SUITES["prior"], PRIOR),
    "calibrate": with_own_record("calibrate", SUITES["calibrate"], NANOTRON),
    "simulator": with_own_record("simulator", SUITES["simulator"], _SIMULATOR),
    "stopping": with_own_record("stopping", SUITES["stopping"], _simulated(SIMULATED, believed=False)),
    "profile": with_own_record("profile", SUITES["profile"], _simulated(PROFILED, believed=True), repeats=2, smallest="--tasks qwen2-1.5b"),
    "control": with_own_command(
        "gradient statistics, changes of layout and profiles, on real ranks",
        _example("profile", believed=True),
        "control",
        "control --repeats 5 --out results/control",
        "control --repeats 1 --parts resharding",
        repeats=5,
    ),
    "service": with_own_command(
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
    "goodput": with_own_command(
        "time to a target loss under each policy, trained for real",
        _example("goodput"),
        "goodput",
        "goodput --run --seeds 10",
        "goodput",
        seeds=10,
    ),
    "goodput-simulated": with_own_record(
        "goodput-simulated", SUITES["goodput-simulated"], _simulated(COPUS, believed=False), repeats=10, smallest="--tasks copus-3b"
    ),
    "goodput-pollux": with_own_record(
        "goodput-pollux",
        SUITES["goodput-pollux"],
        Declared(data=("adaptdl_throughput_t4.csv", "adaptdl_gradstats.csv"), parts=POLLUX),
        repeats=5,
        smallest="--tasks ncf",
    ),
    "norm-test": with_own_command(
        "the norm test against constant batches", _example("norm_test"), "norm-test", "norm-test --run --seeds 5", "norm-test", seeds=5
    ),
    "policies": with_own_command(
        "every policy on one job",
        _example("digits", "priors/learning_curves/digits.toml"),
        "policies",
        "policies --run --seeds 3",
        "policies",
        seeds=3,
    ),
    "policies-simulated": with_own_record(
        "policies-simulated",
        SUITES["policies-simulated"],
        Declared(files=("priors/learning_curves/digits.toml",), parts=DYNAMIX),
        repeats=10,
        smallest="--tasks 8",
    ),
    "schedule": with_own_command(
        "schedules of a pipeline, by name and searched for",
        _SCHEDULES,
        "schedule",
        "schedule --instances 100 --out results/schedule",
        "schedule --times examples/stage_times.csv --instances 1",
        instances=100,
    ),
    "pipelines": with_own_command(
        "pipelines run for real beside their predictions", Declared(), "pipelines", "pipelines --run --rounds 3", "pipelines", rounds=3
    ),
    "cluster-sim": with_own_command(
        "elastic jobs on a shared cluster, simulated",
        Declared(files=(REPLAY.as_posix(),), data=NANOTRON.data, parts=ELASTIC),
        "cluster",
        "cluster-sim --out results/cluster",
        "cluster-sim --seeds 1 --days 5 --tasks small",
        seeds=5,
        days=90.0,
    ),
}
"""The experiments by name."""
