"""The `Trainer` of Transformers (5.23): `training_arguments.json`, as `HfArgumentParser` reads it, and the same options in `run.sh`.

Names: transformers/training_args.py. The options are those that search_spaces/transformers.toml declares.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import parse_json, parse_yaml
from oppa.problem.configuration import Configuration, Value
from oppa.problem.problem import Problem
from oppa.tuning.formats import deepspeed, launch, options, space_words, stated, torchrun
from oppa.tuning.formats.format import Files, Reading

NAME = "Transformers"
SPACE = "transformers"
CONFIG = "training_arguments.json"
FILES = (CONFIG, deepspeed.CONFIG, launch.SCRIPT)
MICRO, ACCUMULATED, BUCKET = "per_device_train_batch_size", "gradient_accumulation_steps", "ddp_bucket_cap_mb"
DEFAULTS = {MICRO: 8, ACCUMULATED: 1}
"""Values of TrainingArguments that are not stated."""
RECOMPUTE = ("gradient_checkpointing", "activation_checkpointing")
FSDP_RECOMPUTES = "activation_checkpointing"
_KEEPS = "reshard_after_forward"
_WRAPPING = ("transformer_layer_cls_to_wrap", "min_num_params", "auto_wrap_policy", "version", "state_dict_type", "use_orig_params")
_FSDP_IMMATERIAL = {*_WRAPPING, "cpu_ram_efficient_loading", "sync_module_states"}

_OTHERS = ("logging_", "save_", "eval_", "hub_", "push_to_", "report_to", "run_name", "project", "trackio", "output_dir", "overwrite_")
_LEARNING = (
    "seed",
    "data_seed",
    "do_",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "weight_decay",
    "lr_",
    "warmup_",
    "adam_",
    "max_grad_",
)
IMMATERIAL = (*_OTHERS, *_LEARNING, "resume_from", "disable_tqdm", "load_best", "metric_for", "greater_is", "log_level", "remove_unused")
"""Beginnings of arguments that change neither the speed nor the memory of a step."""
_READ = {MICRO, ACCUMULATED, BUCKET, *RECOMPUTE, "fsdp", "fsdp_config", "bf16", "deepspeed"}


def export(problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files; raises InputError for a parameter or a value without an option."""
    known = options.parameters(SPACE, problem)
    options.require_options(known, problem, configuration, target=NAME)
    words = options.written(known, problem, configuration, leave_out=("dp", "micro_batch"))  # the words of dp are for trials
    words = [f"--{MICRO}", str(configuration.micro_batch), f"--{ACCUMULATED}", str(configuration.num_microbatches), *words]
    if "bf16" not in configuration.names and problem.training.precision == "bf16":
        words += ["--bf16", "true"]
    start = f'exec {launch.torchrun(problem)} "$@" {shlex.join(words)}'
    notes = (f"TRAIN.py reads its arguments by HfArgumentParser. {CONFIG} has the same ones, for a program that reads a file.",)
    usage = "TRAIN.py [ARGUMENT]..."
    if own := torchrun.own_line(problem, configuration) if problem.space.name == SPACE else "":
        usage = f"[{usage}]          default: the study's own program"
        start = f"if test $# -eq 0; then\n{own}\nfi\n{start}"
    run = launch.script(problem, configuration, usage=usage, body=start, notes=notes, starts_own=bool(own))
    return {CONFIG: json.dumps(options.arguments(words), indent=2) + "\n", launch.SCRIPT: run}


def parse(problem: Problem, files: Files) -> Reading:
    """Read a file of TrainingArguments, and DeepSpeed's own if it names one that is among the files."""
    values = values_of(files)
    if named := values.get("deepspeed"):
        inner = deepspeed.parse_named(problem, files, str(named), key="deepspeed")
        settings, ignored = dict(inner.settings), inner.ignored
    else:
        settings, ignored = {"zero_stage": stage_of(values)}, ()
    recomputes = [stated.switch(values, name, usual=False) for name in RECOMPUTE]
    recomputes.append(stated.switch(fsdp_config(values), FSDP_RECOMPUTES, usual=False))
    settings["recompute"] = "full" if any(recomputes) else "none"
    settings |= {"dp_bucket_mb": stated.amount(values, BUCKET)} if BUCKET in values else {}
    settings |= _batch(values, ranks=problem.cluster.devices)
    known = space_words.worded(problem, (SPACE,))
    extras = space_words.read(known, options.options_of(values))
    read = _READ | {name.removeprefix("--") for name in space_words.stated(known, extras)}
    return Reading(settings=settings | extras, ignored=(*ignored, *_ignored(values, read), *_ignored_of_fsdp(values)))


def values_of(files: Files) -> dict[str, Any]:
    """Return the arguments in a JSON or YAML file; raises InputError if it cannot be read."""
    hint = "name a file of TrainingArguments, in JSON or YAML"
    for name, text in files.items():
        if name.endswith((".json", ".yaml", ".yml")) and name != deepspeed.CONFIG:
            values = (parse_json if name.endswith(".json") else parse_yaml)(text, source=f"`{name}`", hint=hint)
            if isinstance(values, dict):
                return values
    raise InputError(f"there are no arguments of the Trainer in {', '.join(files) or 'no file'}", hint=hint)


def stage_of(values: Mapping[str, Any]) -> int:
    """Return the ZeRO stage of `fsdp` and `fsdp_config`: a truth value since release 5, texts such as `full_shard` before."""
    text = _fsdp(values)
    if not text:
        return 0
    keeps = any(name in text for name in ("shard_grad_op", "zero2")) or fsdp_config(values).get(_KEEPS) is False
    return 0 if "no_shard" in text else 2 if keeps else 3


def is_hybrid(values: Mapping[str, Any]) -> bool:
    """Return whether FSDP shards within each host alone, so that each host has a replica."""
    return "hybrid_shard" in _fsdp(values)


def _fsdp(values: Mapping[str, Any]) -> str:
    """Return what is stated of how FSDP shards, in lower case; empty if it is off."""
    fsdp = values.get("fsdp")
    text = " ".join(map(str, fsdp if isinstance(fsdp, list) else [fsdp or ""])).lower()
    return f"{text} {fsdp_config(values).get(_KEEPS)}".lower() if text not in ("", "false") else ""


def fsdp_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of FSDP, whose names may begin with `fsdp_`."""
    return {name.removeprefix("fsdp_"): value for name, value in stated.table(values, "fsdp_config").items()}


def _batch(values: Mapping[str, Any], *, ranks: int) -> dict[str, Value]:
    """Return the batch sizes that are stated, or those of the defaults."""
    micro, steps = (stated.count(values, name, usual) for name, usual in DEFAULTS.items())
    return {"micro_batch": micro, "global_batch": micro * steps * ranks}


def _ignored(values: Mapping[str, Any], read: set[str]) -> list[str]:
    """Return the arguments that may matter, and that no parameter covers."""
    others = {name: value for name, value in values.items() if name not in read and not name.startswith(IMMATERIAL)}
    return [f"{name} = {json.dumps(value)}" for name, value in others.items() if value not in (None, False, "")]


def _ignored_of_fsdp(values: Mapping[str, Any]) -> list[str]:
    """Return the settings of FSDP that may matter, and that no parameter covers; offloading among them."""
    text = json.dumps(values.get("fsdp"))
    others = {name: value for name, value in fsdp_config(values).items() if name not in {_KEEPS, FSDP_RECOMPUTES, *_FSDP_IMMATERIAL}}
    found = [f"fsdp_config.{name} = {json.dumps(value)}" for name, value in others.items() if value not in (None, False, "")]
    return [f"fsdp = {text}", *found] if "offload" in text or is_hybrid(values) else found
