"""List the papers' experiments: their suites and command lines, what they show, and the inputs of their records.

This module imports nothing heavy, so that `oppa bench` lists them at once.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from experiments.lib.recorded_command import recorded_command
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

_COMMANDS = {name: f"experiments.{name.replace('-', '_')}.command" for name in ("control", "service", "schedule", "cluster-sim")}
_SIMULATOR = Declared(
    files=(REPLAY.as_posix(), "priors/clusters/H100.toml", "priors/clusters/A100-80GB.toml"),
    data=(*PRIOR.data, "pipeline_stage_times.csv", "pipeline_schedules_measured.csv"),
)
_SCHEDULES = Declared(data=("pipeline_stage_times.csv", "pipeline_schedules_measured.csv"))


def commands() -> Mapping[str, Callable[..., None]]:
    """Return the command lines of the experiments that are no suites, by name."""
    return {**{name: importlib.import_module(module).command for name, module in _COMMANDS.items()}, **_recorded()}


def _recorded() -> Mapping[str, Callable[..., None]]:
    """Return the command lines of the experiments whose runs are recorded."""
    more = "Interrupted, the same command continues."
    return {
        "goodput": recorded_command(
            "goodput",
            """Show the time to a target loss under the goodput policy, the critical batch size and static batches, by the newest runs.

            The job is a small GPT on real text, on four emulated hosts in two racks with slow links.
            """,
            run=f"First train the runs that are not recorded, which takes hours and requires Linux as root. {more}",
            unit="seeds",
            counts="Number of seeds for each policy.",
            usual=10,
            json_help="Print the figures as JSON on stdout, as fractions.",
        ),
        "norm-test": recorded_command(
            "norm-test",
            """Show losses, steps and seconds of the norm test and of constant batches, by the newest runs.

            The job is a small Llama on real text, on four data-parallel ranks.
            """,
            run=f"First train the runs that are not recorded, which takes an hour. {more}",
            unit="seeds",
            counts="Number of seeds for each scheme.",
            usual=5,
        ),
        "policies": recorded_command(
            "policies",
            """Show the seconds until an accuracy is reached under each policy, by the newest runs.

            The job is a small convolutional network on digits, on four data-parallel workers of different speed.
            """,
            run=f"First train the runs that are not recorded, which takes two hours. {more}",
            unit="seeds",
            counts="Number of seeds for each policy.",
            usual=3,
            json_help="Also measure the cost of decisions, and print all figures as JSON on stdout.",
        ),
        "pipelines": recorded_command(
            "pipelines",
            "Compare step times and memory of other pipelines with predictions from the first steps of one, by the newest runs.",
            run="First run the pipelines, which takes two minutes a round and requires writable control groups and an idle machine.",
            unit="rounds",
            counts="Number of rounds, each with its profile.",
            usual=4,
        ),
    }


def _simulated(names: Collection[str], *, cost_model: bool) -> Declared:
    return Declared(jobs=tuple(map(simulated_job, names)), cost_model=cost_model)


def _example(name: str, *files: str, cost_model: bool = False) -> Declared:
    return Declared(jobs=(Path("examples", f"{name}.toml"),), files=files, cost_model=cost_model)


SUITES: Mapping[str, Suite] = {
    "prior": Suite(
        about="the prior's predictions, compared with published measurements", run="experiments.prior.run:prior", repeated=False
    ),
    "calibrate": Suite(
        about="the coefficients of `priors/`, fitted to published measurements", run="experiments.prior.calibrate:calibrate", repeated=False
    ),
    "simulator": Suite(
        about="the simulator, compared with published measurements", run="experiments.simulator.run:simulator", repeated=False
    ),
    "stopping": Suite(
        about="early termination of repetitions, and errors of estimates",
        run="experiments.stopping.run:stopping",
        figures="experiments.stopping.run:figures",
    ),
    "profile": Suite(
        about="an active profile, compared with an exhaustive one on simulated clusters",
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
    "stopping": with_own_record("stopping", SUITES["stopping"], _simulated(SIMULATED, cost_model=False)),
    "profile": with_own_record(
        "profile", SUITES["profile"], _simulated(PROFILED, cost_model=True), repeats=2, smallest="--tasks qwen2-1.5b"
    ),
    "control": with_own_command(
        "gradient statistics, changes of layout and profiles, on real ranks",
        _example("profile", cost_model=True),
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
        "time to a target loss under each policy, in real training runs",
        _example("goodput"),
        "goodput",
        "goodput --run --seeds 10",
        "goodput",
        seeds=10,
    ),
    "goodput-simulated": with_own_record(
        "goodput-simulated", SUITES["goodput-simulated"], _simulated(COPUS, cost_model=False), repeats=10, smallest="--tasks copus-3b"
    ),
    "goodput-pollux": with_own_record(
        "goodput-pollux",
        SUITES["goodput-pollux"],
        Declared(data=("adaptdl_throughput_t4.csv", "adaptdl_gradstats.csv"), parts=POLLUX),
        repeats=5,
        smallest="--tasks ncf",
    ),
    "norm-test": with_own_command(
        "the norm test, compared with constant batches",
        _example("norm_test"),
        "norm-test",
        "norm-test --run --seeds 5",
        "norm-test",
        seeds=5,
    ),
    "policies": with_own_command(
        "all policies on one job",
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
        "schedules of a pipeline, by name and searched",
        _SCHEDULES,
        "schedule",
        "schedule --instances 100 --out results/schedule",
        "schedule --times examples/stage_times.csv --instances 1",
        instances=100,
    ),
    "pipelines": with_own_command(
        "measured pipelines, compared with their predictions", Declared(), "pipelines", "pipelines --run --rounds 3", "pipelines", rounds=3
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
