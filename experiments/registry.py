"""List the papers' experiments and the timings: their suites and command lines, what they show, and the inputs of their records.

This module imports nothing heavy, so that `oppa bench` lists them at once.
"""

import dataclasses
import importlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from experiments.lib.suite import Suite
from experiments.lib.suite_command import suite_command, together_command
from experiments.recorded_commands import recorded_commands
from oppa.bench.declared import COST_MODEL, REPLAY, SIMULATED, Declared, joined, simulated_job
from oppa.bench.registry import RESULTS, Benchmark, Recorded, with_own_command

OVERHEAD = ("1000", "10000", "100000")
"""Approximate numbers of candidates that a designer chooses from."""
COPUS = ("copus-3b", "copus-13b", "copus-32b", "copus-7b")
"""COPUS's four configurations (section 6.1)."""
DRIFTING = ("llama-3.2-1b",)
"""The simulated job that is searched while its machine becomes slower."""
PROFILED = ("bert", "llama-2-7b", "llama-3.2-1b", "moe", "qwen2-1.5b")
"""The simulated jobs whose profiles are compared."""
POLLUX = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
"""Pollux's workloads, by their names in its measurements."""
LIBRARIES = ("transformers", "accelerate", "lightning", "deepspeed", "plain", "torchtitan", "megatron")
"""Libraries whose launch lines are tuned."""
DYNAMIX = ("8", "16", "32")
"""Numbers of simulated workers in DYNAMIX's Table I."""
ELASTIC = ("small", "medium", "large")
"""Models whose jobs scale up and down on the simulated cluster (FlexTrain's table 2)."""

_SIMULATED_TARGETS = ("qwen2-1.5b", "moe", "copus-32b")
TRANSFERRED = ("1B-8", "8B-4", "8B-16", *_SIMULATED_TARGETS, "1B-64", "8B-64")
"""Tasks whose searches start from other studies: of the suite `replay`, or simulated jobs."""
_SOURCES = ("bert", "vit", "moe-16e", "llama-2-7b", "copus-13b", "copus-3b")
"""Simulated jobs that are only sources of such studies."""
PROXY = ("llama-2-7b", "mixtral-8x7b", "long-8b-32k", "fsdp-7b")
"""Simulated jobs that are searched at a smaller size, each on more hosts."""
PROXY_MEASURED = tuple(f"{model}-{nodes}" for model in ("1B", "8B") for nodes in (8, 32, 64))
"""Replayed tasks that are searched at a smaller size: nanotron's models on so many nodes."""


def _trainer_files(*names: str) -> tuple[str, ...]:
    return tuple(f"examples/{name}_trainer.{kind}" for name in names for kind in ("py", "toml"))


TRAINERS = _trainer_files("own", "transformers", "accelerate", "lightning", "deepspeed")
"""Training programs and their job files; each program is compared with itself under `oppa train`."""

GPU_TRAINER = tuple(f"examples/transformers_{part}" for part in ("trainer.py", "trainer.toml", "gpu.py"))
"""Files of the comparison on one GPU: a program, its job, and the program in which gradient statistics are timed."""

ELASTIC_TRAINERS = ("own", "transformers")
"""Examples whose pause is measured when a job gets another host."""

_COMMANDS = {
    name: f"experiments.{name.replace('-', '_')}.command"
    for name in ("control", "faults", "service", "schedule", "cluster-sim", "proxy", "libraries", "trainers")
}
SHORT = ("help", "start-up", "prior", "machine")
"""The suites that `oppa bench all` runs; each takes seconds."""
NANOTRON = Declared(
    files=(REPLAY.as_posix(), *COST_MODEL, "priors/hardware/H100.toml", "priors/frameworks/nanotron.toml"), data=("nanotron_h100.csv",)
)
"""Inputs of the benchmarks on the measurements of nanotron."""
ELDER_DATA = (*NANOTRON.data, "korthikanti_recompute_a100.csv", "nccl_allreduce.csv")
"""Measured data that the simulator and the prior are both compared with."""
PRIOR = Declared(
    files=(
        *NANOTRON.files,
        *("priors/hardware/A100-80GB.toml", "priors/hardware/A100-40GB.toml"),
        *(f"priors/frameworks/{name}.toml" for name in ("fsdp", "megatron", "deepspeed", "other")),
        *(f"experiments/published/{name}.csv" for name in ("bloom_trials", "performance_pages")),
    ),
    data=(
        *ELDER_DATA,
        *("megatron_8xh100.csv", "llm_foundry_a100.csv", "fms_a100.csv", "fms_a100_moe.csv"),
        *("aleph_alpha_8k.csv", "aleph_alpha_8k.toml", "ccl_search_a100_40gb.csv"),
    ),
)
"""Inputs of the prior's page, and of its calibration: all published runs."""
_TORCH = Declared(files=("runners/torch/runner.toml",))
_SIMULATOR = Declared(
    files=(REPLAY.as_posix(), "priors/clusters/H100.toml", "priors/clusters/A100-80GB.toml"),
    data=(*ELDER_DATA, "pipeline_stage_times.csv", "pipeline_schedules_measured.csv"),
)
_TRANSFER = Declared(
    files=(
        *NANOTRON.files,
        *(simulated_job(name).as_posix() for name in (*_SIMULATED_TARGETS, *_SOURCES)),
        *("runners/simulated/runner.toml", "search_spaces/colossalai.toml", "search_spaces/megatron.toml"),
        *(f"priors/clusters/{name}.toml" for name in ("A100-40GB", "A5000", "H100-PCIe")),
        *(f"priors/hardware/{name}.toml" for name in ("A100-40GB", "A5000", "H100-PCIe")),
        *(f"priors/frameworks/{name}.toml" for name in ("colossalai", "deepspeed", "megatron")),
    ),
    data=NANOTRON.data,
    parts=TRANSFERRED,
)


def commands() -> Mapping[str, Callable[..., None]]:
    """Return the command line of every experiment, by name."""
    own = {name: importlib.import_module(module).command for name, module in _COMMANDS.items()}
    of_suites = {name: suite_command(name, suite) for name, suite in SUITES.items()}
    return {**own, **recorded_commands(), "all": together_command({name: SUITES[name] for name in SHORT}), **of_suites}


def _simulated(names: Collection[str], *, cost_model: bool) -> Declared:
    return Declared(jobs=tuple(map(simulated_job, names)), cost_model=cost_model)


def _example(name: str, *files: str, cost_model: bool = False) -> Declared:
    return Declared(jobs=(Path("examples", f"{name}.toml"),), files=files, cost_model=cost_model)


SUITES: Mapping[str, Suite] = {
    "help": Suite(
        about="time `oppa --help`, and compare it with a bare typer program",
        declared=Declared(),
        run="experiments.timings.help:help_overhead",
    ),
    "start-up": Suite(
        about="compare the start of a trial by a fork server with that by torchrun",
        declared=_TORCH,
        run="experiments.timings.startup:startup",
    ),
    "ray-start-up": Suite(
        about="compare the start of a trial on a node of a Ray cluster with that of the local launcher",
        declared=_TORCH,
        run="experiments.timings.ray_startup:ray_startup",
    ),
    "trial-reading": Suite(
        about="measure the share of a trial that its tuner spends on reading its files",
        declared=_TORCH,
        run="experiments.timings.trial_reading:trial_reading",
    ),
    "elastic-restart": Suite(
        about="time the pause of an elastic job on Slurm with ranks that wait, and compare it with a cold restart",
        declared=Declared(files=_trainer_files(*ELASTIC_TRAINERS), parts=ELASTIC_TRAINERS),
        run="experiments.timings.elastic_restart:elastic_restart",
        to_json="experiments.timings.elastic_restart:elastic_restart_figures",
        tasks=ELASTIC_TRAINERS,
        smallest="--tasks own",
    ),
    "machine": Suite(
        about="measure the facts in `priors/hardware/CPU.toml`",
        declared=Declared(files=("priors/hardware/CPU.toml", "priors/step_time.toml")),
        run="experiments.timings.machine:machine",
    ),
    "overhead": Suite(
        about="time a designer's step, and compare it with BoTorch and Optuna",
        declared=Declared(files=("search_spaces/colossalai.toml", *COST_MODEL, "priors/hardware/A100-80GB.toml"), parts=OVERHEAD),
        run="experiments.timings.overhead:overhead",
        tasks=OVERHEAD,
        smallest="--tasks 1000",
    ),
    "prior": Suite(
        about="compare the prior's predictions with published measurements",
        declared=PRIOR,
        run="experiments.prior.run:prior",
        to_json="experiments.prior.run:prior_figures",
        repeated=False,
    ),
    "calibrate": Suite(
        about="fit the coefficients of `priors/` to published measurements",
        declared=PRIOR,
        run="experiments.prior.calibrate:calibrate",
        repeated=False,
    ),
    "simulator": Suite(
        about="compare the simulator with published measurements",
        declared=_SIMULATOR,
        run="experiments.simulator.run:simulator",
        repeated=False,
    ),
    "stopping": Suite(
        about="evaluate early termination of repetitions, and the errors of estimates",
        declared=_simulated(SIMULATED, cost_model=False),
        run="experiments.stopping.run:stopping",
        figures="experiments.stopping.run:figures",
    ),
    "profile": Suite(
        about="compare an active profile with an exhaustive one on simulated clusters",
        declared=_simulated(PROFILED, cost_model=True),
        run="experiments.profile.simulated:profile",
        tasks=PROFILED,
        repeats=2,
        smallest="--tasks qwen2-1.5b",
    ),
    "drift": Suite(
        about="compare searches with and without repeats on a machine that becomes slower",
        declared=_simulated(DRIFTING, cost_model=False),
        run="experiments.drift.run:sections",
        repeats=12,
    ),
    "transfer": Suite(
        about="measure the gain and the harm of starting a search from other studies",
        declared=_TRANSFER,
        run="experiments.transfer.run:sections",
        to_json="experiments.transfer.run:to_json",
        tasks=TRANSFERRED,
        repeats=3,
        smallest="--tasks 1B-8",
    ),
    "goodput-simulated": Suite(
        about="compare the time to loss under each policy, on simulated clusters",
        declared=_simulated(COPUS, cost_model=False),
        run="experiments.goodput.simulated:sections",
        figures="experiments.goodput.simulated:figures",
        to_json="experiments.goodput.simulated:to_json",
        tasks=COPUS,
        repeats=10,
        smallest="--tasks copus-3b",
    ),
    "goodput-pollux": Suite(
        about="compare the time to Pollux's results under each policy, on its measured step times",
        declared=Declared(data=("adaptdl_throughput_t4.csv", "adaptdl_gradstats.csv"), parts=POLLUX),
        run="experiments.goodput.pollux:sections",
        tasks=POLLUX,
        repeats=5,
        smallest="--tasks ncf",
    ),
    "policies-simulated": Suite(
        about="compare learned batches with other policies at 8, 16 and 32 simulated workers",
        declared=Declared(files=("priors/learning_curves/digits.toml",), parts=DYNAMIX),
        run="experiments.policies.simulated:sections",
        figures="experiments.policies.simulated:figures",
        to_json="experiments.policies.simulated:to_json",
        tasks=DYNAMIX,
        repeats=10,
        smallest="--tasks 8",
    ),
}
"""The experiments that run with a number of repeats."""


def _own(*names: str) -> Mapping[str, Benchmark]:
    """Return suites, each with a record of its own."""
    return {name: SUITES[name].benchmark(name) for name in names}


def _together(*names: str, repeats: int = 5) -> Mapping[str, Benchmark]:
    """Return suites that share the record of `oppa bench all`."""
    recorded = Recorded(
        folder=RESULTS / "bench",
        command=f"all --repeats {repeats} --out results/bench",
        arguments={"benchmarks": list(SHORT), "repeats": repeats},
        declared=joined(SUITES[name].declared for name in SHORT),
    )
    return {name: SUITES[name].benchmark(name, recorded) for name in names}


def _trained(name: str, shows: str, declared: Declared, *, smallest: str = "", **repeats: int) -> Mapping[str, Benchmark]:
    """Return an experiment with recorded runs.

    Args:
        smallest: Arguments of its shortest command.
        repeats: Repeats of the record, by the name of their option.
    """
    ((option, count),) = repeats.items()
    command = f"{name} --run --{option} {count}"
    return {name: with_own_command(shows, declared, name, command, f"{name} {smallest}".strip(), **repeats)}


def _trainers(files: tuple[str, ...], folder: str, command: str, **arguments: object) -> Recorded:
    return Recorded(
        folder=RESULTS / folder, command=f"{command} --out results/{folder}", arguments=arguments, declared=Declared(files=files)
    )


BENCHMARKS: Mapping[str, Benchmark] = {
    **_together("help", "start-up", "machine"),
    **_own("overhead", "ray-start-up", "trial-reading", "elastic-restart", "prior", "calibrate"),
    **_own("simulator", "stopping", "profile", "drift", "transfer"),
    "control": with_own_command(
        "measure gradient statistics, changes of layout and profiles, on real ranks",
        _example("profile", cost_model=True),
        "control",
        "control --repeats 5 --out results/control",
        "control --repeats 1 --parts resharding",
        repeats=5,
    ),
    "service": with_own_command(
        "measure the control service under load",
        Declared(files=("examples/cpu.toml",)),
        "service",
        "service --out results/service",
        "service --jobs 20 --seconds 2 --malformed 320 --kills 1 --journal 1000",
        jobs=1000,
        seconds=60,
        malformed=20_000,
        kills=20,
        journal=1_000_000,
    ),
    "faults": with_own_command(
        "try hostile files, trials and names, and count what breaks",
        Declared(),
        "faults",
        "faults --out results/faults",
        "faults --inputs 20",
        inputs=6_000,
        seed=0,
    ),
    **_trained("goodput", "compare the time to a target loss under each policy, in real training runs", _example("goodput"), seeds=10),
    **_own("goodput-simulated", "goodput-pollux"),
    **_trained(
        "trainers-goodput",
        "compare the time to a target loss of Transformers' `Trainer` under each policy, on CPUs",
        _example("transformers_trainer", "examples/transformers_trainer.py"),
        seeds=10,
    ),
    **_trained(
        "trainers-goodput-gpu",
        "compare the time to a target loss of Transformers' `Trainer` under each policy, on one GPU, and the prior's errors there",
        _example("transformers_gpu", "examples/transformers_gpu.py", "examples/transformers_trainer.py"),
        smallest="--help",
        seeds=1,
    ),
    **_trained("norm-test", "compare the norm test with constant batches, under DDP", _example("norm_test"), seeds=5),
    **_trained("norm-test-fsdp", "compare the norm test with constant batches, under FSDP in bf16", _example("norm_test_fsdp"), seeds=3),
    **_trained("policies", "compare all policies on one job", _example("digits", "priors/learning_curves/digits.toml"), seeds=3),
    **_own("policies-simulated"),
    "trainers": Benchmark(
        shows="compare trainers of users under `oppa train` with the same training without it",
        smallest="trainers --short --json",
        declared=Declared(files=TRAINERS),
        recorded=(
            _trainers(TRAINERS, "trainers", "trainers --repeats 3", repeats=3),
            _trainers(GPU_TRAINER, "trainers-gpu", "trainers --gpu --repeats 1", repeats=1, gpu=True),
        ),
    ),
    "libraries": with_own_command(
        "check winners of launch lines of real libraries, and what trials write",
        Declared(parts=LIBRARIES),
        "libraries",
        "libraries --run",
        "libraries",
        trials=20,
        rounds=5,
    ),
    "schedule": with_own_command(
        "compare schedules of a pipeline by name with searched ones",
        Declared(data=("pipeline_stage_times.csv", "pipeline_schedules_measured.csv")),
        "schedule",
        "schedule --instances 100 --out results/schedule",
        "schedule --times examples/stage_times.csv --instances 1",
        instances=100,
    ),
    **_trained("pipelines", "compare measured pipelines with their predictions", Declared(), rounds=3),
    "proxy": with_own_command(
        "compare a search at a smaller size with a plain one",
        dataclasses.replace(_simulated(PROXY, cost_model=True), files=NANOTRON.files, data=NANOTRON.data, parts=PROXY_MEASURED),
        "proxy",
        "proxy --seeds 1 --out results/proxy",
        "proxy --seeds 1 --tasks fsdp-7b",
        seeds=1,
    ),
    "cluster-sim": with_own_command(
        "simulate elastic jobs on a shared cluster",
        Declared(files=(REPLAY.as_posix(),), data=NANOTRON.data, parts=ELASTIC),
        "cluster",
        "cluster-sim --out results/cluster",
        "cluster-sim --seeds 1 --days 5 --tasks small",
        seeds=5,
        days=90.0,
    ),
}
"""The experiments by name."""
