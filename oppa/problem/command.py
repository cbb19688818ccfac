"""Define the user's own launch line: a template that every trial fills in with its configuration.

argv        words, never a shell string; `{tp}` is replaced by a parameter of the configuration, or by one of NAMES
arguments   words that are appended for a parameter: the same for all its values, or different ones for each
files       configuration files, of which a trial gets a copy, `{NAME}`, with some keys rewritten: to a template, or to a choice such as
            `{ zero_stage = { 2 = false, 3 = true } }`
steps       how to read steps from the program's output, if it does not report them itself
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from oppa.errors import JobError, require_known
from oppa.plain_text import clipped
from oppa.problem.configuration import PARAMETERS, Value
from oppa.problem.launch_line.starters import launcher_options_at
from oppa.problem.model import MODEL_HINT, Model
from oppa.problem.objective import Objective
from oppa.problem.space import Parameter
from oppa.problem.templates import (
    ABOUT,
    IMPLY_MICRO_BATCH,
    NAMES,
    RESERVED,
    TOKENS,
    check_batches,
    check_file,
    check_pattern,
    check_secrets,
    check_template,
    names_in,
    spelled,
)

if TYPE_CHECKING:  # trials of launch lines import this module, and must start fast
    from oppa.problem.candidates import Candidates

Values = Mapping[str, Value]
Choice = dict[str, dict[str, Value]]
"""Name of one parameter, with the value to set for each of its values."""

OUT_OF_MEMORY = "MemoryError|out of memory|can't allocate memory"
"""Pattern of an output line that reports a failed allocation."""
OTHERS = "*"
"""Key of the words for all values without words of their own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """Describes the words that a parameter adds to the command: `words` for every value, or those of `by_value`."""

    parameter: str
    words: tuple[str, ...] = ()
    by_value: dict[str, tuple[str, ...]] | None = None
    launcher: bool = False
    """True if the words are options of the launcher, which stand before the program."""

    def words_for(self, values: Values) -> tuple[str, ...]:
        """Return the words for the parameter's value; empty if `by_value` lacks it, as it may if the parameter does not matter."""
        return self.words if self.by_value is None else self.by_value.get(spelled(values[self.parameter]), self.by_value.get(OTHERS, ()))

    def covers(self, value: Value) -> bool:
        """Return whether a value has an entry."""
        return self.by_value is None or not self.by_value.keys().isdisjoint({spelled(value), OTHERS})

    def require(self, value: Value) -> None:
        """Raise JobError if a value has no entry."""
        if not self.covers(value):
            hint = f"add `{spelled(value)} = [...]` to it, or leave the value out of [space.parameters]"
            raise JobError(f"`[command.arguments.{self.parameter}]` has no entry for `{spelled(value)}`", hint=hint)

    @property
    def templates(self) -> Iterator[str]:
        """Yield all words of the argument."""
        yield from self.words
        for words in (self.by_value or {}).values():
            yield from words


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """Describes a configuration file of the program, and the keys that a trial rewrites.

    A key such as `optimizer.zero.stage` is set to a template, to a number or a truth value, or to a choice.
    """

    name: str
    path: str
    keys: dict[str, str | Value | Choice]
    trial_keys: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keys that only trials set, so that they are harmless: to a template, or to a value that is no text."""

    def rewritten(self, values: Values, copies: Mapping[str, Path] | None = None) -> dict[str, Any]:
        """Return each key to rewrite, with its value.

        A key is omitted if its choice lacks the parameter's value, or if `copies` lacks the file that it names.

        Args:
            copies: Paths of copies of files, by name.
        """
        known = {**values, **{name: str(path) for name, path in (copies or {}).items()}}
        set_to = {key: _set_to(to, known) for key, to in self.keys.items()}
        found = {key: value for key, found in set_to.items() for value in found}
        return found | {key: value_of(to, values) if isinstance(to, str) else to for key, to in self.trial_keys.items()}

    @property
    def choices(self) -> Iterator[Choice]:
        """Return the choices among the values of its keys."""
        return (to for to in self.keys.values() if isinstance(to, dict))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepFormat:
    """Describes how lines of output report steps: a pattern with named groups.

    `s` or `ms` is the time of a step; without them it is the time between two lines. `step` is the number of the step that a line reports,
    counted from any start. `done` is the number of steps done, 0 at first, as in progress bars. Without either, each line is a step.
    `per_s` and `tokens_per_s` are rates. `loss` and `memory_gib` are passed on. A line that matches `out_of_memory` states why the program
    fails.
    """

    pattern: str
    out_of_memory: str = OUT_OF_MEMORY
    format: str = ""
    """Name of the known program whose pattern it is; empty for a pattern of the user's own."""
    batches_per_step: str = "1"
    """Template of the number of counted batches per optimizer step, for programs that count batches."""
    better: Literal["", "higher", "lower"] = ""
    """Which values of the group `value` are better, if each line states the objective; empty: throughput is the objective."""
    unit: str = ""
    """Unit of the objective."""

    @property
    def name(self) -> str:
        """Return the declaration as the job file has it."""
        return f'format = "{self.format}"' if self.format else f"pattern = '{self.pattern}'"

    @property
    def objective(self) -> Objective:
        """Return what is to be maximised or minimised."""
        return Objective(unit=self.unit, better=self.better, is_throughput=False) if self.better else Objective()

    def batches(self, values: Values) -> int:
        """Return how many counted lines make an optimizer step of a configuration."""
        return int(value_of(self.batches_per_step, values))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Originals:
    """Holds what trials do not have of a launch line that is harmless in them, and what they have in its place."""

    argv: tuple[str, ...]
    files: tuple[ConfigFile, ...] = ()
    options: tuple[str, ...] = ()
    """Options among the words of the search space that only trials have."""
    changes: tuple[tuple[str, str, str, str], ...] = ()
    """Each change: the option, the user's words, those of trials, and the reason."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """Describes a launch line as a template."""

    argv: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    steps: StepFormat | None = None
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    """Variables of trials alone; their values are templates."""
    originals: Originals | None = None
    """The user's own words, if those of trials differ."""

    @property
    def parameters(self) -> set[str]:
        """Return the parameters that the command names; only they, and those for which the space has words, can be tuned.

        `dp`, which the number of ranks determines, and `global_batch` are always among them.
        """
        named = self.placeholders | {argument.parameter for argument in self.arguments}
        named |= self._chosen
        implied = {"micro_batch"} if named & IMPLY_MICRO_BATCH else set()
        return named - {*RESERVED, *(file.name for file in self.files)} | implied | {"dp", "global_batch"}

    def named_beside(self, own: Collection[str]) -> set[str]:
        """Return the parameters of the search space that it names; the space adds its words if it has none for these.

        Args:
            own: Parameters for which the job gives choices; extra ones among them are the job's own.
        """
        return self.parameters - (set(own) - set(PARAMETERS)) - {"dp", "global_batch"}

    @property
    def placeholders(self) -> set[str]:
        """Return the names in braces in its words and files."""
        return {name for template in self._templates for name in names_in(template)}

    def check_names(self, parameters: Collection[str], *, model: bool) -> None:
        """Raise JobError for an unknown placeholder or parameter.

        Args:
            parameters: Names of the search space's parameters.
            model: Whether the job states its model.
        """
        if not model and (lacking := self.placeholders & {*ABOUT[Model], *TOKENS}):
            raise JobError(f"the launch line names `{{{min(lacking)}}}`, but the job has no [model]", hint=MODEL_HINT)
        for template in self._templates:
            check_template(template, {*NAMES, *parameters, *(file.name for file in self.files)})
        known, others = {*PARAMETERS, *parameters}, {*RESERVED} - {*(() if model else (*ABOUT[Model], *TOKENS))}
        for argument in self.arguments:
            require_known(argument.parameter, known, f"`[command.arguments]`: unknown parameter `{argument.parameter}`", error=JobError)
        for name in sorted(self._chosen - others):
            require_known(name, known, f"`[command.files]`: unknown parameter `{clipped(name)}`", error=JobError)

    def check(self) -> None:
        """Raise JobError for a malformed template, for a secret, or for an invalid pattern."""
        for template in self._templates:
            check_template(template)
        for file in self.files:
            check_file(file.name, file.keys)
        for words in self.lines:
            check_secrets(words)
        if self.steps is not None:
            check_pattern("pattern", self.steps.pattern)
            check_batches(self.steps.batches_per_step)
            check_pattern("out_of_memory", self.steps.out_of_memory)

    def require_words(self, parameter: str, value: Value) -> None:
        """Raise JobError if the command has words or choices for the parameter, but none for this value."""
        for argument in self.arguments:
            if argument.parameter == parameter:
                argument.require(value)
        for key, to in (entry for file in self.files for entry in file.keys.items()):
            if isinstance(to, dict) and parameter in to and not _chosen(to, {parameter: value}):
                hint = f"add `{spelled(value)} = ...` to it, or leave the value out of [space.parameters]"
                raise JobError(f"`{key}` has no value for `{parameter} = {spelled(value)}`", hint=hint)

    def require_words_for(self, candidates: "Candidates") -> None:
        """Raise JobError if a value that matters in one of the candidates has no words.

        A parameter that does not matter has its default, which needs no words.
        """
        for parameter in (candidates.space[name] for name in candidates.space.names if name in self.worded):
            for code in sorted(set(candidates.codes[parameter.name][candidates.matters(parameter)].tolist())):
                self.require_words(parameter.name, parameter.values[code])

    @property
    def worded(self) -> set[str]:
        """Return the parameters with different words or choices for each value."""
        return {argument.parameter for argument in self.arguments if argument.by_value is not None} | self._chosen

    def words(self, values: Values, copies: Mapping[str, Path]) -> list[str]:
        """Return the launch line for a configuration.

        Args:
            values: Values of all placeholders, from `values_of`.
            copies: Paths of the rewritten configuration files, by name.
        """
        front, back = (
            [word for argument in self.arguments if argument.launcher is launcher for word in argument.words_for(values)]
            for launcher in (True, False)
        )
        at = launcher_options_at(self.argv) or 0
        words = [*self.argv[:at], *front, *self.argv[at:], *back]
        known = {name: spelled(value) for name, value in values.items()} | {name: str(path) for name, path in copies.items()}
        return [word.format_map(known) for word in words]

    def with_keys(self, keys: Mapping[str, Value]) -> Self:
        """Return the same launch line with further keys of its first configuration file; those that the file states take precedence."""
        first, *others = self.files
        return dataclasses.replace(self, files=(dataclasses.replace(first, keys={**keys, **first.keys}), *others))

    def variables(self, values: Values) -> dict[str, str]:
        """Return the environment variables that the launch line itself sets in a trial."""
        return {name: template.format_map(values) for name, template in self.environment.items()}

    @property
    def restored(self) -> Self:
        """Return the user's own launch line, which writes what the user means it to write."""
        if self.originals is None:
            return self
        return dataclasses.replace(self, argv=self.originals.argv, files=self.originals.files, environment={}, originals=None)

    def pinned(self, programs: Mapping[str, str]) -> Self:
        """Return the same launch line with programs at their absolute paths.

        Args:
            programs: Absolute paths by word; the first word of the launch line that is equal is replaced.
        """
        own = self.originals
        originals = dataclasses.replace(own, argv=_pinned(own.argv, programs)) if own else None
        return dataclasses.replace(self, argv=_pinned(self.argv, programs), originals=originals)

    @property
    def _chosen(self) -> set[str]:
        """Return the parameters that choose values of keys in configuration files."""
        return {parameter for file in self.files for choice in file.choices for parameter in choice}

    @property
    def _templates(self) -> Iterator[str]:
        yield from self.argv
        for argument in self.arguments:
            yield from argument.templates
        for file in self.files:
            yield from (to for to in (*file.keys.values(), *file.trial_keys.values()) if isinstance(to, str))
        yield from self.environment.values()

    @property
    def lines(self) -> Iterator[tuple[str, ...]]:
        """Yield the words that stand next to each other, and each key of a configuration file with its value."""
        yield self.argv
        for argument in self.arguments:
            yield argument.words
            yield from (argument.by_value or {}).values()
        for file in self.files:
            yield from ((f"{key}={to}",) for key, to in file.keys.items() if isinstance(to, str))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        values = dataclasses.asdict(self)
        if self.steps and not self.steps.better:
            values["steps"] = {name: value for name, value in values["steps"].items() if name not in ("better", "unit")}
        for entry in (entry for entry in values["arguments"] if not entry["launcher"]):
            del entry["launcher"]
        for entry in (*values["files"], *(values["originals"] or {}).get("files", ())):
            if not entry["trial_keys"]:
                del entry["trial_keys"]
        return {name: value for name, value in values.items() if name not in ("environment", "originals") or value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the command that `to_dict` wrote, from JSON."""
        arguments = (
            Argument(
                parameter=each["parameter"],
                words=tuple(each["words"]),
                by_value=None if each["by_value"] is None else {value: tuple(words) for value, words in each["by_value"].items()},
                launcher=each.get("launcher", False),
            )
            for each in values["arguments"]
        )
        return cls(
            argv=tuple(values["argv"]),
            arguments=tuple(arguments),
            files=tuple(ConfigFile(**file) for file in values["files"]),
            steps=StepFormat(**values["steps"]) if values["steps"] else None,
            environment=values.get("environment", {}),
            originals=_originals(values["originals"]) if values.get("originals") else None,
        )


def _originals(values: Mapping[str, Any]) -> Originals:
    """Return the user's own words, from JSON."""
    return Originals(
        argv=tuple(values["argv"]),
        files=tuple(ConfigFile(**file) for file in values["files"]),
        options=tuple(values["options"]),
        changes=tuple((name, original, trial, reason) for name, original, trial, reason in values["changes"]),
    )


def _pinned(words: Sequence[str], programs: Mapping[str, str]) -> tuple[str, ...]:
    """Return words in which the first one of each program is its absolute path."""
    found = list(words)
    for word, path in programs.items():
        if word in found:
            found[found.index(word)] = path
    return tuple(found)


def argument_of(parameter: Parameter) -> Argument:
    """Return the words that the search space declares for a parameter."""
    if isinstance(parameter.words, Mapping):
        return Argument(parameter=parameter.name, by_value=dict(parameter.words), launcher=parameter.launcher)
    return Argument(parameter=parameter.name, words=parameter.words, launcher=parameter.launcher)


def value_of(template: str, values: Values) -> Value:
    """Return the value of a key in a configuration file: the value itself if the template is one placeholder, else text."""
    names = list(names_in(template))
    if len(names) == 1 and template == f"{{{names[0]}}}":
        return values[names[0]]
    return template.format_map({name: spelled(value) for name, value in values.items()})


def _set_to(to: str | Value | Choice, values: Values) -> list[Value]:
    """Return the value that a key is set to, in a list; empty if a choice lacks the parameter's value, or a placeholder has none."""
    if isinstance(to, dict):
        return _chosen(to, values)
    if isinstance(to, str) and not values.keys() >= {*names_in(to)}:
        return []
    return [value_of(to, values) if isinstance(to, str) else to]


def _chosen(choice: Choice, values: Values) -> list[Value]:
    """Return the value that a choice sets, in a list; empty if the choice lacks the parameter's value."""
    ((parameter, by_value),) = choice.items()
    value = spelled(values[parameter])
    return [by_value[value]] if value in by_value else []
