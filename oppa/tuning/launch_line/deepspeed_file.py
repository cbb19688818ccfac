"""Read a file of DeepSpeed that a launch line names, and the copies of it that trials get."""

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal

from oppa.errors import InputError
from oppa.problem.configuration import Value
from oppa.problem.file_keys import at, require_tables
from oppa.problem.launch_line.words import Word
from oppa.problem.space_file import declared_keys
from oppa.tuning.formats.deepspeed import BATCH, SPACE, batch_sizes, key_of, without_auto
from oppa.tuning.launch_line.meaning import EditedFile
from oppa.tuning.launch_line.options import LineOption
from oppa.tuning.launch_line.sources import LineSources

_OFFLOADS = ("offload_optimizer", "offload_params")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedFile:
    """Holds a file of DeepSpeed with its present values."""

    text: str
    """The file's name as the line has it."""
    shown: str
    values: Mapping[str, Any]
    sources: LineSources
    has_pipeline: bool = False
    """True if the program has a pipeline, which works without ZeRO or with stage 1 alone."""

    @classmethod
    def of(cls, sources: LineSources, option: LineOption | None, *, has_pipeline: bool = False) -> "DeepSpeedFile":
        """Return the file that an option names; raises InputError if it names none, or if the file cannot be read."""
        if option is None or not option.values:
            raise InputError("`--deepspeed_config` names no file", hint="name the JSON file of DeepSpeed")
        return cls.named(sources, option.values[0], has_pipeline=has_pipeline)

    @classmethod
    def named(cls, sources: LineSources, name: Word | str, *, has_pipeline: bool = False) -> "DeepSpeedFile":
        """Return the file of this name; raises InputError if it cannot be read."""
        text = name if isinstance(name, str) else name.text
        return cls(text=text, shown=PurePath(text).name, values=sources.contents(name), sources=sources, has_pipeline=has_pipeline)

    @property
    def stage(self) -> int:
        """Return the ZeRO stage; the old spelling `true` is stage 1."""
        zero = self.values.get("zero_optimization")
        if isinstance(zero, bool):
            return int(zero)
        found = at(self.values, key_of("zero_stage"))
        return found if type(found) is int else 0

    @property
    def stages(self) -> list[int]:
        """Return the stages among which trials choose: only stage 3 moves parameters to the host."""
        if at(self.values, key_of("offload_params")) not in (None, "none"):
            return [3]
        if self.has_pipeline or isinstance(self.values.get("zero_optimization"), bool) or "pipeline" in self.values:
            return [self.stage]
        return [1, 2, 3] if self.stage else [0, 1, 2, 3]

    @property
    def choices(self) -> dict[str, list[int]]:
        """Return the stages as choices of a job; empty if there is one alone."""
        return {"zero_stage": self.stages} if len(self.stages) > 1 else {}

    @property
    def precision(self) -> str:
        """Return the precision; empty if the file leaves it open."""
        for name in ("bf16", "fp16"):
            if at(self.values, f"{name}.enabled") is True:
                return name
        return ""

    @property
    def settings(self) -> dict[str, Value]:
        """Return the present configuration that the file states."""
        offloads = {name: found for name in _OFFLOADS if isinstance(found := at(self.values, key_of(name)), str) and found != "none"}
        return {"zero_stage": self.stage, **offloads}

    def degrees(self, devices: int | None) -> dict[str, Value]:
        """Return the data-parallel ranks among devices, and the ranks that share a sequence; raises InputError if these divide no devices.

        Source: DeepSpeedConfig.__init__ (DeepSpeed 0.19).
        """
        key = key_of("sp")
        sequence = at(self.values, key)
        if devices is None or type(sequence) is not int or sequence <= 1:
            return {} if devices is None else {"dp": devices}
        if devices % sequence:
            raise InputError(f"`{key} = {sequence}` ({self.shown}) does not divide the {devices} ranks", hint="use a divisor of them")
        return {"dp": devices // sequence, "sp": sequence}

    def batch(self, ranks: int | None) -> tuple[int | None, int | None]:
        """Return the global batch and the micro-batch.

        Args:
            ranks: The data-parallel ranks; None if they are not known.

        Raises:
            InputError: a size is no number of at least 1, or the micro-batches of all ranks do not divide the global batch.
        """
        default = {key_of("micro_batch", "{num_microbatches}"): 1}
        total, micro = batch_sizes({**default, **without_auto(self.values)}, ranks=ranks)
        (total_key, micro_key) = (key_of("micro_batch", each) for each in BATCH[:2])
        if total and micro is not None and ranks and self.values.get(micro_key) != "auto" and (not micro or total % (micro * ranks)):
            least = max(micro, 1) * ranks
            message = f"`{total_key} = {total}` ({self.shown}) is no multiple of micro-batches of {max(micro, 1)} on {ranks} ranks"
            raise InputError(message, hint=f"write a multiple of {least} as `{total_key}`, such as {max(total // least, 1) * least}")
        return total, micro

    def edited(self, *, batch: Literal["all", "all but auto", "none"], more: Mapping[str, Any] | None = None) -> EditedFile:
        """Return the file with the keys that trials rewrite.

        Args:
            batch: Which sizes of the batch are rewritten.
            more: Further keys.
        """
        keys: dict[str, Any] = dict(more or {})
        keys |= {key_of(name): f"{{{name}}}" for name in self.choices}
        if batch != "none":
            keys |= {
                key: to
                for key, to in declared_keys(SPACE)["micro_batch"].items()
                if batch == "all" or self.values.get(key, "auto") != "auto"
            }
        require_tables(self.values, keys, source=self.shown)
        declared = {key for known in declared_keys(SPACE).values() for key in known}
        present = {key: at(self.values, key) for key in {*keys, *declared}}
        return EditedFile(name="ds", path=self.sources.line.path(self.text), keys=keys, present=present)
