"""List the papers' experiments and the timings: their suites and command lines, what they show, and the inputs of their records.

This module imports nothing heavy, so that `oppa bench` lists them at once.
"""

import functools
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
LIBRARIES = ("transformers", "accelerate", "lightning", "deepspeed", "plain")
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

TRAINERS = tuple(
    f"examples/{name}_trainer.{kind}" for name in ("own", "transformers", "accelerate", "lightning", "deepspeed") for kind in ("py", "toml")
)
"""Programs of users, and their jobs, that are compared with themselves under `oppa train`."""

GPU_TRAINER = tuple(f"examples/transformers_{part}" for part in ("trainer.py", "trainer.toml", "gpu.py"))
"""The same on one GPU: the program that is compared, its job, and the program in which statistics are timed."""

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
        *(f"priors/frameworks/{name}.toml" for name in ("fsdp", "megatron", "other")),
    ),
    data=(
        *ELDER_DATA,
        *("megatron_8xh100.csv", "llm_foundry_a100.csv", "fms_a100.csv", "fms_a100_moe.csv"),
        *("aleph_alpha_8k.csv", "aleph_alpha_8k.toml", "ccl_search_a100_40gb.csv"),
    ),
)
"""Inputs of the prior's page, and of its calibration: all published runs."""
_TIMINGS = {
    "help": Declared(),
    "start-up": Declared(files=("runners/torch/runner.toml",)),
    "machine": Declared(files=("priors/hardware/CPU.toml", "priors/step_time.toml")),
}
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
_SCHEDULES = Declared(data=("pipeline_stage_times.csv", "pipeline_schedules_measured.csv"))


def commands() -> Mapping[str, Callable[..., None]]:
    """Return the command line of every experiment, by name."""
    own = {name: importlib.import_module(module).command for name, module in _COMMANDS.items()}
    of_suites = {name: suite_command(name, suite, functools.partial(_declared, name)) for name, suite in SUITES.items()}
    together = together_command({name: SUITES[name] for name in SHORT}, lambda: joined(map(_declared, SHORT)))
    return {**own, **recorded_commands(), "all": together, **of_suites}


def _declared(name: str) -> Declared:
    return BENCHMARKS[name].declared


def _with_own_record(name: str, declared: Declared, *, repeats: int = 7, smallest: str = "") -> Benchmark:
    """Return a suite with a record of its own.

    Args:
        repeats: Repeats of the record.
        smallest: Arguments of the shortest command, besides `--repeats 1`.
    """
    suite = SUITES[name]
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


def _together(name: str, repeats: int = 5) -> Benchmark:
    """Return a suite that shares the record of `oppa bench all`."""
    recorded = Recorded(
        folder=RESULTS / "bench",
        command=f"all --repeats {repeats} --out results/bench",
        arguments={"benchmarks": list(SHORT), "repeats": repeats},
        declared=joined((*_TIMINGS.values(), PRIOR)),
    )
    return Benchmark(shows=SUITES[name].about, smallest=f"{name} --repeats 1", declared=_TIMINGS[name], recorded=(recorded,))


def _trainers(files: tuple[str, ...], folder: str, command: str, **arguments: object) -> Recorded:
    return Recorded(
        folder=RESULTS / folder, command=f"{command} --out results/{folder}", arguments=arguments, declared=Declared(files=files)
    )


def _simulated(names: Collection[str], *, cost_model: bool) -> Declared:
    return Declared(jobs=tuple(map(simulated_job, names)), cost_model=cost_model)


def _example(name: str, *files: str, cost_model: bool = False) -> Declared:
    return Declared(jobs=(Path("examples", f"{name}.toml"),), files=files, cost_model=cost_model)


SUITES: Mapping[str, Suite] = {
    "help": Suite(about="time `oppa --help`, and compare it with a bare typer program", run="experiments.timings.help:help_overhead"),
    "start-up": Suite(
        about="compare the start of a trial by a fork server with that by torchrun", run="experiments.timings.startup:startup"
    ),
    "ray-start-up": Suite(
        about="compare the start of a trial on a node of a Ray cluster with that of the local launcher",
        run="experiments.timings.ray_startup:ray_startup",
    ),
    "trial-reading": Suite(
        about="measure the share of a trial that its tuner spends on reading its files",
        run="experiments.timings.trial_reading:trial_reading",
    ),
    "elastic-restart": Suite(
        about="time the pause of an elastic job on Slurm with ranks that wait, and compare it with a cold restart",
        run="experiments.timings.elastic_restart:elastic_restart",
        to_json="experiments.timings.elastic_restart:elastic_restart_figures",
        tasks=ELASTIC_TRAINERS,
    ),
    "machine": Suite(about="measure the facts in `priors/hardware/CPU.toml`", run="experiments.timings.machine:machine"),
    "overhead": Suite(
        about="time a designer's step, and compare it with BoTorch and Optuna", run="experiments.timings.overhead:overhead", tasks=OVERHEAD
    ),
    "prior": Suite(
        about="compare the prior's predictions with published measurements",
        run="experiments.prior.run:prior",
        to_json="experiments.prior.run:prior_figures",
        repeated=False,
    ),
    "calibrate": Suite(
        about="fit the coefficients of `priors/` to published measurements", run="experiments.prior.calibrate:calibrate", repeated=False
    ),
    "simulator": Suite(
        about="compare the simulator with published measurements", run="experiments.simulator.run:simulator", repeated=False
    ),
    "stopping": Suite(
        about="evaluate early termination of repetitions, and the errors of estimates",
        run="experiments.stopping.run:stopping",
        figures="experiments.stopping.run:figures",
    ),
    "profile": Suite(
        about="compare an active profile with an exhaustive one on simulated clusters",
        run="experiments.profile.simulated:profile",
        tasks=PROFILED,
    ),
    "drift": Suite(
        about="compare searches with and without repeats on a machine that becomes slower", run="experiments.drift.run:sections"
    ),
    "transfer": Suite(
        about="measure the gain and the harm of starting a search from other studies",
        run="experiments.transfer.run:sections",
        to_json="experiments.transfer.run:to_json",
        tasks=TRANSFERRED,
    ),
    "goodput-simulated": Suite(
        about="compare the time to loss under each policy, on simulated clusters",
        run="experiments.goodput.simulated:sections",
        figures="experiments.goodput.simulated:figures",
        to_json="experiments.goodput.simulated:to_json",
        tasks=COPUS,
    ),
    "goodput-pollux": Suite(
        about="compare the time to Pollux's results under each policy, on its measured step times",
        run="experiments.goodput.pollux:sections",
        tasks=POLLUX,
    ),
    "policies-simulated": Suite(
        about="compare learned batches with other policies at 8, 16 and 32 simulated workers",
        run="experiments.policies.simulated:sections",
        figures="experiments.policies.simulated:figures",
        to_json="experiments.policies.simulated:to_json",
        tasks=DYNAMIX,
    ),
}
"""The experiments that run with a number of repeats."""
BENCHMARKS: Mapping[str, Benchmark] = {
    **{name: _together(name) for name in _TIMINGS},
    "overhead": _with_own_record(
        "overhead",
        Declared(files=("search_spaces/colossalai.toml", *COST_MODEL, "priors/hardware/A100-80GB.toml"), parts=OVERHEAD),
        smallest="--tasks 1000",
    ),
    "ray-start-up": _with_own_record("ray-start-up", _TIMINGS["start-up"]),
    "trial-reading": _with_own_record("trial-reading", _TIMINGS["start-up"]),
    "elastic-restart": _with_own_record(
        "elastic-restart",
        Declared(
            files=tuple(f"examples/{name}_trainer.{kind}" for name in ELASTIC_TRAINERS for kind in ("py", "toml")), parts=ELASTIC_TRAINERS
        ),
        smallest="--tasks own",
    ),
    "prior": _with_own_record("prior", PRIOR),
    "calibrate": _with_own_record("calibrate", PRIOR),
    "simulator": _with_own_record("simulator", _SIMULATOR),
    "stopping": _with_own_record("stopping", _simulated(SIMULATED, cost_model=False)),
    "profile": _with_own_record("profile", _simulated(PROFILED, cost_model=True), repeats=2, smallest="--tasks qwen2-1.5b"),
    "drift": _with_own_record("drift", _simulated(DRIFTING, cost_model=False), repeats=12),
    "transfer": _with_own_record("transfer", _TRANSFER, repeats=1, smallest="--tasks 1B-8"),
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
    "goodput": with_own_command(
        "compare the time to a target loss under each policy, in real training runs",
        _example("goodput"),
        "goodput",
        "goodput --run --seeds 10",
        "goodput",
        seeds=10,
    ),
    "goodput-simulated": _with_own_record(
        "goodput-simulated", _simulated(COPUS, cost_model=False), repeats=10, smallest="--tasks copus-3b"
    ),
    "goodput-pollux": _with_own_record(
        "goodput-pollux",
        Declared(data=("adaptdl_throughput_t4.csv", "adaptdl_gradstats.csv"), parts=POLLUX),
        repeats=5,
        smallest="--tasks ncf",
    ),
    "trainers-goodput": with_own_command(
        "compare the time to a target loss of Transformers' `Trainer` under each policy, on CPUs",
        _example("transformers_trainer", "examples/transformers_trainer.py"),
        "trainers-goodput",
        "trainers-goodput --run --seeds 10",
        "trainers-goodput",
        seeds=10,
    ),
    "trainers-goodput-gpu": with_own_command(
        "compare the time to a target loss of Transformers' `Trainer` under each policy, on one GPU, and the prior's errors there",
        _example("transformers_gpu", "examples/transformers_gpu.py", "examples/transformers_trainer.py"),
        "trainers-goodput-gpu",
        "trainers-goodput-gpu --run --seeds 1",
        "trainers-goodput-gpu --help",
        seeds=1,
    ),
    "norm-test": with_own_command(
        "compare the norm test with constant batches, under DDP",
        _example("norm_test"),
        "norm-test",
        "norm-test --run --seeds 5",
        "norm-test",
        seeds=5,
    ),
    "norm-test-fsdp": with_own_command(
        "compare the norm test with constant batches, under FSDP in bf16",
        _example("norm_test_fsdp"),
        "norm-test-fsdp",
        "norm-test-fsdp --run --seeds 3",
        "norm-test-fsdp",
        seeds=3,
    ),
    "policies": with_own_command(
        "compare all policies on one job",
        _example("digits", "priors/learning_curves/digits.toml"),
        "policies",
        "policies --run --seeds 3",
        "policies",
        seeds=3,
    ),
    "policies-simulated": _with_own_record(
        "policies-simulated", Declared(files=("priors/learning_curves/digits.toml",), parts=DYNAMIX), repeats=10, smallest="--tasks 8"
    ),
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
        _SCHEDULES,
        "schedule",
        "schedule --instances 100 --out results/schedule",
        "schedule --times examples/stage_times.csv --instances 1",
        instances=100,
    ),
    "pipelines": with_own_command(
        "compare measured pipelines with their predictions", Declared(), "pipelines", "pipelines --run --rounds 3", "pipelines", rounds=3
    ),
    "proxy": with_own_command(
        "compare a search at a smaller size with a plain one",
        Declared(
            jobs=_simulated(PROXY, cost_model=True).jobs, files=NANOTRON.files, data=NANOTRON.data, parts=PROXY_MEASURED, cost_model=True
        ),
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
