"""Write the user's own launch line for a configuration, with the words that change."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Literal

from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.templates import spelled
from oppa.redaction import redacted
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.line_job import LineJob
from oppa.tuning.launch_line.templates_of import PLACEHOLDER

Mark = Literal["", "changed", "added", "removed"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MarkedWord:
    """A word of the new launch line, or one of the old line that is gone."""

    text: str
    mark: Mark = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """A change of the launch line or of a file that it names; an empty text stands for nothing."""

    about: str
    """Name of the option, or of the file and its key."""
    old: str
    new: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLine:
    """The user's launch line for a configuration."""

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
    """Return the line for a configuration: that of the baseline with other values, in the user's own order."""
    problem = job.problem
    added = _added(problem, configuration)
    new, spelling = _stated(added), {_key(name): name for name in _options_in(added)}
    usual = problem.baseline
    old = _stated(_added(problem, usual)) if usual is not None else {}
    base = list(job.line.typed) if job.line.takes_arguments else [word.text for stage in job.line.stages for word in stage.words]
    base += [] if job.line.takes_arguments else [word.text for word in job.line.program_words]
    before = base if usual is None else _filled(base, problem, usual)
    after = _filled(base, problem, configuration)
    words = [MarkedWord(text=text, mark="changed" if text != old_text else "") for text, old_text in zip(after, before, strict=True)]
    changes = _of_placeholders(problem, configuration) if after != before else []
    for name, values in new.items():
        found = _find(words, name)
        if found is not None:
            present = tuple(word.text for word in words[found[0] : found[1]])
            if _values(present) != values:
                words[found[0] : found[1]] = _replaced(present, values)
                changes.append(LineChange(about=present[0].partition("=")[0], old=" ".join(_values(present)), new=" ".join(values) or "on"))
        elif values != old.get(name):
            words += [MarkedWord(text=text, mark="added") for text in _spelled(spelling[name], values)]
            changes.append(LineChange(about=spelling[name], old=" ".join(old.get(name, ())), new=" ".join(values) or "on"))
    for name in old.keys() - new.keys():
        if (found := _find(words, name)) is not None:
            words[found[0] : found[1]] = [MarkedWord(text=word.text, mark="removed") for word in words[found[0] : found[1]]]
            changes.append(LineChange(about=name, old=" ".join(old[name]) or "on", new=""))
    return ChangedLine(words=tuple(words), changes=(*changes, *_of_files(job, configuration)))


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
    return re.match(r"--?[A-Za-z]", word) is not None or re.match(r"[A-Za-z_][\w.]*=|\w+:\w", word) is not None


def _key(text: str) -> str:
    """Return an option's name; dashes and underscores are one."""
    head, rest = re.match(r"(-*)(.*)", text).groups()  # type: ignore[union-attr]
    return f"{head}{rest.replace('-', '_')}"


def _find(words: Sequence[MarkedWord], name: str) -> tuple[int, int] | None:
    """Return where the last option of this name stands with its values."""
    for start in range(len(words) - 1, -1, -1):
        if words[start].mark == "removed" or not _is_option(words[start].text) or _key(words[start].text.partition("=")[0]) != name:
            continue
        end = start + 1
        if "=" not in words[start].text:
            while end < len(words) and not _is_option(words[end].text):
                end += 1
        return start, end
    return None


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
