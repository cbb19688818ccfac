"""Understand `accelerate launch`: its file of YAML, with the options of the line over it, and the batch if the program states one.

Keys and options: accelerate/commands/config/config_args.py and commands/launch.py (1.15).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import Value
from oppa.problem.devices import CPU
from oppa.problem.file_keys import at, require_tables
from oppa.problem.launch_line.line import Stage
from oppa.regular_file import is_file
from oppa.tuning.formats.accelerate import is_hybrid, stage_of
from oppa.tuning.formats.deepspeed import key_of
from oppa.tuning.formats.transformers import ACCUMULATED, MICRO
from oppa.tuning.launch_line.argument_file import in_sole_file
from oppa.tuning.launch_line.batch_hint import batch_hints
from oppa.tuning.launch_line.deepspeed_file import DeepSpeedFile
from oppa.tuning.launch_line.fine_tuning import fine_tuning, overestimated, unpredicted
from oppa.tuning.launch_line.local_model import cache_of
from oppa.tuning.launch_line.meaning import EditedFile, LineConflict, LineDevices, Meaning, StatedFact
from oppa.tuning.launch_line.options import require_number
from oppa.tuning.launch_line.recognise import reads_trainer_arguments
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import names_placeholders, placeholders, templates
from oppa.tuning.launch_line.trainer import (
    ALIASES,
    BATCH_WORDS,
    SHARDED_IN_HOST,
    TRAINER_ADDED,
    TRAINER_STEPS,
)
from oppa.tuning.launch_line.trainer_arguments import TrainerArguments

_MESH = "parallelism_config.parallelism_config_"
_DEGREES = ("tp", "cp", "sp", "dp_replicate")
_FSDP = "fsdp_config."
_SHARDING, _RESHARDS = "fsdp_sharding_strategy", "fsdp_reshard_after_forward"
_FSDP_RECOMPUTES, _FSDP_OFFLOADS = f"{_FSDP}fsdp_activation_checkpointing", f"{_FSDP}fsdp_offload_params"
_DEEPSPEED_FILE = "deepspeed_config.deepspeed_config_file"
_STAGE = "deepspeed_config.zero_stage"
_ACCUMULATION = "deepspeed_config.gradient_accumulation_steps"
_OFFLOADS = {
    "offload_optimizer": "deepspeed_config.offload_optimizer_device",
    "offload_params": "deepspeed_config.offload_param_device",
}
_KEYS = {
    "num-processes": "num_processes",
    "num-machines": "num_machines",
    "mixed-precision": "mixed_precision",
    "zero-stage": _STAGE,
    "gradient-accumulation-steps": _ACCUMULATION,
    "deepspeed-config-file": _DEEPSPEED_FILE,
    "offload-optimizer-device": _OFFLOADS["offload_optimizer"],
    "offload-param-device": _OFFLOADS["offload_params"],
    "fsdp-version": f"{_FSDP}fsdp_version",
    "fsdp-sharding-strategy": f"{_FSDP}{_SHARDING}",
    "fsdp-reshard-after-forward": f"{_FSDP}{_RESHARDS}",
    "fsdp-activation-checkpointing": _FSDP_RECOMPUTES,
    "fsdp-offload-params": _FSDP_OFFLOADS,
}
_KEYS |= {f"parallelism-config-{name.replace('_', '-')}-size": f"{_MESH}{name}_size" for name in (*_DEGREES, "dp_shard")}
_BY_FILE = ("zero_stage", *_OFFLOADS)
"""Settings that DeepSpeed's own file states, if there is one."""
_STARTS_SEVERAL = ("multi-gpu", "use-fsdp", "use-deepspeed", "use-megatron-lm", "tpu", "mpirun-hostfile")
_UNKNOWN_BATCH = "`{program}`'s own batch argument is unknown: name it `{{micro_batch}}`"


class Effective:
    """Holds accelerate's effective configuration: of two statements the line's counts."""

    def __init__(self, launcher: Stage, values: Mapping[str, Any], file: str) -> None:
        self._stated = {_KEYS[name]: value for name, value in launcher.options if name in _KEYS and value is not None}
        self.values, self.file = values, file
        kinds = {"use-deepspeed": "DEEPSPEED", "use-fsdp": "FSDP", "multi-gpu": "MULTI_GPU"}
        flagged = next((kind for name, kind in kinds.items() if launcher.has(name)), "")
        self.kind = flagged or str(values.get("distributed_type") or "")
        self.conflicts = [
            LineConflict(about=key, taken=f"{value.text} ({value.origin})", other=f"{before} ({file})")
            for key, value in self._stated.items()
            if (before := at(values, key)) is not None and str(before) != value.text
        ]

    def get(self, key: str) -> Any:
        """Return the value of a key; None if nothing states it. Texts of the line are read as YAML would."""
        if key in self._stated:
            text = self._stated[key].text
            number = whole_number(text)
            return number if number is not None else {"true": True, "false": False}.get(text.lower(), text)
        return at(self.values, key)

    def origin(self, key: str) -> str:
        """Return the origin of a key's value; empty if nothing states it."""
        if key in self._stated:
            return self._stated[key].origin
        return self.file if at(self.values, key) is not None else ""

    def count(self, key: str, usual: int | None = None, *, least: int = 1) -> int | None:
        """Return a number of a key, or the usual one; raises InputError for another value in the line."""
        if key in self._stated:
            word = self._stated[key]
            return require_number(word, f"{key} = {word.text}", word.origin, least=least)
        found = self.get(key)
        return found if type(found) is int and found >= least else usual


def effective_of(launcher: Stage, sources: LineSources) -> tuple[Effective, Path | None]:
    """Return the effective configuration, and the file's path if the line, or the user's cache, has one."""
    named = launcher.value("config-file")
    path = sources.line.path(named.text) if named is not None else None
    if named is not None:
        return Effective(launcher, sources.contents(named), PurePath(named.text).name), path
    usual = cache_of(sources.environment) / "accelerate" / "default_config.yaml"
    if is_file(usual):
        return Effective(launcher, sources.contents(str(usual)), "accelerate's default file"), usual
    return Effective(launcher, {}, ""), None


def devices_of_launcher(launcher: Stage, sources: LineSources) -> LineDevices:
    """Return the devices that `accelerate launch` starts."""
    effective, _ = effective_of(launcher, sources)
    hosts = effective.count("num_machines", 1) or 1
    total = effective.count("num_processes")
    if total is None:
        return LineDevices(hosts=hosts, per_host=sources.machine.gpus or 1, origin="this machine")
    if total % hosts:
        raise InputError(f"{total} processes do not divide over {hosts} machines", hint="start equally many on each")
    if total > 1:
        _require_several(launcher, effective, sources, f"`num_processes = {total}` ({effective.origin('num_processes')})")
    return LineDevices(hosts=hosts, per_host=total // hosts, origin=effective.origin("num_processes"))


def _require_several(launcher: Stage, effective: Effective, sources: LineSources, stated: str) -> None:
    """Raise InputError if accelerate starts one process in place of several.

    Source: _validate_launch_command and launch_command in accelerate/commands/launch.py (1.15).
    """
    if (launcher.has(*_STARTS_SEVERAL) and not launcher.has("cpu")) or effective.values.get("mpirun_config"):
        return
    kind = effective.values.get("distributed_type")
    gpus, is_planned = sources.machine.gpus, sources.device.upper() not in ("", CPU)
    line = sources.line
    is_here = line.stage("step") is None and not line.header and effective.count("num_machines", 1) == 1
    hint = f"on CPUs, `ACCELERATE_USE_CPU=true torchrun --nproc-per-node {effective.count('num_processes')} {line.started} ...` starts them"
    if launcher.has("cpu"):
        why = "`--cpu` is given"
    elif kind is False or kind in ("NO", "MULTI_CPU"):
        why = f"`distributed_type` is `{'NO' if kind is False else kind}` ({effective.file})"
        hint = f"write `distributed_type: MULTI_GPU`; {hint}"
    elif not effective.values and gpus < 2 and is_here and not is_planned:
        why = "this machine has one GPU" if gpus else "this machine has no GPU"
        hint = f"{hint}; `--set cluster.device=H100` plans for the GPUs of another machine"
    else:
        return
    raise InputError(f"{stated} starts one process: {why}", hint=hint)


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line of accelerate.

    Raises:
        InputError: a file cannot be read, or a number is unreadable.
    """
    launcher = sources.line.stage("accelerate")
    assert launcher is not None
    effective, path = effective_of(launcher, sources)
    file = _deepspeed_file(effective, sources)
    settings, origins = _settings(effective, sources.devices)
    precision = {"bf16": "bf16", "fp16": "fp16", "no": "fp32"}.get(str(effective.get("mixed_precision")), "")
    meaning = Meaning(
        framework="accelerate",
        evidence=evidence,
        devices=sources.devices,
        precision=precision,
        settings=settings,
        origins=origins,
        words=tuple(templates(sources.line.arguments)),
        conflicts=tuple(effective.conflicts),
        missing=sources.missing,
    )
    names = names_placeholders(sources.line.arguments)
    reads = bool(reads_trainer_arguments(sources))
    if file is not None:
        meaning = _with_deepspeed_file(meaning, effective, file, rewrites_batch=names or reads)
    else:
        divides = reads or any(placeholders(each) & {"micro_batch", "num_microbatches"} for each in meaning.words)
        files, choices = _edited(effective, path, settings, accumulates=divides and _states_accumulation(effective))
        meaning = dataclasses.replace(meaning, files=files, choices=choices)
    facts = [StatedFact(name="file", value=str(path), origin="--config_file")] if path is not None else []
    meaning = dataclasses.replace(meaning, facts=(*facts, *meaning.facts))
    if reads:
        return _with_trainer(meaning, sources, states_precision=file is not None and bool(file.precision))
    if names:
        return meaning
    hints = [*batch_hints(sources)] or [_UNKNOWN_BATCH.format(program=sources.line.program_name)]
    return dataclasses.replace(meaning, hints=tuple(hints))


def _deepspeed_file(effective: Effective, sources: LineSources) -> DeepSpeedFile | None:
    """Return DeepSpeed's own file if the line or accelerate's file names one."""
    if effective.kind != "DEEPSPEED" or (named := effective.get(_DEEPSPEED_FILE)) is None:
        return None
    return DeepSpeedFile.named(sources, str(named))


def _with_deepspeed_file(meaning: Meaning, effective: Effective, file: DeepSpeedFile, *, rewrites_batch: bool) -> Meaning:
    """Return the meaning with DeepSpeed's own file, whose values count. Those that are "auto" are accelerate's.

    Source: DeepSpeedPlugin.__post_init__ and set_mixed_precision in accelerate/utils/dataclasses.py.

    Args:
        rewrites_batch: True if trials have another micro-batch, which the file has to state as well.
    """
    auto = {name for name in _BY_FILE if at(file.values, key_of(name)) == "auto"}
    by_file = {name: value for name, value in file.settings.items() if name not in auto}
    others = {name: value for name, value in meaning.settings.items() if name in auto or name not in _BY_FILE}
    ranks = meaning.settings.get("dp")
    by_file |= {} if ranks is None or "sp" in others else file.degrees(int(ranks))
    ranks = by_file.get("dp", ranks)
    global_batch, micro = file.batch(None if ranks is None else int(ranks))
    by_file |= {"micro_batch": micro} if micro else {}
    edited = file.edited(batch="all but auto" if rewrites_batch else "none")
    stated = [*by_file, *(["precision"] if file.precision else [])]
    return dataclasses.replace(
        meaning,
        precision=file.precision or meaning.precision,
        global_batch=global_batch,
        batch_origin=file.shown,
        settings={**others, **by_file},
        origins={**meaning.origins, **dict.fromkeys(stated, file.shown)},
        files=(edited,) if edited.keys else (),
        choices=file.choices,
        facts=(StatedFact(name="file", value=file.text, origin=effective.origin(_DEEPSPEED_FILE)),),
    )


def _with_trainer(meaning: Meaning, sources: LineSources, *, states_precision: bool) -> Meaning:
    """Return the meaning of a line whose program reads the Trainer's arguments: with its model, its batch and its recomputation.

    Args:
        states_precision: True if a file of DeepSpeed states the precision, which Transformers compares with the arguments.
    """
    trainer = TrainerArguments.of(sources)
    model, model_origin, hints = trainer.model(sources)
    meaning = dataclasses.replace(
        meaning,
        writes_as="transformers",
        model=model,
        model_origin=model_origin,
        hints=(*hints, *trainer.hints_on_cpus(sources)),
        steps=TRAINER_STEPS,
        added=TRAINER_ADDED,
        training=fine_tuning(trainer),
        unpredicted=tuple(unpredicted(trainer)),
        overestimated=tuple(overestimated(trainer)),
        notes=(SHARDED_IN_HOST,) if model and int(meaning.settings.get("dp_replicate", 1)) > 1 else (),
    )
    if not states_precision and trainer.precision not in ("fp32", meaning.precision):
        origins = {**meaning.origins, "precision": trainer.origins["precision"]}
        meaning = dataclasses.replace(meaning, precision=trainer.precision, origins=origins)
    replaced = {"logging_steps"}
    if trainer.recomputes:
        meaning = _with_recompute(meaning, trainer)
        replaced |= {*trainer.program.recompute}
    if states_batch := trainer.states(MICRO) or not names_placeholders(sources.line.arguments):
        replaced |= {MICRO, ACCUMULATED}
    meaning = dataclasses.replace(meaning, words=tuple(templates(trainer.options.without(replaced))))
    if not states_batch:
        return meaning  # a placeholder is the batch
    (micro, origin), (accumulated, _) = trainer.number(MICRO), trainer.number(ACCUMULATED)
    dp = meaning.settings.get("dp")
    meaning = dataclasses.replace(
        _with_setting(meaning, "micro_batch", micro, origin),
        global_batch=None if dp is None else micro * accumulated * int(dp),
        batch_origin=f"{micro} x {accumulated} x dp ({origin})",
        arguments={**BATCH_WORDS, **meaning.arguments},
    )
    return in_sole_file(meaning, sources, trainer.values)


def _with_recompute(meaning: Meaning, trainer: TrainerArguments) -> Meaning:
    """Return the meaning of a line whose arguments turn recomputation on. They vary, not FSDP's own: Transformers refuses both."""
    files = [
        dataclasses.replace(file, keys={key: to for key, to in file.keys.items() if key != _FSDP_RECOMPUTES}) for file in meaning.files
    ]
    return dataclasses.replace(
        _with_setting(meaning, "recompute", "full", trainer.origins["recompute"]),
        files=tuple(file for file in files if file.keys),
        arguments={"recompute": trainer.program.recompute_words},
        aliases=ALIASES,
        choices={**meaning.choices, "recompute": [*trainer.program.recompute_words]},
    )


def _with_setting(meaning: Meaning, name: str, value: Value, origin: str) -> Meaning:
    return dataclasses.replace(meaning, settings={**meaning.settings, name: value}, origins={**meaning.origins, name: origin})


def _settings(effective: Effective, devices: LineDevices) -> tuple[dict[str, Value], dict[str, str]]:
    """Return the present configuration, and the origins of what is stated."""
    sizes = {name: effective.count(f"{_MESH}{name}_size", 1) or 1 for name in _DEGREES}
    found: dict[str, Value] = {"tp": sizes["tp"], "pp": 1}
    found |= {name: sizes[name] for name in _DEGREES[1:] if effective.get(f"{_MESH}{name}_size") is not None}
    if devices.count is not None:
        product = sizes["tp"] * sizes["cp"] * sizes["sp"]
        if devices.count % product:
            raise InputError(f"tp x cp x sp = {product} does not divide {devices.count} processes", hint="correct the file of accelerate")
        found["dp"] = devices.count // product
    origins = {name: effective.origin(f"{_MESH}{name}_size") for name in _DEGREES}
    origins |= {"precision": effective.origin("mixed_precision"), "recompute": effective.origin(_FSDP_RECOMPUTES)}
    origins |= {"fsdp_offload": effective.origin(_FSDP_OFFLOADS)}
    origins |= {name: effective.origin(key) for name, key in _OFFLOADS.items()}
    match effective.kind:
        case "FSDP":
            stated = _sharding(effective)
            found["zero_stage"] = stage_of(stated)
            found |= {"dp_replicate": devices.hosts} if is_hybrid(stated) and devices.hosts > 1 else {}
            found["recompute"] = "full" if effective.get(_FSDP_RECOMPUTES) is True else "none"
            if isinstance(offload := effective.get(_FSDP_OFFLOADS), bool):
                found["fsdp_offload"] = offload
            origins["zero_stage"] = next((effective.origin(f"{_FSDP}{key}") for key in stated), "default of accelerate")
            origins["dp_replicate"] = origins["dp_replicate"] or origins["zero_stage"]
        case "DEEPSPEED":
            found["zero_stage"] = effective.count(_STAGE, 2, least=0) or 0
            origins["zero_stage"] = effective.origin(_STAGE) or "default of accelerate"
            for name, key in _OFFLOADS.items():
                if (offloaded := effective.get(key)) not in (None, "none"):
                    found[name] = str(offloaded)
    return found, origins


def _sharding(effective: Effective) -> dict[str, Any]:
    """Return what is stated of how FSDP shards, in either version."""
    return {key: value for key in (_SHARDING, _RESHARDS) if (value := effective.get(f"{_FSDP}{key}")) is not None}


def _states_accumulation(effective: Effective) -> bool:
    """Return whether the file states the micro-batches of DeepSpeed, which have to be those of the program.

    Source: HfTrainerDeepSpeedConfig.fill_match (Transformers 5.23), Accelerator._prepare_deepspeed (accelerate 1.15).

    Raises:
        InputError: an option of the launcher states them, which would be the same in all trials.
    """
    if effective.kind != "DEEPSPEED":
        return False
    if effective.origin(_ACCUMULATION) == "line":
        message = "`--gradient_accumulation_steps` of `accelerate launch` has one value in all trials, and the program's own varies"
        raise InputError(message, hint="remove it in front of the program: DeepSpeed takes the program's own")
    return type(effective.get(_ACCUMULATION)) is int


def _edited(
    effective: Effective, path: Path | None, settings: Mapping[str, Value], *, accumulates: bool
) -> tuple[tuple[EditedFile, ...], dict[str, Any]]:
    """Return accelerate's own file, of which trials get copies, and the choices of what varies in it.

    Args:
        accumulates: True if trials write how many micro-batches DeepSpeed accumulates.
    """
    if path is None:
        return (), {}
    keys: dict[str, Any] = {}
    choices: dict[str, Any] = {}
    if effective.kind == "FSDP":
        if effective.origin(f"{_FSDP}{_RESHARDS}") and str(effective.get(f"{_FSDP}fsdp_version")) == "2":
            keys[f"{_FSDP}{_RESHARDS}"] = {"zero_stage": {"2": False, "3": True}}
        else:
            hybrid = is_hybrid(_sharding(effective))
            strategies = ("HYBRID_SHARD_ZERO2", "HYBRID_SHARD") if hybrid else ("SHARD_GRAD_OP", "FULL_SHARD")
            keys[f"{_FSDP}{_SHARDING}"] = {"zero_stage": dict(zip(("2", "3"), strategies, strict=True))}
        choices["zero_stage"] = [2, 3] if settings.get("zero_stage") in (2, 3) else []
        if effective.get(_FSDP_RECOMPUTES) is not None:
            keys[_FSDP_RECOMPUTES] = {"recompute": {"none": False, "full": True}}
            choices["recompute"] = ["none", "full"]
        if not choices["zero_stage"]:
            return (), {}
    elif effective.kind == "DEEPSPEED" and settings.get("offload_params") is None:
        keys[_STAGE] = "{zero_stage}"
        choices["zero_stage"] = [1, 2, 3]
    if any(effective.origin(key) == "line" for key in keys):
        keys, choices = {}, {}  # the line's own option would win over the copy
    if accumulates:
        keys[_ACCUMULATION] = "{num_microbatches}"
    require_tables(effective.values, keys, source=path.name)
    present = {key: effective.get(key) for key in keys}
    return ((EditedFile(name="accelerate", path=path, keys=keys, present=present),) if keys else ()), choices
