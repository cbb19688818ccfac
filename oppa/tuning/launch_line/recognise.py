"""Recognise the framework of a launch line by evidence: its program, its module, distinctive options, and the program's imports.

Marks of two frameworks in one line are refused: no search space would be right for both.
"""

import itertools
import re
from collections.abc import Callable, Mapping

from oppa.errors import InputError
from oppa.problem.launch_line.words import Word
from oppa.tuning.launch_line.keyed_programs import named_programs
from oppa.tuning.launch_line.keyed_values import KeyedValues
from oppa.tuning.launch_line.meaning import TITLES
from oppa.tuning.launch_line.options import Options
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.trainer_program import program_of

_MEGATRON = [
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--micro-batch-size",
    "--num-attention-heads",
    "--hidden-size",
    "--max-position-embeddings",
    "--use-distributed-optimizer",
    "--overlap-grad-reduce",
    "--use-mcore-models",
    "--transformer-impl",
    "--hybrid-layer-pattern",
]
_MEGATRON_ALONE = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--use-mcore-models", "--transformer-impl")
"""Options that no other program has; the others alone may be those of a trainer of one's own."""
_BRIDGE = re.compile(r"(model\.\w+_model_parallel_size|train\.(global|micro)_batch_size|checkpoint\.\w+|logger\.\w+|scheduler\.\w+)=")
_TRAINER = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "model_name_or_path", "output_dir")
_OTHERS = r"(axolotl|olmo_core)\."
"""Modules of programs that read some of the Trainer's names in their own way."""
_LOOP = re.compile(r"\.backward\(|\bAccelerator\(|\bDataLoader\(|\bArgumentParser\(|\bdeepspeed\.initialize\(")
"""Marks of a program with a training loop of its own."""
_OPTION = re.compile(r"--[A-Za-z][\w.-]*")
_SOLE = {
    "megatron": re.compile(rf"({'|'.join(_MEGATRON_ALONE)})(?==|$)"),
    "megatron-bridge": re.compile(r"(model\.\w+_model_parallel_size|train\.(global|micro)_batch_size)="),
    "torchtitan": re.compile(r"--(job\.config_file|parallelism\.\w+_degree)(?==|$)"),
    "transformers": re.compile(r"--per[_-]device[_-]train[_-]batch[_-]size(?==|$)"),
    "deepspeed": re.compile(r"--deepspeed_config(?==|$)"),
    "lightning": re.compile(r"--trainer\.\w+"),
}
"""Words that programs of one framework alone have. One does not show the framework, but it contradicts the marks of another."""
_COMBINED = (frozenset(["accelerate", "transformers", "deepspeed"]), frozenset(["megatron-deepspeed", "megatron", "deepspeed"]))
"""Frameworks whose marks stand in one line: accelerate starts the Trainer, both use DeepSpeed, and so does a fork of Megatron-LM."""


def recognised(sources: LineSources) -> tuple[str, str]:
    """Return the framework's key and the evidence for it; `plain` if there is none.

    Raises:
        InputError: the line has the marks of two frameworks.
    """
    if keyed := _keyed(sources):
        return keyed, sources.line.program_name
    found = {name: why for name, mark in _MARKS.items() if (why := mark(sources))}
    for inner, outer in (("transformers", "accelerate"), ("deepspeed", "accelerate")):
        if inner in found and outer in found:
            del found[inner]
    if "transformers" in found and "deepspeed" in found:
        del found["deepspeed" if _hands_over_file(sources) else "transformers"]
    if {"megatron", "deepspeed"} <= found.keys():
        found = {"megatron-deepspeed": f"{found.pop('megatron')} and {found.pop('deepspeed')}", **found}
    _require_one(found | {name: word for name, word in _sole_words(sources).items() if name not in found})
    return next(iter(found.items()), ("plain", "without a mark of a framework; its placeholders vary"))


def _keyed(sources: LineSources) -> str:
    """Return the program whose settings are keys that the line starts; empty if it starts another one."""
    for name, program in named_programs(sources.line).items():
        if not program.marks or all(KeyedValues.of(sources, program).stated(key)[1] for key in program.marks):
            return name
    return ""


def _sole_words(sources: LineSources) -> dict[str, str]:
    """Return the first word of each framework that programs of this one alone have."""
    words = [word.text for word in sources.line.arguments]
    first = {name: next((match[0] for text in words if (match := sole.match(text))), "") for name, sole in _SOLE.items()}
    return {name: word for name, word in first.items() if word}


def _require_one(marks: Mapping[str, str]) -> None:
    """Raise InputError if there are marks of two frameworks that do not work in one program."""
    for (first, one), (second, other) in itertools.combinations(marks.items(), 2):
        if not any({first, second} <= combined for combined in _COMBINED):
            message = f"the launch line has the marks of {TITLES[first]} ({one}) and of {TITLES[second]} ({other})"
            raise InputError(message, hint="write a job file that names the search space: `[space] name = ...`")


def trainer_options(sources: LineSources) -> Options:
    """Return the options of the program by their names in Transformers, with underscores and without dashes."""
    return Options(sources.line.arguments, spelled=lambda name: name.lstrip("-").replace("-", "_"))


def reads_trainer_arguments(sources: LineSources) -> str:
    """Return what shows that the program reads the arguments of Transformers' Trainer; empty if nothing does."""
    if not sources.line.is_python:
        return ""  # a command has defaults of its own
    if "no_trainer" in sources.line.program_name or _reads_other_names(sources):
        return ""
    if not program_of(sources).is_named and _has_own_loop(sources.script):
        return ""
    options = trainer_options(sources)
    stated = [name for name in _TRAINER if name in options]
    if "per_device_train_batch_size" in stated and len(stated) >= 2:
        return f"--{stated[0]}"
    named = options.get("config")
    file = named.values[0] if named and named.values else positional_file(options, sources)
    if file is not None and sources.settings_file(file.text):
        values = sources.contents(file)
        if len([name for name in _TRAINER if name in values]) >= 2:
            return f"{file.text}: {next(name for name in _TRAINER if name in values)}"
    parser = re.search(r"\b(HfArgumentParser|TrlParser|TrainingArguments|SFTConfig)\b", sources.script)
    if parser and sources.imports("transformers|trl") and re.search(r"\b(HfArgumentParser|TrlParser)\b", sources.script):
        return f"{sources.line.program_name} uses {parser[1]}"
    return ""


def _has_own_loop(script: str) -> bool:
    """Return whether a script has a loop, without a Trainer or a parser of its arguments, or declares the Trainer's arguments itself."""
    declares = re.search(rf"""add_argument\(\s*["']--({"|".join(_TRAINER[:2])})["']""", script)
    has_trainer = re.search(r"\w*Trainer\b|\b(?!ArgumentParser\b)\w*Parser\b", script)
    return declares is not None or (has_trainer is None and _LOOP.search(script) is not None)


def _reads_other_names(sources: LineSources) -> bool:
    """Return whether the program is known to read some of the Trainer's names, and others in their own way, as axolotl does."""
    return re.match(_OTHERS, sources.line.program.text) is not None or sources.imports(rf"\b{_OTHERS}")


def positional_file(options: Options, sources: LineSources) -> Word | None:
    """Return the file that is the program's first argument, as HfArgumentParser takes it; None if there is none."""
    return next((word for word in options.positional[:1] if sources.settings_file(word.text)), None)


def _hands_over_file(sources: LineSources) -> bool:
    """Return whether `--deepspeed` names a file, as Transformers has it; DeepSpeed's own option is a switch."""
    return trainer_options(sources).value("deepspeed").endswith(".json")


def _megatron(sources: LineSources) -> str:
    names = {name.partition("=")[0] for word in sources.line.arguments if _OPTION.match(name := word.text)}
    marks = [option for option in _MEGATRON if option in names]
    own = any(option in names for option in _MEGATRON_ALONE) or re.fullmatch(r"pretrain_\w+\.py", sources.line.program_name)
    return marks[0] if len(marks) >= 3 and own else ""


def _bridge(sources: LineSources) -> str:
    marks = [match[1] for word in sources.line.arguments if (match := _BRIDGE.match(word.text))]
    own = [mark for mark in marks if mark.startswith(("train.", "checkpoint."))]
    is_runner = sources.line.program_name == "run_recipe.py"
    if is_runner and not marks and {"--recipe", "--mode"} & {option.name for option in Options(sources.line.arguments).all}:
        return "run_recipe.py"
    named = is_runner or sources.imports(r"megatron\.bridge")
    return f"{marks[0]}=" if (len(marks) >= 2 and own) or (marks and named) else ""


def _torchtitan(sources: LineSources) -> str:
    line = sources.line
    if line.program.text in ("torchtitan.train", "torchtitan/train.py") or line.program.text.endswith("/torchtitan/train.py"):
        return line.program.text
    marks = [word.text for word in line.arguments if re.match(r"--job\.config_file|--parallelism\.\w+_degree", word.text)]
    return marks[0].partition("=")[0] if marks else ""


def _deepspeed(sources: LineSources) -> str:
    options = trainer_options(sources)
    if "deepspeed_config" in options or ("deepspeed" in options and not options.value("deepspeed")):
        return "--deepspeed_config" if "deepspeed_config" in options else "--deepspeed"
    launcher = sources.line.stage("deepspeed")
    return "the launcher `deepspeed`" if launcher is not None and not _megatron(sources) else ""


def _accelerate(sources: LineSources) -> str:
    return "accelerate launch" if sources.line.stage("accelerate") is not None else ""


def _lightning(sources: LineSources) -> str:
    marks = [word.text for word in sources.line.arguments if re.match(r"--trainer\.\w+", word.text)]
    if sources.imports("LightningCLI"):
        return f"{sources.line.program_name} uses LightningCLI"
    fits = bool(sources.line.arguments) and sources.line.arguments[0].text in ("fit", "validate", "test")
    if marks and (fits or len(marks) > 1):
        return marks[0].partition("=")[0]
    named = trainer_options(sources).get("config")
    if fits and named and named.text.endswith((".yaml", ".yml")) and sources.local_file(named.text):
        return f"{named.text}: trainer" if isinstance(sources.contents(named.values[0]).get("trainer"), dict) else ""
    return ""


_MARKS: dict[str, Callable[[LineSources], str]] = {
    "megatron": _megatron,
    "megatron-bridge": _bridge,
    "torchtitan": _torchtitan,
    "accelerate": _accelerate,
    "transformers": reads_trainer_arguments,
    "deepspeed": _deepspeed,
    "lightning": _lightning,
}
