"""DeepSpeed (0.19): `ds_config.json`, and `prepare.py` for settings without a key: the pipeline's stages and recomputation.

Keys: deepspeed.runtime.config.DeepSpeedConfig and deepspeed.runtime.zero.config.DeepSpeedZeroConfig.
"""

import json
from typing import Any

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.space import Value
from oppa.tuning.formats import launch, source
from oppa.tuning.formats.format import Files, Reading, element_bytes, elements, inexpressible, is_chosen, is_knob, mebibytes

NAME = "DeepSpeed"
CONFIG, PREPARE = "ds_config.json", "prepare.py"
FILES = (CONFIG, PREPARE, launch.SCRIPT)
EXPRESSES = ("pp", "zero_stage", "zero_bucket_mb", "overlap_zero_comm", "recompute")

IMMATERIAL = frozenset(
    [
        "steps_per_print",
        "wall_clock_breakdown",
        "dump_state",
        "memory_breakdown",
        "comms_logger",
        "tensorboard",
        "wandb",
        "comet",
        "csv_monitor",
        "flops_profiler",
        "autotuning",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
    ]
)
"""Keys that change neither the speed nor the memory of a run, or only how it is monitored."""
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
"""Keys that are both set by one parameter of oppa."""
_TOP = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16")
_NESTED = {
    "zero_optimization": ("stage", "reduce_bucket_size", "overlap_comm"),
    "tensor_parallel": ("autotp_size",),
    "pipeline": ("stages", "activation_checkpoint_interval"),
}

_PIPELINE = '''\
"""Made by oppa: the model as DeepSpeed is to train it with {id}."""

from deepspeed.pipe import PipelineModule


def prepare(layers, **others):
    """The layers as a pipeline: `deepspeed.initialize(model=prepare(layers, loss_fn=...), config="ds_config.json")`."""
    return PipelineModule(
        layers=layers,
{arguments}
        **others,
    )
'''
_CHECKPOINTED = '''\
"""Made by oppa: the model as DeepSpeed is to train it with {id}."""


def prepare(model):
    """A transformers model that recomputes its layers: `deepspeed.initialize(model=prepare(model), config="ds_config.json")`."""
    model.gradient_checkpointing_enable()
    return model
'''


def export(problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files; raises InputError for selective recomputation, and for settings that do not work inside a PipelineModule."""
    _check(problem, configuration)
    text = json.dumps(config(problem, configuration), indent=2) + "\n"
    prepared = _prepare(configuration)
    notes = (f"TRAIN.py calls `prepare` of {PREPARE} on its model.",) if prepared else ()
    start = f'exec {launch.torchrun(problem)} "$@" --deepspeed --deepspeed_config "$here/{CONFIG}"'
    body = f'export PYTHONPATH="$here${{PYTHONPATH:+:$PYTHONPATH}}"\n{start}' if prepared else start
    run = launch.script(problem, configuration, usage="TRAIN.py [ARGUMENT]...", body=body, notes=notes)
    return {CONFIG: text, **({PREPARE: prepared} if prepared else {}), launch.SCRIPT: run}


def config(problem: Problem, configuration: Configuration) -> dict[str, Any]:
    """Return the contents of `ds_config.json`."""
    c = configuration
    zero: dict[str, Any] = {"stage": c.zero_stage}
    if c.zero_stage:
        zero["overlap_comm"] = c.overlap_zero_comm
        if is_knob(problem, "zero_bucket_mb"):
            zero |= dict.fromkeys(BUCKETS, elements(c.zero_bucket_mb, size=element_bytes(problem)))
    interval = {"activation_checkpoint_interval": 1} if c.recompute == "full" else {}
    return {
        "train_batch_size": c.global_batch,
        "train_micro_batch_size_per_gpu": c.micro_batch,
        "gradient_accumulation_steps": c.num_microbatches,
        "bf16": {"enabled": problem.training.precision == "bf16"},
        "zero_optimization": zero,
        **({"tensor_parallel": {"autotp_size": c.tp}} if c.tp > 1 else {}),
        **({"pipeline": {"stages": c.pp, **interval}} if c.pp > 1 else {}),
    }


def parse(problem: Problem, files: Files) -> Reading:
    """Read a DeepSpeed file; keys that are "auto" count as missing."""
    values = said(files)
    zero, pipeline = values.get("zero_optimization") or {}, values.get("pipeline") or {}
    stage = zero.get("stage", 0)
    settings: dict[str, Value] = {"zero_stage": stage, "overlap_zero_comm": zero.get("overlap_comm", stage == 3)}
    settings |= {"tp": (values.get("tensor_parallel") or {}).get("autotp_size") or 1, "pp": pipeline.get("stages", 1)}
    if "reduce_bucket_size" in zero:
        settings["zero_bucket_mb"] = mebibytes(zero["reduce_bucket_size"], size=element_bytes(problem))
    settings |= _batch(values, devices=problem.cluster.devices // (int(settings["tp"]) * int(settings["pp"])))
    prepared = files.get(PREPARE, "")
    recomputed = pipeline.get("activation_checkpoint_interval") or (prepared and _recomputes(prepared))
    settings["recompute"] = "full" if recomputed else "none"
    return Reading(settings=settings, ignored=tuple(_ignored(values)))


def said(files: Files) -> dict[str, Any]:
    """Return the contents of a file without values that are "auto"; raises InputError if it cannot be read."""
    return _said(_json(files))


def _check(problem: Problem, configuration: Configuration) -> None:
    if configuration.recompute == "selective":
        raise inexpressible(NAME, configuration, "recompute", hint='it recomputes whole layers: "none" or "full"')
    if configuration.pp > 1 and configuration.tp > 1:
        raise inexpressible(NAME, configuration, "tp", beside="pp", hint="AutoTP does not work inside a PipelineModule")
    if configuration.pp > 1 and configuration.zero_stage > 1:
        raise inexpressible(NAME, configuration, "zero_stage", beside="pp", hint="PipelineModule takes ZeRO 0 and 1")
    for name in ("zero_bucket_mb", "overlap_zero_comm"):
        if configuration.zero_stage == 0 and is_chosen(problem, configuration, name):
            raise inexpressible(NAME, configuration, name, beside="zero_stage", hint="that is ZeRO's: 1, 2 or 3")


def _prepare(configuration: Configuration) -> str:
    """Return the text of `prepare.py`; empty if the JSON file expresses everything."""
    if configuration.pp == 1:
        return _CHECKPOINTED.format(id=configuration.id) if configuration.recompute == "full" else ""
    interval = {"activation_checkpoint_interval": 1} if configuration.recompute == "full" else {}
    return _PIPELINE.format(id=configuration.id, arguments=source.arguments({"num_stages": configuration.pp, **interval}))


def _recomputes(prepared: str) -> bool:
    return source.called(prepared, "gradient_checkpointing_enable") is not None


def _batch(values: dict[str, Any], *, devices: int) -> dict[str, Value]:
    """Return the batch sizes. DeepSpeed derives the third of its sizes from two, by the data-parallel ranks."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, steps = (values.get(name) for name in names)
    if micro is None and total is not None:
        micro = total // (devices * (steps or 1))
    if total is None and micro is not None and steps is not None:
        total = micro * steps * devices
    return {name: value for name, value in (("global_batch", total), ("micro_batch", micro)) if value is not None}


def _json(files: Files) -> dict[str, Any]:
    name = next((name for name in files if name.endswith(".json")), None)
    try:
        values = json.loads(files[name]) if name else None
    except json.JSONDecodeError as error:
        raise InputError(f"`{name}` is not JSON: {error}", hint="give a DeepSpeed configuration file") from None
    if not isinstance(values, dict):
        raise InputError("there is no DeepSpeed configuration", hint=f"give a JSON file with an object in it; got {', '.join(files)}")
    return values


def _said(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are not "auto", which transformers and accelerate fill in."""
    return {key: _said(value) if isinstance(value, dict) else value for key, value in values.items() if value != "auto"}


def _ignored(values: dict[str, Any]) -> list[str]:
    found = []
    for key, value in values.items():
        if key in _NESTED and isinstance(value, dict):
            known = (*_NESTED[key], *(bucket for bucket in BUCKETS if value.get(bucket) == value.get(BUCKETS[0])))
            found += [f"{key}.{inner} = {json.dumps(given)}" for inner, given in value.items() if inner not in known]
        elif key not in (*_TOP, *_NESTED) and key not in IMMATERIAL:
            found.append(f"{key} = {json.dumps(value)}")
    return found
