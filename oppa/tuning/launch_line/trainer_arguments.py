"""Read the arguments of Transformers' Trainer from a launch line and from a file that it names."""

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import parse_json, whole_number
from oppa.problem.configuration import Value
from oppa.problem.declaration import shown
from oppa.tuning.formats.transformers import ACCUMULATED, BUCKET, MICRO
from oppa.tuning.launch_line.local_model import local_model, weights_type
from oppa.tuning.launch_line.options import Options, contradiction, require_consistent, require_whole_names
from oppa.tuning.launch_line.recognise import positional_file, trainer_options
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.trainer_program import TRANSFORMERS, TrainerProgram, program_of

_LENGTHS = ("block_size", "max_seq_length", "max_seq_len", "max_length", "model_max_length", "cutoff_len", "seq_length")
PRECISIONS = ("bf16", "fp16")
WORKERS, LIGER, OPTIM = "dataloader_num_workers", "use_liger_kernel", "optim"
_ON, _OFF = ("", "true", "1", "yes"), ("false", "0", "no")
_READ = (
    *(MICRO, ACCUMULATED, *PRECISIONS, "deepspeed", "fsdp", "fsdp_config"),
    *("torch_compile", LIGER, OPTIM, WORKERS, BUCKET, "use_cpu", "model_name_or_path", "config_name", "config", *_LENGTHS),
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
    own_type: tuple[str, str] = ("", "")
    """Type of the weights by the model's config.json, if the program follows it, and that file."""

    @classmethod
    def of(cls, sources: LineSources) -> "TrainerArguments":
        """Return the arguments of a line; raises InputError if one is stated twice, or if two exclude each other."""
        options, program = trainer_options(sources), program_of(sources)
        require_consistent(options, [*_READ, *program.recompute])
        require_whole_names(options, (MICRO, ACCUMULATED, *program.recompute))
        named = options.get("config")
        values: Mapping[str, Any] = {}
        if named and named.values and sources.settings_file(named.text):
            values = sources.contents(named.values[0])
        elif (positional := positional_file(options, sources)) is not None:
            values = sources.contents(positional)
        source = named.text if named else positional_file(options, sources)
        file = PurePath(source if isinstance(source, str) else source.text if source else "").name
        found = cls(options=options, values=values, file=file, program=program, devices=sources.devices.count)
        if program.dtype:
            found = dataclasses.replace(found, own_type=weights_type(sources, found.text(program.model)))
        if program.takes_keys and values and len(sources.line.arguments) > 1:
            message = f"{program.title} takes arguments after `{file}` as `key=value`, and trials state theirs as options"
            raise InputError(message, hint=f"write them into `{file}`, which trials get copies of")
        if found.text("deepspeed") and found.is_sharded_by_torch:
            raise contradiction("Transformers refuses `--fsdp` with `--deepspeed`")
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
            "precision": (*([self.program.pure] if self.is_pure else []), "bf16", "fp16", self.program.dtype),
            "recompute": self.program.recompute,
            "zero_stage": ("fsdp",),
            "fsdp_offload": ("fsdp",),
        }
        named |= {"dp_bucket_mb": (BUCKET,), WORKERS: (WORKERS,), LIGER: (LIGER,), OPTIM: (OPTIM,), "bf16": ("bf16",)}
        stated = {ours: next((name for name in names if self.states(name)), "") for ours, names in named.items()}
        program = self.program
        own = [*(["precision", "bf16"] if program.is_bf16 else []), *(["recompute"] if program.recomputes else [])]
        by_model = dict.fromkeys(("precision", "bf16"), self.own_type[1]) if self.own_type[0] else {}
        return (
            dict.fromkeys(own, f"default of {program.title}")
            | by_model
            | {ours: self.options.origin(name) or self.file for ours, name in stated.items() if name}
        )

    @property
    def is_pure(self) -> bool:
        """Return whether weights and moments have 16 bits, without copies of 32."""
        return bool(self.program.pure) and self.is_on(self.program.pure)

    @property
    def precision(self) -> str:
        """Return the precision; raises InputError if two are on."""
        if self.is_pure:
            return "bf16"
        if self.is_on("bf16") and self.is_on("fp16"):
            raise contradiction("`--bf16` and `--fp16`")
        by_type = (self.text(self.program.dtype) or self.own_type[0]) in ("float16", "float32")
        if self.is_on("fp16") or (by_type and not self.states("fp16")):
            return "fp16"
        return "bf16" if self.is_on("bf16") or (self.program.is_bf16 and not by_type and not self.states("bf16")) else "fp32"

    @property
    def leaves_precision_open(self) -> bool:
        """Return whether no argument turns a precision on."""
        return not any(map(self.is_on, PRECISIONS))

    def model(self, sources: LineSources) -> tuple[dict[str, Value], str, list[str]]:
        """Return `[model]` from a local config.json, its origin, and what would state it otherwise."""
        is_stated = (name in self.options or type(self.values.get(name)) is int for name in _LENGTHS)  # another value may have its use
        length = next((found for name, given in zip(_LENGTHS, is_stated, strict=True) if given and (found := self.whole(name))), None)
        return local_model(sources, self.text(self.program.model) or self.text("config_name"), length)

    def hints_on_precision(self) -> list[str]:
        """Return what states the precision, if only the model's config.json does and it is not here."""
        name = self.program.dtype
        if not name or self.own_type[0] or any(map(self.states, (name, *PRECISIONS))):
            return []
        why = f"the precision of {self.program.title} is that of the model's config.json, which is not here or does not state it"
        return [f"state `--{name} bfloat16`, if that is right: {why}"]

    def hints_on_cpus(self, sources: LineSources) -> list[str]:
        """Return what ranks on CPUs need to train together."""
        lack = sources.on_cpus and sources.devices.hosts == 1 and (self.devices or 1) > 1 and not self.is_on("use_cpu")
        return ["ranks on CPUs exchange no gradients without `--use_cpu`: add it"] if lack else []


def _json(text: str) -> Any:
    try:
        return parse_json(text, source="the argument", hint="")
    except InputError:  # the program reads it in its own way
        return None
