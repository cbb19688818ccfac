"""Hugging Face accelerate (1.15): `accelerate.yaml` for FSDP2 or DDP, or for DeepSpeed if the search space is DeepSpeed's.

Keys: accelerate/commands/config/config_args.py (ClusterConfig), the `--fsdp_*` and `--parallelism_config_*` options of
commands/launch.py, and parallelism_config.py. The DataLoader sets the micro-batch; an environment variable sets the accumulation steps.
"""

import re
from typing import Any

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.space import Value
from oppa.tuning.formats import deepspeed, launch
from oppa.tuning.formats.format import Files, Reading, inexpressible, is_chosen, only

NAME = "accelerate"
CONFIG = "accelerate.yaml"
FILES = (CONFIG, deepspeed.CONFIG, launch.SCRIPT)
EXPRESSES = ("zero_stage", "recompute", "zero_bucket_mb", "overlap_zero_comm")
STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"

IMMATERIAL = frozenset(
    [
        "compute_environment",
        "debug",
        "downcast_bf16",
        "main_training_function",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "rdzv_backend",
        "same_network",
        "use_cpu",
        "gpu_ids",
        "enable_cpu_affinity",
        "tpu_env",
        "tpu_use_cluster",
        "tpu_use_sudo",
    ]
)
"""Keys that set where and how ranks are started, not how the job is laid out."""
_KNOWN = {"distributed_type", "num_machines", "num_processes", "mixed_precision"}
_FSDP = {"fsdp_version", "fsdp_reshard_after_forward", "fsdp_sharding_strategy", "fsdp_activation_checkpointing"}
_FSDP_IMMATERIAL = {"fsdp_auto_wrap_policy", "fsdp_state_dict_type", "fsdp_transformer_layer_cls_to_wrap"}
_FSDP_IMMATERIAL |= {"fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states", "fsdp_use_orig_params"}
_MESH = {"parallelism_config_dp_shard_size", "parallelism_config_tp_size", "parallelism_config_dp_replicate_size"}
_DEEPSPEED = {"zero_stage", "gradient_accumulation_steps", "deepspeed_config_file", "zero3_init_flag", "deepspeed_multinode_launcher"}
_STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}


def export(problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files; raises InputError for pipelines, and for settings that neither FSDP2 nor DeepSpeed has."""
    import yaml

    through_deepspeed = problem.space.name == "deepspeed"
    _check(problem, configuration, through_deepspeed=through_deepspeed)
    values = {**_common(problem, configuration), **(_deepspeed(configuration) if through_deepspeed else _native(problem, configuration))}
    text = f"# Made by oppa: {problem.name} with {configuration.id}.\n" + yaml.safe_dump(values, sort_keys=False)
    options = [f'--config_file "$here/{CONFIG}"']
    options += [f'--deepspeed_config_file "$here/{deepspeed.CONFIG}"'] if through_deepspeed else []
    if problem.cluster.hosts > 1:
        options += [f"--machine_rank {launch.RANK} --main_process_ip {launch.ADDRESS} --main_process_port {launch.PORT}"]
    body = f'export {STEPS}={configuration.num_microbatches}\nexec accelerate launch {" ".join(options)} "$@"'
    notes = (f"The DataLoader of TRAIN.py makes batches of {configuration.micro_batch}.",)
    run = launch.script(problem, configuration, usage="TRAIN.py [ARGUMENT]...", body=body, notes=notes)
    extra = {deepspeed.CONFIG: deepspeed.export(problem, configuration)[deepspeed.CONFIG]} if through_deepspeed else {}
    return {CONFIG: text, **extra, launch.SCRIPT: run}


def _check(problem: Problem, configuration: Configuration, *, through_deepspeed: bool) -> None:
    c = configuration
    if c.recompute == "selective":
        raise inexpressible(NAME, c, "recompute", hint='it recomputes whole layers: "none" or "full"')
    if through_deepspeed:
        if c.tp > 1:
            raise inexpressible(NAME, c, "tp", hint="it has no tensor parallelism through DeepSpeed: use `--to deepspeed`")
        if c.recompute != "none":
            raise inexpressible(NAME, c, "recompute", hint="through DeepSpeed the model's own code recomputes: use `--to deepspeed`")
        return
    if c.zero_stage == 1:
        raise inexpressible(NAME, c, "zero_stage", hint="its FSDP2 shards gradients with the optimizer's states (2), or weights too (3)")
    if c.zero_stage == 0 and c.tp > 1 and c.dp > 1:
        raise inexpressible(NAME, c, "zero_stage", beside="tp", hint="its tensor parallelism works beside FSDP2: 2 or 3")
    if c.zero_stage == 0 and c.tp == 1 and c.recompute != "none":
        raise inexpressible(NAME, c, "recompute", beside="zero_stage", hint="without FSDP2 the model's own code recomputes")
    for name in ("zero_bucket_mb", "overlap_zero_comm"):
        if is_chosen(problem, c, name):
            raise inexpressible(NAME, c, name, hint="FSDP2 communicates layer by layer, and overlaps by itself")


def _common(problem: Problem, configuration: Configuration) -> dict[str, Any]:
    return {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": problem.cluster.hosts,
        "num_processes": problem.cluster.devices,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": not problem.cluster.on_cuda,
    }


def _deepspeed(configuration: Configuration) -> dict[str, Any]:
    """Return the keys for DeepSpeed. The precision and the batch are in DeepSpeed's own file: accelerate refuses them in both."""
    settings = {"deepspeed_config_file": deepspeed.CONFIG, "zero3_init_flag": configuration.zero_stage == 3}
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": {**settings, "deepspeed_multinode_launcher": "standard"}}


def _native(problem: Problem, configuration: Configuration) -> dict[str, Any]:
    """Return the keys for FSDP2 if something is sharded or split, else for DDP."""
    c = configuration
    values: dict[str, Any] = {"mixed_precision": "bf16" if problem.training.precision == "bf16" else "no"}
    if c.zero_stage == 0 and c.tp == 1:
        several = "MULTI_GPU" if problem.cluster.on_cuda else "MULTI_CPU"
        return {**values, "distributed_type": several if c.dp > 1 else "NO"}
    fsdp = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": c.zero_stage == 3,
        "fsdp_activation_checkpointing": c.recompute == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    sizes = {"dp_replicate": 1, "dp_shard": c.dp, "tp": c.tp, "cp": 1}
    mesh = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    return {**values, "distributed_type": "FSDP", "fsdp_config": fsdp, "parallelism_config": mesh}


def parse(problem: Problem, files: Files) -> Reading:
    """Read accelerate's file, and DeepSpeed's own if it names one. The micro-batch is known only if the script is among the files."""
    values = values_of(files)
    kind = str(values.get("distributed_type", "NO"))
    if kind == "DEEPSPEED":
        return _parse_deepspeed(problem, files, values)
    if kind not in ("FSDP", "NO", "MULTI_GPU", "MULTI_CPU"):
        raise InputError(f"`distributed_type: {kind}` is none that oppa knows", hint="use FSDP, DEEPSPEED, MULTI_GPU, MULTI_CPU or NO")
    fsdp, mesh = values.get("fsdp_config") or {}, values.get("parallelism_config") or {}
    tp = mesh.get("parallelism_config_tp_size", 1)
    settings: dict[str, Value] = {"tp": tp, "zero_stage": _stage(fsdp) if kind == "FSDP" else 0}
    if mesh.get("parallelism_config_dp_shard_size", 2) == 1:
        settings["zero_stage"] = 0
    settings["recompute"] = "full" if fsdp.get("fsdp_activation_checkpointing") else "none"
    settings |= _micro_batch(problem, files, tp=tp)
    nested = (("fsdp_config", fsdp, _FSDP | _FSDP_IMMATERIAL), ("parallelism_config", mesh, _MESH))
    return Reading(settings=settings, ignored=tuple(_ignored(values, nested)))


def values_of(files: Files) -> dict[str, Any]:
    """Return the contents of accelerate's own file; raises InputError if it cannot be read."""
    return _yaml(only(files, ".yaml", ".yml"))


def _parse_deepspeed(problem: Problem, files: Files, values: dict[str, Any]) -> Reading:
    given = values.get("deepspeed_config") or {}
    ignored = tuple(_ignored(values, (("deepspeed_config", given, _DEEPSPEED),)))
    if named := given.get("deepspeed_config_file"):
        beside = {name: text for name, text in files.items() if name == str(named).rpartition("/")[2]}
        if not beside:
            raise InputError(f"it names `deepspeed_config_file: {named}`", hint=f"import that: `oppa import {named} --from deepspeed`")
        inner = deepspeed.parse(problem, beside)
        return Reading(settings=inner.settings, ignored=(*ignored, *inner.ignored))
    stage = given.get("zero_stage", 2)  # accelerate's own default
    settings: dict[str, Value] = {"zero_stage": stage, "overlap_zero_comm": stage == 3}
    if str(steps := given.get("gradient_accumulation_steps", "auto")).isdigit():
        settings["micro_batch"] = problem.global_batch // (problem.cluster.devices * int(steps))
    return Reading(settings={**settings, **_micro_batch(problem, files, tp=1)}, ignored=ignored)


def _stage(fsdp: dict[str, Any]) -> int:
    """Return the ZeRO stage of FSDP's settings, of either version."""
    strategy = str(fsdp.get("fsdp_sharding_strategy", fsdp.get("fsdp_reshard_after_forward", "FULL_SHARD"))).upper()
    stages = {**_STRATEGIES, **{str(number): stage for number, stage in enumerate((3, 2, 0), 1)}, "TRUE": 3, "FALSE": 2}
    if strategy not in stages:
        raise InputError(f"`fsdp_sharding_strategy: {strategy}` is no ZeRO stage", hint=f"use one of {', '.join(_STRATEGIES)}")
    return stages[strategy]


def _micro_batch(problem: Problem, files: Files, *, tp: int) -> dict[str, Value]:
    script = files.get(launch.SCRIPT, "")
    found = re.search(rf"{STEPS}=(\d+)", script)
    return {"micro_batch": problem.global_batch // (problem.cluster.devices // tp * int(found[1]))} if found else {}


def _yaml(text: str) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"it is not YAML: {error}", hint="give the file that `accelerate config` writes") from None
    if not isinstance(values, dict):
        raise InputError("there is no accelerate configuration in it", hint="give the file that `accelerate config` writes")
    return values


def _ignored(values: dict[str, Any], nested: tuple[tuple[str, dict[str, Any], set[str]], ...]) -> list[str]:
    inside = [f"{table}.{key} = {value}" for table, given, known in nested for key, value in given.items() if key not in known]
    inside = [text for text in inside if not text.endswith(("_cp_size = 1", "_sp_size = 1"))]
    tables = {table for table, *_ in nested}
    top = [f"{key} = {value}" for key, value in values.items() if key not in IMMATERIAL | _KNOWN | tables and value not in (None, {})]
    return top + inside
