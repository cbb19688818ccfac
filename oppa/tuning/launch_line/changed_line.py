"""Write the user's own launch line for a configuration, with the words that change."""

import dataclasses
import itertools
import re
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, Literal

from oppa.problem.command import argument_of
from oppa.problem.configuration import Configuration, Value
from oppa.problem.framework_variables import lacking
from oppa.problem.launch_line.words import texts
from oppa.problem.problem import Problem
from oppa.problem.templates import spelled
from oppa.redaction import redacted
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.line_job import LineJob
from oppa.tuning.launch_line.templates_of import PLACEHOLDER

Mark = Literal["", "changed", "added", "removed"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MarkedWord:
    """Marks a word of the new launch line, or one of the old line that is gone."""

    text: str
    mark: Mark = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """Describes a change of the launch line or of a file that it names; an empty text stands for nothing."""

    about: str
    """Name of the option, or of the file and its key."""
    old: str
    new: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLine:
    """Holds the user's launch line for a configuration."""

    words: tuple[MarkedWord, ...]
    changes: tuple[LineChange, ...]

    @property
    def line(self) -> list[str]:
        """Return the words of the new line."""
        return [word.text for word in self.words if word.mark != "removed"]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, without secrets."""
        return {
            "words": redacted(self.line),
            "changes": [{"about": each.about, "old": each.old, "new": each.new} for each in self.changes],
        }


Stated = dict[str, tuple[str, ...]]
"""Values by option; those of `name=value` are under the name."""


def changed_line(job: LineJob, configuration: Configuration) -> ChangedLine:
    """Return the line for a configuration: that of the baseline with other values, in the user's own order.

    What states another value of a parameter is replaced, however the user spelled it. A parameter of the same value keeps the user's words.
    """
    problem, usual = job.problem, job.problem.baseline
    added = _added(problem, configuration)
    new, spelling = _stated(added), {_key(name): name for name in _options_in(added)}
    constant = {name: new[name] for name in _options_of(problem, {"dp"}) if name in new}  # what trials need besides the line
    old = _stated(_added(problem, usual)) if usual is not None else constant
    differing = _differing(problem, configuration)
    varied = _options_of(problem, differing)
    gone, lacking = _gone_and_lacking(job, differing, new)
    subcommands = {name for name in _options_of(problem, problem.space.names) if ":" in name}
    head, arguments = _parts(job, gone)
    base = [*head, *arguments]
    before = base if usual is None else _filled(base, problem, usual)
    after = _filled(base, problem, configuration)
    words = [MarkedWord(text=text, mark="changed" if text != old_text else "") for text, old_text in zip(after, before, strict=True)]
    head_words, words = words[: len(head)], words[len(head) :]
    changes = _of_placeholders(problem, configuration) if after != before else []
    for name, values in new.items():
        is_needed = values != old.get(name) or name in lacking
        found = _find(words, {name}) if is_needed or name in varied else []
        for start, end in reversed(found):
            present = tuple(word.text for word in words[start:end])
            if _values(present) != values:
                words[start:end] = _replaced(present, values)
                changes.append(LineChange(about=present[0].partition("=")[0], old=" ".join(_values(present)), new=" ".join(values) or "on"))
        if is_needed and not found:
            end = next((start for start, _ in _find(words, subcommands)), len(words))  # options that follow a subcommand are its own
            words[end:end] = [MarkedWord(text=text, mark="added") for text in _spelled(spelling[name], values)]
            changes.append(LineChange(about=spelling[name], old=" ".join(old.get(name, ())), new=" ".join(values) or "on"))
    for start, end in _find(words, gone):
        present = tuple(word.text for word in words[start:end])
        words[start:end] = [MarkedWord(text=text, mark="removed") for text in present]
        changes.append(LineChange(about=present[0].partition("=")[0], old=" ".join(_values(present)) or "on", new=""))
    variables = _changed_variables(job, configuration, is_other=bool(differing))
    changes += [LineChange(about=name, old=old, new=new) for name, (old, new) in variables.items()]
    head_words = _with_variables(head_words, {name: value for name, (_, value) in variables.items()})
    return ChangedLine(words=(*head_words, *words), changes=(*changes, *_of_files(job, configuration)))


def _changed_variables(job: LineJob, configuration: Configuration, *, is_other: bool) -> dict[str, tuple[str, str]]:
    """Return the environment variables that differ from the line or the baseline, with both values.

    They are those of parameters, and those that the framework requires and the user has not set.

    Args:
        is_other: The configuration is not the baseline, which the user has run as it is.
    """
    problem = job.problem
    own = {name for name, _ in job.line.environment}
    before = {**job.line.variables, **({} if problem.baseline is None else problem.variables(problem.baseline))}
    required = lacking(problem.default_variables(configuration)) if is_other else {}
    now = {**{name: value for name, value in required.items() if name not in own}, **problem.variables(configuration)}
    return {name: (before.get(name, ""), value) for name, value in now.items() if before.get(name) != value}


def _with_variables(head: Sequence[MarkedWord], variables: Mapping[str, str]) -> list[MarkedWord]:
    """Return the first words of a line with assignments of variables, in place of the line's own ones or in front of the program."""
    own = {word.text.partition("=")[0]: place for place, word in enumerate(head) if word.text.partition("=")[0] in variables}
    words = list(head)
    for name, place in own.items():
        words[place] = MarkedWord(text=f"{name}={variables[name]}", mark="changed")
    start = int(bool(words) and words[0].text == "env")
    while start and words[start].text.startswith("-"):  # options of `env` precede its assignments
        start += 2 if words[start].text in ("-C", "-u") else 1
    words[start:start] = [MarkedWord(text=f"{name}={value}", mark="added") for name, value in variables.items() if name not in own]
    return words


def _gone_and_lacking(job: LineJob, differing: Set[str], new: Stated) -> tuple[set[str], set[str]]:
    """Return the options of the line that state something else than a configuration, and those that it needs though the baseline has them.

    Args:
        differing: Parameters with another value than in the baseline.
        new: What the parameters of the configuration state.
    """
    problem, stated = job.problem, _stated(texts(job.line.arguments)).keys()
    aliases = {_key(alias): names for alias, names in job.meaning.aliases.items() if _key(alias) in stated and differing & set(names)}
    gone = {*_options_of(problem, differing), *aliases} & stated - new.keys()
    lacking = {*_options_of(problem, {name for names in aliases.values() for name in names})}
    lacking |= {_key(option) for option, names in job.meaning.derived.items() if differing & set(names)}
    lacking |= {_key(option) for option in job.meaning.imposed if differing}
    return gone, lacking - stated


def _differing(problem: Problem, configuration: Configuration) -> set[str]:
    """Return the parameters that matter in a configuration or in the baseline, and not with the same value in both."""
    before, now = _mattering(problem, problem.baseline), _mattering(problem, configuration)
    return {name for name in {*before, *now} if before.get(name) != now.get(name)}


def _mattering(problem: Problem, configuration: Configuration | None) -> dict[str, Value]:
    """Return the parameters that matter in a configuration; none without one."""
    return {} if configuration is None else {known.name: configuration[known.name] for known in problem.space.active(configuration)}


def _options_of(problem: Problem, names: Collection[str]) -> Stated:
    """Return the options that parameters may add, of any value, with their templates."""
    own = [argument_of(known) for known in problem.space.parameters if known.words]
    arguments = [*(problem.command.arguments if problem.command else ()), *own]
    return {name: values for each in arguments if each.parameter in names for name, values in _stated([*each.templates]).items()}


def _parts(job: LineJob, gone: set[str]) -> tuple[list[str], list[str]]:
    """Return the words in front of the program's arguments, and these; a script whose own words have to change is written out."""
    line = job.line
    if line.scripts and line.takes_arguments and not gone & _stated([word.text for word in line.arguments if not word.is_typed]).keys():
        return [], list(line.typed)
    if not line.scripts:
        count = len(line.typed) - len(line.arguments)
        return list(line.typed[:count]), list(line.typed[count:])
    variables = line.words_of_env(job.command.withheld)
    started = [*(word for stage in line.stages for word in stage.words), *line.program_words]
    return [*(["env", *variables] if variables else []), *texts(started[: len(started) - len(line.arguments)])], texts(line.arguments)


def _added(problem: Problem, configuration: Configuration) -> list[str]:
    """Return the words that parameters add to the launch line of a configuration."""
    line = problem.launch_line(configuration)
    assert line is not None
    return dataclasses.replace(line, argv=()).words(values_outside_trials(problem, configuration), {})


def _options_in(words: Sequence[str]) -> list[str]:
    """Return the options among words, in their own spelling and without values."""
    return [word.partition("=")[0] for word in words if _is_option(word)]


def _stated(words: Sequence[str]) -> Stated:
    found: Stated = {}
    name = ""
    for word in words:
        if _is_option(word):
            key, equals, value = word.partition("=")
            name = _key(key)
            found[name] = (value,) if equals else ()
        elif name:
            found[name] = (*found[name], word)
    return found


def _is_option(word: str) -> bool:
    return re.match(r"--?[A-Za-z]|\+{0,2}[A-Za-z_][\w.]*=|\w+:\w", word) is not None


def _key(text: str) -> str:
    """Return an option's name without Hydra's `+`; dashes and underscores are one."""
    head, rest = re.match(r"\+*(-*)(.*)", text).groups()  # type: ignore[union-attr]
    return f"{head}{rest.replace('-', '_')}"


def _find(words: Sequence[MarkedWord], names: Collection[str]) -> list[tuple[int, int]]:
    """Return where options of these names stand with their values."""
    starts = [place for place, word in enumerate(words) if _is_option(word.text)]
    return [
        (start, start + 1 if "=" in words[start].text else end)
        for start, end in itertools.pairwise([*starts, len(words)])
        if _key(words[start].text.partition("=")[0]) in names
    ]


def _values(words: Sequence[str]) -> tuple[str, ...]:
    _, equals, value = words[0].partition("=")
    return (value,) if equals else tuple(words[1:])


def _replaced(before: Sequence[str], values: Sequence[str]) -> list[MarkedWord]:
    """Return an option with other values, in the user's own spelling."""
    name, equals, _ = before[0].partition("=")
    if equals:
        return [MarkedWord(text=f"{name}={' '.join(values)}", mark="changed")]
    return [MarkedWord(text=name), *(MarkedWord(text=value, mark="changed") for value in values)]


def _spelled(name: str, values: Sequence[str]) -> list[str]:
    if not name.startswith("-"):
        return [f"{name}={values[0]}" if values else name]
    return [name, *values]


def _filled(words: Sequence[str], problem: Problem, configuration: Configuration) -> list[str]:
    """Return the words with the placeholders that the user typed filled in."""
    known = {name: spelled(value) for name, value in values_outside_trials(problem, configuration).items()}
    return [PLACEHOLDER.sub(lambda found: known.get(found[1], found[0]), word) for word in words]


def _of_placeholders(problem: Problem, configuration: Configuration) -> list[LineChange]:
    usual = problem.baseline
    if usual is None:
        return []
    named = problem.command.placeholders if problem.command else set()
    both = values_outside_trials(problem, usual), values_outside_trials(problem, configuration)
    return [
        LineChange(about=name, old=spelled(both[0][name]), new=spelled(both[1][name]))
        for name in sorted(named)
        if name in both[0] and both[0][name] != both[1][name]
    ]


def _of_files(job: LineJob, configuration: Configuration) -> list[LineChange]:
    """Return the keys of files that have another value."""
    return [
        LineChange(
            about=f"{file.path.name}: {key}", old="" if file.present.get(key) is None else spelled(file.present[key]), new=spelled(value)
        )
        for file, keys in job.files_of(configuration)
        for key, value in keys.items()
        if file.present.get(key) != value and not (file.present.get(key) is None and value in (0, False, "none"))
    ]
