"""Understand a launch line whose program reads the arguments of Transformers' Trainer, by DDP, FSDP or a file of DeepSpeed."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import parse_json, whole_number
from oppa.problem.configuration import Value
from oppa.problem.declaration import shown, spell
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
from oppa.tuning.launch_line.argument_file import in_sole_file
from oppa.tuning.launch_line.deepspeed_file import DeepSpeedFile
from oppa.tuning.launch_line.fine_tuning import OPTIMIZERS, fine_tuning, unpredicted
from oppa.tuning.launch_line.local_model import local_model
from oppa.tuning.launch_line.meaning import EditedFile, LineConflict, Meaning
from oppa.tuning.launch_line.options import Options, require_consistent, require_whole_names
from oppa.tuning.launch_line.recognise import positional_file, trainer_options
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates
from oppa.tuning.launch_line.trainer_program import TRANSFORMERS, TrainerProgram, program_of

_LENGTHS = ("block_size", "max_seq_length", "max_seq_len", "max_length", "model_max_length", "cutoff_len", "seq_length")
BATCH_WORDS = {"micro_batch": [f"--{MICRO}", "{micro_batch}", f"--{ACCUMULATED}", "{num_microbatches}"]}
"""Words of the parameter that divides the batch."""
TRAINER_ADDED, TRAINER_STEPS = ("--logging_steps", "1"), {"format": "hf-trainer"}
"""Words that let the Trainer print each step, and the format of its steps."""
ALIASES = {"--activation_checkpointing": ("recompute",)}
"""Arguments that state parameters in other words than trials have, with these parameters."""
_MEASURED = ("logging_steps", "logging_strategy")
_PRECISIONS = ("bf16", "fp16")
_ON, _OFF = ("", "true", "1", "yes"), ("false", "0", "no")
_REMOVE = "remove one of the two"
_WORKERS, _LIGER, _OPTIM = "dataloader_num_workers", "use_liger_kernel", "optim"
SHARDED_IN_HOST = "FSDP shards within each host, and predictions shard over all ranks, so a rank needs more memory than predicted"
_READ = (
    *(MICRO, ACCUMULATED, *_PRECISIONS, "deepspeed", "fsdp", "fsdp_config"),
    *("torch_compile", _LIGER, _OPTIM, _WORKERS, BUCKET, "use_cpu", "model_name_or_path", "config_name", "config", *_LENGTHS),
)
"""Arguments that decide what is understood."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArguments:
    """Reads the arguments of the Trainer: those of the line, over those of a file of the program's own."""

    options: Options
    values: Mapping[str, Any]
    """Arguments in a file such as `--config recipe.yaml`."""
    file: str = ""
    program: TrainerProgram = TRANSFORMERS
    devices: int | None = None
    """Number of ranks; None if it is not known."""

    @classmethod
    def of(cls, sources: LineSources) -> "TrainerArguments":
        """Return the arguments of a line; raises InputError if one is stated twice, or if two exclude each other."""
        options, program = trainer_options(sources), program_of(sources)
        require_consistent(options, [*_READ, *program.recompute])
        require_whole_names(options, (MICRO, ACCUMULATED, *program.recompute))
        named = options.get("config")
        values: Mapping[str, Any] = {}
        if named and named.values and PurePath(named.text).suffix in (".yaml", ".yml", ".json") and sources.local_file(named.text):
            values = sources.contents(named.values[0])
        elif (positional := positional_file(options, sources)) is not None:
            values = sources.contents(positional)
        source = named.text if named else positional_file(options, sources)
        file = PurePath(source if isinstance(source, str) else source.text if source else "").name
        found = cls(options=options, values=values, file=file, program=program, devices=sources.devices.count)
        if program.takes_keys and values and len(sources.line.arguments) > 1:
            message = f"{program.title} takes arguments after `{file}` as `key=value`, and trials state theirs as options"
            raise InputError(message, hint=f"write them into `{file}`, which trials get copies of")
        if found.text("deepspeed") and found.is_sharded_by_torch:
            raise InputError("the launch line contradicts itself: Transformers refuses `--fsdp` with `--deepspeed`", hint=_REMOVE)
        return found

    def number(self, name: str) -> tuple[int, str]:
        """Return a number with its origin: the line, the file, or the program's default."""
        if (found := self.options.number(name)) is not None:
            return found, self.options.origin(name)
        if (found := self._whole_in_file(name)) is None:
            return self.program.default(name, micro=self.whole(MICRO), devices=self.devices), f"default of {self.program.title}"
        if found < 1:
            raise self._wrong(name, "is less than 1", hint="use 1 or more")
        return found, self.file

    def whole(self, name: str, *, least: int = 1) -> int | None:
        """Return a whole number that the line or the file states; None if neither does."""
        if (found := self.options.number(name, least=least)) is not None:
            return found
        found = self._whole_in_file(name)
        return found if found is not None and found >= least else None

    def _whole_in_file(self, name: str) -> int | None:
        """Return a whole number of the file, also as text; None if it states none. Raises InputError for any other value."""
        found = self.values.get(name)
        number = whole_number(found) if isinstance(found, str) else found
        if found is None or type(number) is int:
            return number
        raise self._wrong(name, "is not a whole number", hint=f"write a number, such as `{name}: 4`")

    def is_on(self, name: str) -> bool:
        """Return whether a switch is stated to be on; raises InputError if the file states no truth value."""
        if option := self.options.get(name):
            return option.text.lower() in _ON
        found = str(self.values.get(name) or "false").lower()
        if found in _ON or found in _OFF:
            return found in _ON
        raise self._wrong(name, "is neither true nor false", hint=f"write `{name}: true` or `{name}: false`")

    def _wrong(self, name: str, why: str, *, hint: str) -> InputError:
        """Return the error for a value of the file."""
        return InputError(f"`{self.file}`: `{name}: {shown(self.values[name])}` {why}", hint=hint)

    @property
    def recomputes(self) -> bool:
        """Return whether the model recomputes its layers, apart from FSDP's own recomputation."""
        stated = [self.is_on(name) for name in self.program.recompute if self.states(name)]
        return any(each is self.program.recompute_on for each in stated) if stated else self.program.recomputes

    def text(self, name: str) -> str:
        """Return the text of an argument; empty if it is not stated."""
        if option := self.options.get(name):
            return option.text
        return str(self.values.get(name) or "")

    def table(self, name: str, sources: LineSources) -> Mapping[str, Any]:
        """Return the table of an argument, which may be JSON in the line or a local file; empty if there is none."""
        found: Any = self.values.get(name)
        if isinstance(found, str) and sources.local_file(found):
            found = sources.contents(found)
        if (option := self.options.get(name)) and option.values:
            is_file = not option.text.startswith("{") and sources.local_file(option.text) is not None
            found = sources.contents(option.values[0]) if is_file else _json(option.text)
        return found if isinstance(found, Mapping) else {}

    def states(self, name: str) -> bool:
        """Return whether the line or the file states an argument."""
        return name in self.options or name in self.values

    @property
    def is_sharded_by_torch(self) -> bool:
        """Return whether `--fsdp` is on, which may have no value."""
        option = self.options.get("fsdp")
        return (option is not None and not option.values) or self.text("fsdp").lower() not in ("", "false")

    @property
    def origins(self) -> dict[str, str]:
        """Return the origins of what switches state."""
        named = {
            "precision": ("bf16", "fp16", self.program.dtype),
            "recompute": self.program.recompute,
            "zero_stage": ("fsdp",),
            "fsdp_offload": ("fsdp",),
        }
        named |= {"dp_bucket_mb": (BUCKET,), _WORKERS: (_WORKERS,), _LIGER: (_LIGER,), _OPTIM: (_OPTIM,), "bf16": ("bf16",)}
        stated = {ours: next((name for name in names if self.states(name)), "") for ours, names in named.items()}
        program = self.program
        own = [*(["precision", "bf16"] if program.is_bf16 else []), *(["recompute"] if program.recomputes else [])]
        return dict.fromkeys(own, f"default of {program.title}") | {
            ours: self.options.origin(name) or self.file for ours, name in stated.items() if name
        }

    @property
    def precision(self) -> str:
        """Return the precision; raises InputError if two are on."""
        if self.is_on("bf16") and self.is_on("fp16"):
            raise InputError("the launch line contradicts itself: `--bf16` and `--fp16`", hint=_REMOVE)
        by_type = self.text(self.program.dtype) in ("float16", "float32")
        if self.is_on("fp16") or (by_type and not self.states("fp16")):
            return "fp16"
        return "bf16" if self.is_on("bf16") or (self.program.is_bf16 and not by_type and not self.states("bf16")) else "fp32"

    @property
    def leaves_precision_open(self) -> bool:
        """Return whether no argument turns a precision on."""
        return not any(map(self.is_on, _PRECISIONS))

    def model(self, sources: LineSources) -> tuple[dict[str, Value], str, list[str]]:
        """Return `[model]` from a local config.json, its origin, and what would state it otherwise."""
        is_stated = (name in self.options or type(self.values.get(name)) is int for name in _LENGTHS)  # another value may have its use
        length = next((found for name, given in zip(_LENGTHS, is_stated, strict=True) if given and (found := self.whole(name))), None)
        return local_model(sources, self.text(self.program.model) or self.text("config_name"), length)

    def hints_on_cpus(self, sources: LineSources) -> list[str]:
        """Return what ranks on CPUs need to train together."""
        lack = sources.on_cpus and sources.devices.hosts == 1 and (self.devices or 1) > 1 and not self.is_on("use_cpu")
        return ["ranks on CPUs exchange no gradients without `--use_cpu`: add it"] if lack else []


def _json(text: str) -> Any:
    try:
        return parse_json(text, source="the argument", hint="")
    except InputError:  # the program reads it in its own way
        return None


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
        hints=(*hints, *arguments.hints_on_cpus(sources)),
        training=fine_tuning(arguments),
        unpredicted=tuple(unpredicted(arguments)),
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
        program = f"-m {line.program.text}" if line.is_module else line.program.text
        hint = f"start a process for each GPU: `torchrun --nproc-per-node {gpus} {program} ...`; or put `{name}=0` in front of the line"
        raise InputError(message, hint=hint)


def _by_torch(meaning: Meaning, sources: LineSources, arguments: TrainerArguments) -> Meaning:
    """Return the meaning of a line by DDP or FSDP, whose search space completes it."""
    options, count = arguments.options, meaning.devices.count or 1
    settings = {**meaning.settings, "zero_stage": 0, **({"bf16": True} if arguments.precision == "bf16" else {})}
    settings |= {_WORKERS: workers} if (workers := arguments.whole(_WORKERS, least=0)) else {}
    words: dict[str, Any] = {**BATCH_WORDS, "recompute": arguments.program.recompute_words}
    choices: dict[str, Any] = {"torch_compile": [arguments.is_on("torch_compile")]}
    choices |= {} if arguments.program.recompute else {"recompute": [*arguments.program.recompute_words]}
    fixed: dict[str, Value] = {_LIGER: True} if arguments.is_on(_LIGER) else {}
    fixed |= {_OPTIM: optim} if (optim := arguments.text(_OPTIM)) in OPTIMIZERS else {}
    meaning = dataclasses.replace(meaning, unpredicted=tuple(unpredicted(arguments, optimizers=OPTIMIZERS)))
    settings, choices = {**settings, **fixed}, {**choices, **{name: [value] for name, value in fixed.items()}}
    own = _fsdp_recompute(sources, arguments)
    replaced = {MICRO, ACCUMULATED, "torch_compile", _LIGER, _WORKERS, BUCKET, *_MEASURED}
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
        words = tuple(each.replace(option.text, "{fsdp}") if each.endswith(option.text) else each for each in meaning.words)
        meaning = dataclasses.replace(meaning, arguments=others, words=words, files=(file,))
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
    words = [
        re.sub(re.escape(file.text) + "$", "{ds}", each) if file.text in each else each
        for each in templates(options.without({MICRO, ACCUMULATED, *arguments.program.recompute, *_MEASURED}))
    ]
    return dataclasses.replace(
        meaning,
        precision=by_file or meaning.precision,
        settings={**meaning.settings, **file.settings},
        origins={**meaning.origins, **dict.fromkeys([*file.settings, *(["precision"] if by_file else [])], file.shown)},
        space="deepspeed" if meaning.model else "",
        words=(*words, *(() if "deepspeed" in options else ("--deepspeed", "{ds}"))),
        arguments={**BATCH_WORDS, "recompute": arguments.program.recompute_words},
        files=(edited,),
        choices={"recompute": [*arguments.program.recompute_words], **({"zero_stage": file.stages} if len(file.stages) > 1 else {})},
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
    return DeepSpeedFile(text=name, shown=PurePath(name).name, values=sources.contents(name), sources=sources)


def _require_one_precision(arguments: TrainerArguments, file: DeepSpeedFile) -> None:
    """Raise InputError if the file states another precision than the arguments, which Transformers refuses.

    The program may set what the arguments leave open. Source: HfTrainerDeepSpeedConfig.fill_match (Transformers 5.23).
    """
    for name in _PRECISIONS:
        enabled = at(file.values, f"{name}.enabled")
        is_open = arguments.leaves_precision_open and not arguments.states(name)
        if isinstance(enabled, bool) and not is_open and enabled != (arguments.is_on(name) or arguments.is_on(f"{name}_full_eval")):
            stated = f"`{name}.enabled = {spell(enabled)}` ({file.shown}), and {arguments.precision} ({arguments.origins['precision']})"
            hint = f'write `"enabled": "auto"` in {file.shown}, so that the arguments decide'
            raise InputError(f"the launch line contradicts itself: {stated}, which Transformers refuses", hint=hint)
