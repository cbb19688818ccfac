"""Understand a launch line of Megatron-DeepSpeed: options of an early Megatron-LM, with a file of DeepSpeed that states the batch and ZeRO.

Sources: megatron/arguments.py and training.py of deepspeedai/Megatron-DeepSpeed (4efb479) and of bigscience-workshop/Megatron-DeepSpeed.
The program has a pipeline of DeepSpeed, also with a single stage, unless `--no-pipeline-parallel` is given.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from oppa.errors import InputError
from oppa.problem.configuration import Value
from oppa.problem.templates import literal
from oppa.tuning.launch_line import megatron
from oppa.tuning.launch_line.deepspeed_file import DeepSpeedFile
from oppa.tuning.launch_line.meaning import LineConflict, Meaning, imposed_note
from oppa.tuning.launch_line.options import Options, contradiction
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates, with_copy

_FILE, _SEQUENCE, _STAGE, _WITHOUT = "--deepspeed_config", "--ds-sequence-parallel-size", "--zero-stage", "--no-pipeline-parallel"
_TP, _PP, _MICRO, _GLOBAL = "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--micro-batch-size", "--global-batch-size"
_STEPS = {"pattern": r"iteration\s+(?P<step>[0-9]+)/.*?elapsed time per iteration"}
"""Both forks print the time of a step in units of their own, so the clock counts."""
_KEPT = ("tp", "pp", "dp", "micro_batch", "recompute")
_PATHS = {
    **dict.fromkeys(("--save", "--load", "--tensorboard-dir", "--wandb-save-dir", "--codecarbon-dir", "--kill-switch-path"), "disable"),
    **dict.fromkeys(("--data-path", "--train-data-path", "--valid-data-path", "--test-data-path", "--vocab-file", "--merge-file"), "read"),
    **dict.fromkeys(("--tokenizer-model", "--tokenizer-name-or-path", "--save-interval", "--data-impl", "--split"), "read"),
    **dict.fromkeys(("--checkpoint-activations", "--deepspeed-activation-checkpointing", "--checkpoint-num-layers"), "read"),
    **dict.fromkeys(("--train-weighted-split-paths-path", "--valid-weighted-split-paths-path", "--data-cache-path"), "read"),
}


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line of Megatron-DeepSpeed.

    Raises:
        InputError: as Megatron-LM's reader does; or the file cannot be read, or states another batch or precision than the options.
    """
    options = Options(sources.line.arguments)
    has_pipeline = _WITHOUT not in options
    file = DeepSpeedFile.of(sources, options.get(_FILE), has_pipeline=has_pipeline)
    made = megatron.understand(sources, evidence=evidence)
    settings = _settings(made, options, file)
    _require_one_meaning(made, options, file, int(settings.get("dp", 1)), has_pipeline=has_pipeline)
    arguments = _arguments(settings, file, has_pipeline=has_pipeline)
    names = {_TP: "tp", _PP: "pp", _STAGE: "zero_stage", _MICRO: "micro_batch", _GLOBAL: "micro_batch"}
    replaced = {*megatron.MEASURED, *(option for option, name in names.items() if name in arguments)}
    return dataclasses.replace(
        made,
        framework="megatron-deepspeed",
        writes_as="deepspeed",
        model=_model(made, options),
        settings=settings,
        origins={**{name: made.origins[name] for name in _KEPT if name in made.origins}, "zero_stage": file.shown},
        space="",
        completes=False,
        words=tuple(with_copy(templates(options.without(replaced)), file.text, "ds")),
        aliases={},
        derived={},
        imposed=(),
        arguments=arguments,
        files=(file.edited(batch="all but auto"),),
        choices=file.choices,
        steps=_STEPS,
        paths=dict(_paths(options)),
        conflicts=(*made.conflicts, *_stages(options, file)),
        notes=tuple(note for note in made.notes if note not in map(imposed_note, made.imposed)),
    )


def _settings(made: Meaning, options: Options, file: DeepSpeedFile) -> dict[str, Value]:
    """Return the present configuration; raises InputError if the degrees do not divide the devices."""
    found: dict[str, Value] = {name: made.settings[name] for name in _KEPT if name in made.settings}
    found["zero_stage"] = file.stage
    sequence = options.number(_SEQUENCE) or 1
    if sequence > 1 and "dp" in found:
        if int(found["dp"]) % sequence:
            raise InputError(f"`{_SEQUENCE} {sequence}` does not divide the {found['dp']} ranks of a stage", hint="use a divisor of them")
        found |= {"dp": int(found["dp"]) // sequence, "sp": sequence}
    return found


def _require_one_meaning(made: Meaning, options: Options, file: DeepSpeedFile, dp: int, *, has_pipeline: bool) -> None:
    """Raise InputError if the options and the file of DeepSpeed state different things."""
    if has_pipeline and file.stage > 1:
        message = f"{file.shown} states ZeRO {file.stage}, which DeepSpeed refuses with the pipeline of this program"
        raise contradiction(message, hint=f"use ZeRO 0 or 1, or add `{_WITHOUT}`")
    total, micro = file.batch(dp)
    for option, stated in ((_GLOBAL, total), (_MICRO, micro)):
        number = options.number(option)
        if stated is not None and number is not None and stated != number:
            message = f"`{option} {number}` ({options.origin(option)}), and {stated} in {file.shown}"
            raise contradiction(message, hint="state the same in both")
    if file.precision and file.precision != made.precision:
        message = f"{made.precision} by the options, and {file.precision} in {file.shown}"
        raise contradiction(message, hint="state the same in both")


def _arguments(settings: dict[str, Value], file: DeepSpeedFile, *, has_pipeline: bool) -> dict[str, Any]:
    """Return the words of each parameter that varies; with sequence parallelism, the degrees stay."""
    found: dict[str, Any] = {}
    if "sp" not in settings:
        found["tp"] = [_TP, "{tp}"]
        found |= {"pp": [_PP, "{pp}"]} if has_pipeline else {}
    found["micro_batch"] = [_MICRO, "{micro_batch}", _GLOBAL, "{global_batch}"]
    return found | {name: [_STAGE, "{zero_stage}"] for name in file.choices}


def _model(made: Meaning, options: Options) -> dict[str, Value]:
    """Return the dimensions of the model, with options that only this program has."""
    if not made.model:
        return {}
    shared = options.number("--num-key-value-heads")
    norm = {"norm": "rms"} if options.value("--normalization").lower() == "rmsnorm" else {}
    return {**made.model, **({"kv_heads": shared} if shared else {}), **norm}


def _paths(options: Options) -> Iterator[tuple[str, str]]:
    """Yield what the program does with paths, also with each word of an option that takes several."""
    for option in options.all:
        if kind := _PATHS.get(option.name, ""):
            yield option.name, kind
            yield from ((literal(word.text), kind) for word in option.values[1:])


def _stages(options: Options, file: DeepSpeedFile) -> Iterator[LineConflict]:
    """Yield the conflict if the option and the file state different stages of ZeRO."""
    stated = options.number(_STAGE, least=0)
    if stated is not None and stated != file.stage:
        yield LineConflict(about="ZeRO stage", taken=f"{file.stage} ({file.shown})", other=f"{stated} ({options.origin(_STAGE)})")
