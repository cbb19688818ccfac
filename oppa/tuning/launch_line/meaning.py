"""Define what a launch line means: facts with their origins, the present configuration, and the job that its trials are made from.

settings     the present configuration as stated, by oppa's parameters
words        launch line of every trial: templates, without the options that parameters set
arguments    words that a parameter adds, if the job lists them itself; otherwise the search space completes the line
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.problem.configuration import Value
from oppa.problem.declaration import spell
from oppa.tuning.launch_line.keyed_programs import keyed_programs
from oppa.tuning.launch_line.templates_of import placeholders

TITLES: Mapping[str, str] = {
    "megatron": "Megatron-LM",
    "megatron-bridge": "Megatron-Bridge",
    "megatron-deepspeed": "Megatron-DeepSpeed",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "accelerate": "accelerate",
    "transformers": "Transformers Trainer",
    "lightning": "LightningCLI",
    "plain": "a program of your own",
    **{name: program.title for name, program in keyed_programs().items()},
}
"""Usual names of frameworks, by their keys."""
ASSUMED = "assumed"
"""Origin of a value that nothing states; it serves predictions alone."""
ASSUMED_VOCAB = 128256
VOCAB_NOTE = f"the size of the vocabulary is not stated: {ASSUMED_VOCAB} is {ASSUMED} in predictions; `--set model.vocab=...` states it"


def imposed_note(option: str) -> str:
    """Return the note on an option that trials have although the line lacks it."""
    return f"trials have `{option}`, which the line lacks: it saves memory under tensor parallelism, and the winner keeps it"


ArgumentWords = Sequence[str] | Mapping[str, Sequence[str]]
"""Words that a parameter adds, or those of each value."""
Arguments = Mapping[str, ArgumentWords]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatedFact:
    """Holds a value that was understood, with its origin: `line`, `run.sh:12`, a file, `default of torchrun`, `assumed`."""

    name: str
    value: str
    origin: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineConflict:
    """Holds two statements of one thing; `taken` is the one that counts."""

    about: str
    taken: str
    other: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EditedFile:
    """Describes a configuration file of which trials get a copy with some keys rewritten."""

    name: str
    path: Path
    keys: Mapping[str, Any]
    """Templates or choices by dotted key, as `[command.files]` has them."""
    present: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The file's present values of these keys."""

    copies: tuple[str, ...] = ()
    """Keys that name the copies of other files."""

    @property
    def rewritten(self) -> list[str]:
        """Return what trials rewrite: the parameters by which keys vary, and the keys that have one value in all trials."""
        varied: list[str] = []
        for to in (to for key, to in self.keys.items() if key not in self.copies):
            varied += to if isinstance(to, Mapping) else sorted(placeholders(to)) if isinstance(to, str) else []
        return [*dict.fromkeys(varied), *(f"{key} = {spell(self.keys[key])}" for key in self.fixed)]

    @property
    def fixed(self) -> list[str]:
        """Return the keys that have one value in all trials, which the winner does not need."""
        return [key for key, to in self.keys.items() if not isinstance(to, Mapping) and not (isinstance(to, str) and placeholders(to))]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineDevices:
    """Describes the devices that a launch line uses; None for what neither it nor this machine states."""

    hosts: int = 1
    per_host: int | None = None
    origin: str = ""
    gpu: str = ""
    """Name of the device as a scheduler states it; empty if nothing does."""
    starts_step: bool = False
    """True if the line itself starts a step of Slurm on all hosts."""

    @property
    def count(self) -> int | None:
        """Return the number of devices."""
        return None if self.per_host is None else self.hosts * self.per_host


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """Holds the meaning that a framework's module reads from a launch line."""

    framework: str
    """Key of the framework, such as `megatron`."""
    writes_as: str = ""
    """Framework that declares what the program writes; empty: the same."""
    evidence: str
    """The mark that shows that it is this framework."""
    devices: LineDevices
    model: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    """Keys of `[model]` that are stated; empty if only the program defines its model."""
    model_origin: str = ""
    assumed: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    """Further keys of `[model]`, which nothing states."""
    global_batch: int | None = None
    batch_origin: str = ""
    precision: str = ""
    settings: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Origins of the settings."""
    space: str = ""
    """The framework's search space; empty: that of programs without a model."""
    completes: bool = False
    """True if the search space completes the line by its own words."""
    words: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Parameters that an option states in other words than trials have, by the option."""
    derived: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Parameters from which the program takes the value of an option that the line lacks, by the option."""
    imposed: tuple[str, ...] = ()
    """Options of the present configuration's trial that the line lacks, and that change what the program does."""
    arguments: Arguments = dataclasses.field(default_factory=dict)
    files: tuple[EditedFile, ...] = ()
    choices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of `[space.parameters]`."""
    steps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Contents of `[command.steps]`; empty: oppa recognises the format."""
    added: tuple[str, ...] = ()
    """Words that every trial has besides, so that its steps can be read."""
    paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Effects of options and keys that name paths, as `[command.paths]` has them; those that the user declares take precedence."""
    facts: tuple[StatedFact, ...] = ()
    """Further facts to show."""
    conflicts: tuple[LineConflict, ...] = ()
    notes: tuple[str, ...] = ()
    training: tuple[StatedFact, ...] = ()
    """Keys of `[training]` besides the precision, which predictions use."""
    unpredicted: tuple[str, ...] = ()
    """Notes on what predictions do not have, if there are predictions."""
    overestimated: tuple[str, ...] = ()
    """Notes on what needs less memory than predicted, if there are predictions."""
    missing: tuple[str, ...] = ()
    """Expansions that nothing states, though a trial needs it."""
    hints: tuple[str, ...] = ()
    """Things that the user can add for more."""

    @property
    def title(self) -> str:
        """Return the framework's usual name."""
        return TITLES[self.framework]

    @property
    def stated_model(self) -> dict[str, Value]:
        """Return `[model]`: what is stated, and what is assumed."""
        return {**self.assumed, **self.model} if self.model else {}
