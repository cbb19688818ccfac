"""Write extra parameters as the words that the search space declares, and read them from the options of a script.

A format whose framework is configured by options needs no list of them: a new entry of the search space is enough.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from oppa import catalog
from oppa.problem.command import Values, argument_of
from oppa.problem.configuration import Configuration, Value
from oppa.problem.problem import Problem
from oppa.problem.space import Parameter
from oppa.problem.space_file import declared_names
from oppa.problem.templates import names_in, spelled
from oppa.problem.trial_values import values_of

Options = Mapping[str, Sequence[str]]
"""Values of each option, as in a launch line."""
_NEUTRAL = ("command", "program")
"""Search spaces of the catalogue for programs of any framework."""


def foreign(problem: Problem, spaces: Collection[str]) -> frozenset[str]:
    """Return the parameters of another framework's search space, if the job has one: their words and keys are that framework's.

    Args:
        spaces: Search spaces of the framework that is written or read.
    """
    name = problem.space.name
    is_taken = name in (*spaces, *_NEUTRAL) or name not in catalog.names("search_spaces")
    return frozenset() if is_taken else declared_names(name)


def worded(problem: Problem, spaces: Collection[str]) -> list[Parameter]:
    """Return the extra parameters with words that a framework takes: those of its own search spaces, and those that a job declares."""
    others = foreign(problem, spaces)
    return [known for known in problem.space.parameters if known.is_extra and known.words and known.name not in others]


def values_outside_trials(problem: Problem, configuration: Configuration) -> Values:
    """Return the values that a template may name where no trial runs: no steps, and the present folder."""
    return values_of(configuration, problem.stated_model, problem.cluster, problem.training, steps=0, folder=Path())


def written(problem: Problem, configuration: Configuration, parameters: Iterable[Parameter]) -> dict[str, list[str]]:
    """Return the words of each parameter that matters in a configuration, by its name; one at its default may have none."""
    values = values_outside_trials(problem, configuration)
    texts = {name: spelled(value) for name, value in values.items()}
    active = {known.name for known in problem.space.active(configuration)}
    return {
        known.name: [word.format_map(texts) for word in argument_of(known).words_for(values)]
        for known in parameters
        if known.name in active
    }


def read(parameters: Iterable[Parameter], options: Options) -> dict[str, Value]:
    """Return the parameters that options state; one whose options are missing, or have a value that is not legal, is left out."""
    found = {known.name: _read(known, options) for known in parameters}
    return {name: value for name, value in found.items() if value is not None}


def stated(parameters: Iterable[Parameter], settings: Mapping[str, Value]) -> set[str]:
    """Return the options that state the values of some parameters."""
    return {option for known in parameters if known.name in settings for option in _options(known, settings[known.name])}


def grouped(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values that follow each option of a launch line, or that it has after `=`."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            found[option] = values = [value] if equals else []
        else:
            values.append(word)
    return found


def _read(known: Parameter, options: Options) -> Value | None:
    """Return the value with the most options among those whose options are all stated; None if no option of the parameter is."""
    every = ((value, _options(known, value)) for value in known.values)
    matching = [(len(each), value) for value, each in every if each and _are_stated(each, options)]
    return max(matching, key=lambda pair: pair[0])[1] if matching else None


def _are_stated(wanted: Options, options: Options) -> bool:
    """Return whether options have these values; words that follow a switch are not its values, nor are those from a variable on."""
    return all(
        option in options and (not values or list(itertools.takewhile(lambda word: "$" not in word, options[option])) == list(values))
        for option, values in wanted.items()
    )


def _options(known: Parameter, value: Value) -> dict[str, list[str]]:
    """Return the options of a value; none if its words name other parameters, which a script does not state."""
    words = argument_of(known).words_for({known.name: value})
    if any(name != known.name for word in words for name in names_in(word)):
        return {}
    return grouped([word.format_map({known.name: spelled(value)}) for word in words])
