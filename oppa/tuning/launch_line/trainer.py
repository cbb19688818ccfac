"""Understand a launch line whose program reads the arguments of Transformers' Trainer, by DDP, FSDP or a file of DeepSpeed."""

import dataclasses
from typing import Any

from oppa.errors import InputError
from oppa.problem.configuration import Value
from oppa.problem.declaration import spell
from oppa.problem.file_keys import at
from oppa.tuning.formats.deepspeed import BATCH, key_of
from oppa.tuning.formats.transformers import (
    ACCUMULATED,
    BUCKET,
    FSDP_RECOMPUTES,
    MICRO,
    is_hybrid,
    stage_of,
)
from oppa.tuning.launch_line.argument_file import in_sole_file, sole_file
from oppa.tuning.launch_line.deepspeed_file import DeepSpeedFile
from oppa.tuning.launch_line.fine_tuning import OPTIMIZERS, fine_tuning, overestimated, unpredicted
from oppa.tuning.launch_line.meaning import EditedFile, LineConflict, Meaning
from oppa.tuning.launch_line.options import contradiction
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates, with_copy
from oppa.tuning.launch_line.trainer_arguments import LIGER, OPTIM, PRECISIONS, WORKERS, TrainerArguments

BATCH_WORDS = {"micro_batch": [f"--{MICRO}", "{micro_batch}", f"--{ACCUMULATED}", "{num_microbatches}"]}
"""Words of the parameter that divides the batch."""
TRAINER_ADDED, TRAINER_STEPS = ("--logging_steps", "1"), {"format": "hf-trainer"}
"""Words that let the Trainer print each step, and the format of its steps."""
ALIASES = {"--activation_checkpointing": ("recompute",)}
"""Arguments that state parameters in other words than trials have, with these parameters."""
_MEASURED = ("logging_steps", "logging_strategy")
SHARDED_IN_HOST = "FSDP shards within each host, and predictions shard over all ranks, so a rank needs more memory than predicted"


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line for the Trainer.

    Raises:
        InputError: arguments contradict each other, or a file cannot be read.
    """
    arguments = TrainerArguments.of(sources)
    _require_process_of_each_gpu(sources, arguments)
    (micro, micro_origin), (steps, _) = arguments.number(MICRO), arguments.number(ACCUMULATED)
    devices = sources.devices
    count = devices.count
    settings: dict[str, Value] = {"tp": 1, "pp": 1, "micro_batch": micro, "recompute": "full" if arguments.recomputes else "none"}
    settings |= {"dp": count} if count else {}
    model, origin, hints = arguments.model(sources)
    meaning = Meaning(
        framework="transformers",
        evidence=evidence,
        devices=devices,
        model=model,
        model_origin=origin,
        global_batch=micro * steps * count if count else None,
        batch_origin=f"{micro} x {steps} x {count} ({micro_origin})",
        precision=arguments.precision,
        settings=settings,
        origins={"micro_batch": micro_origin, **arguments.origins},
        aliases=ALIASES,
        added=TRAINER_ADDED,
        steps=TRAINER_STEPS,
        hints=(*hints, *arguments.hints_on_precision(), *arguments.hints_on_cpus(sources)),
        training=fine_tuning(arguments),
        unpredicted=tuple(unpredicted(arguments)),
        overestimated=tuple(overestimated(arguments)),
        missing=sources.missing,
    )
    by_deepspeed = arguments.text("deepspeed").lower() not in ("", "false")
    meaning = (_by_deepspeed if by_deepspeed else _by_torch)(meaning, sources, arguments)
    return in_sole_file(meaning, sources, arguments.values)


def _require_process_of_each_gpu(sources: LineSources, arguments: TrainerArguments) -> None:
    """Raise InputError if a single process has several GPUs, over which the Trainer replicates the model in threads.

    Source: TrainingArguments._setup_devices (Transformers 5.23).
    """
    line, name = sources.line, "CUDA_VISIBLE_DEVICES"
    if line.stage("launcher", "step") is not None or arguments.is_on("use_cpu") or arguments.text("deepspeed"):
        return
    word = line.variable(name)
    visible = word.text if word is not None else sources.environment.get(name)
    gpus = sources.machine.gpus if visible is None else min(sources.machine.gpus, len(visible.split(",")))
    if gpus > 1:
        message = f"the launch line starts one process, in which the Trainer splits each batch over all {gpus} GPUs (`nn.DataParallel`)"
        start = f"torchrun --nproc-per-node {gpus} {line.started} ..."
        hint = f"start a process for each GPU: `{start}`; or put `{name}=0` in front of the line"
        raise InputError(message, hint=hint)


def _by_torch(meaning: Meaning, sources: LineSources, arguments: TrainerArguments) -> Meaning:
    """Return the meaning of a line by DDP or FSDP, whose search space completes it."""
    options, count = arguments.options, meaning.devices.count or 1
    settings = {**meaning.settings, "zero_stage": 0, **({"bf16": True} if arguments.precision == "bf16" and not arguments.is_pure else {})}
    settings |= {WORKERS: workers} if (workers := arguments.whole(WORKERS, least=0)) else {}
    words: dict[str, Any] = {**BATCH_WORDS, "recompute": arguments.program.recompute_words}
    choices: dict[str, Any] = {"torch_compile": [arguments.is_on("torch_compile")]}
    choices |= {} if arguments.program.recompute else {"recompute": [*arguments.program.recompute_words]}
    fixed: dict[str, Value] = {LIGER: True} if arguments.is_on(LIGER) else {}
    fixed |= {OPTIM: optim} if (optim := arguments.text(OPTIM)) in OPTIMIZERS else {}
    known = () if sole_file(sources) else OPTIMIZERS
    meaning = dataclasses.replace(
        meaning,
        unpredicted=tuple(unpredicted(arguments, optimizers=known)),
        overestimated=tuple(overestimated(arguments, optimizers=known)),
    )
    settings, choices = {**settings, **fixed}, {**choices, **{name: [value] for name, value in fixed.items()}}
    own = _fsdp_recompute(sources, arguments)
    replaced = {MICRO, ACCUMULATED, "torch_compile", LIGER, WORKERS, BUCKET, *_MEASURED}
    replaced |= {*fixed, *(() if own else arguments.program.recompute)}
    meaning = dataclasses.replace(meaning, space="transformers", words=tuple(templates(options.without(replaced))))
    if arguments.is_sharded_by_torch:
        meaning = _by_fsdp(dataclasses.replace(meaning, settings=settings, arguments=words, choices=choices), sources, arguments)
        return _with_fsdp_recompute(meaning, own, sources, arguments) if own else meaning
    if "fsdp" in options or "fsdp_config" in options:
        words["zero_stage"], choices["zero_stage"] = {"0": []}, [0]
    elif count > 1 and sources.machine.gpus:
        words["zero_stage"] = {
            "0": [],
            **{
                str(each): ["--fsdp", "--fsdp_config", f'{{{{"reshard_after_forward": {on}}}}}'] for each, on in ((2, "false"), (3, "true"))
            },
        }
    if count > 1:
        words["dp_bucket_mb"] = [f"--{BUCKET}", "{dp_bucket_mb}"]
        settings |= {"dp_bucket_mb": arguments.whole(BUCKET) or 25}
    return dataclasses.replace(meaning, settings=settings, arguments=words, choices=choices)


def _by_fsdp(meaning: Meaning, sources: LineSources, arguments: TrainerArguments) -> Meaning:
    """Return the meaning with FSDP as the arguments and `fsdp_config` state it."""
    fsdp = arguments.text("fsdp")
    table = {"fsdp": fsdp or True, "fsdp_config": arguments.table("fsdp_config", sources)}
    stage, hosts = stage_of(table), meaning.devices.hosts
    settings: dict[str, Value] = {**meaning.settings, "zero_stage": stage, **({"fsdp_offload": True} if "offload" in fsdp else {})}
    is_split = is_hybrid(table) and hosts > 1
    return dataclasses.replace(
        meaning,
        settings={**settings, **({"dp_replicate": hosts} if is_split else {})},
        origins={**meaning.origins, "dp_replicate": meaning.origins.get("zero_stage", "")},
        arguments={**meaning.arguments, "zero_stage": {str(stage): []}},
        choices={**meaning.choices, "zero_stage": [stage]},
        notes=(*meaning.notes, SHARDED_IN_HOST) if is_split and meaning.model else meaning.notes,
    )


def _fsdp_recompute(sources: LineSources, arguments: TrainerArguments) -> str:
    """Return the key of `fsdp_config` that turns on FSDP's own recomputation; empty if it is off."""
    table = arguments.table("fsdp_config", sources) if arguments.is_sharded_by_torch else {}
    names = (name for name, value in table.items() if name.removeprefix("fsdp_") == FSDP_RECOMPUTES and str(value).lower() == "true")
    return next(names, "")


def _with_fsdp_recompute(meaning: Meaning, key: str, sources: LineSources, arguments: TrainerArguments) -> Meaning:
    """Return the meaning with FSDP's own recomputation, which varies in a copy of its file, and stays if there is no file.

    Transformers refuses it together with that of the arguments, which therefore stay as they are.
    """
    option = arguments.options.get("fsdp_config")
    path = sources.local_file(option.text) if option is not None else None
    others = {name: words for name, words in meaning.arguments.items() if name != "recompute"}
    if option is None or path is None:
        origin = arguments.file if option is None else option.origin
        arguments_of_trials, choices = {**others, "recompute": {"full": []}}, {**meaning.choices, "recompute": ["full"]}
        meaning = dataclasses.replace(meaning, arguments=arguments_of_trials, choices=choices)
    else:
        origin = path.name
        file = EditedFile(name="fsdp", path=path, keys={key: {"recompute": {"none": False, "full": True}}}, present={key: True})
        meaning = dataclasses.replace(meaning, arguments=others, words=tuple(with_copy(meaning.words, option.text, "fsdp")), files=(file,))
    return dataclasses.replace(
        meaning, settings={**meaning.settings, "recompute": "full"}, origins={**meaning.origins, "recompute": origin}
    )


def _by_deepspeed(meaning: Meaning, sources: LineSources, arguments: TrainerArguments) -> Meaning:
    """Return the meaning of a line with a file of DeepSpeed, of which trials get copies."""
    options = arguments.options
    file = _deepspeed_file(sources, arguments)
    conflicts = []
    (micro, _), (steps, _) = arguments.number(MICRO), arguments.number(ACCUMULATED)
    for template, value in zip(BATCH, (meaning.global_batch, micro, steps), strict=True):
        key = key_of("micro_batch", template)
        stated = file.values.get(key, "auto")
        if stated not in ("auto", value) and value is not None:
            conflicts.append(LineConflict(about=key, taken=f"{value} (the arguments)", other=f"{stated} ({file.shown})"))
    _require_one_precision(arguments, file)
    by_file = file.precision if arguments.leaves_precision_open else ""
    edited = file.edited(batch="all but auto")
    words = with_copy(templates(options.without({MICRO, ACCUMULATED, *arguments.program.recompute, *_MEASURED})), file.text, "ds")
    return dataclasses.replace(
        meaning,
        precision=by_file or meaning.precision,
        settings={**meaning.settings, **file.settings},
        origins={**meaning.origins, **dict.fromkeys([*file.settings, *(["precision"] if by_file else [])], file.shown)},
        space="deepspeed" if meaning.model else "",
        words=(*words, *(() if "deepspeed" in options else ("--deepspeed", "{ds}"))),
        arguments={**BATCH_WORDS, "recompute": arguments.program.recompute_words},
        files=(edited,),
        choices={"recompute": [*arguments.program.recompute_words], **file.choices},
        conflicts=tuple(conflicts),
    )


def _deepspeed_file(sources: LineSources, arguments: TrainerArguments) -> DeepSpeedFile:
    """Return the file of DeepSpeed that the line or its file of arguments names; raises InputError if it cannot be read."""
    if (option := arguments.options.get("deepspeed")) is not None:
        arguments.program.require_own_file(option.text)
        return DeepSpeedFile.of(sources, option)
    name = arguments.values["deepspeed"]
    if not isinstance(name, str):
        message = f"`deepspeed` of `{arguments.file}` is a table, of which trials get no copies"
        raise InputError(message, hint="write it to a JSON file, and name that file: `deepspeed: ds.json`")
    return DeepSpeedFile.named(sources, name)


def _require_one_precision(arguments: TrainerArguments, file: DeepSpeedFile) -> None:
    """Raise InputError if the file states another precision than the arguments, which Transformers refuses.

    The program may set what the arguments leave open. Source: HfTrainerDeepSpeedConfig.fill_match (Transformers 5.23).
    """
    for name in PRECISIONS:
        enabled = at(file.values, f"{name}.enabled")
        is_open = arguments.leaves_precision_open and not arguments.states(name)
        if isinstance(enabled, bool) and not is_open and enabled != (arguments.is_on(name) or arguments.is_on(f"{name}_full_eval")):
            stated = f"`{name}.enabled = {spell(enabled)}` ({file.shown}), and {arguments.precision} ({arguments.origins['precision']})"
            hint = f'write `"enabled": "auto"` in {file.shown}, so that the arguments decide'
            raise contradiction(f"{stated}, which Transformers refuses", hint=hint)
