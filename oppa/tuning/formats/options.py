"""Write a configuration as options of a framework's program, by the words that its search space declares, and as arguments of its file."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oppa import catalog
from oppa.problem.command import argument_of
from oppa.problem.configuration import Configuration
from oppa.problem.declaration import spell
from oppa.problem.problem import Problem
from oppa.problem.space import Parameter
from oppa.problem.space_file import read_space
from oppa.tuning.formats import space_words
from oppa.tuning.formats.format import can_vary, inexpressible, is_chosen, require_expressible
from oppa.tuning.formats.space_words import Options


def parameters(space: str, problem: Problem) -> dict[str, Parameter]:
    """Return the parameters of a framework's search space, and the extra ones with words that the job itself declares.

    Those that the job has from another framework's search space are left out, also where the two have the same name.
    """
    text = catalog.find("search_spaces", space).read_text()
    own = read_space(text, name=space, facts=problem.space.facts).parameters
    others = space_words.foreign(problem, (space,))
    usual = [known for known in own if not known.is_extra or known.name not in others]
    return {known.name: known for known in (*usual, *space_words.worded(problem, (space,)))}


def require_options(known: Mapping[str, Parameter], problem: Problem, configuration: Configuration, *, target: str) -> None:
    """Raise InputError for a chosen parameter that has no option, or a value that has none."""
    require_expressible(problem, configuration, expresses=known, target=target)
    for name in configuration.names:
        if name in known and is_chosen(problem, configuration, name) and not _has_words(known[name], configuration):
            usual = spell(known[name].default)
            raise inexpressible(target, configuration, name, hint=f"export a configuration with `{name} = {usual}`")


def written(known: Mapping[str, Parameter], problem: Problem, configuration: Configuration, *, leave_out: Collection[str]) -> list[str]:
    """Return the options of the parameters that matter in a configuration.

    A parameter of oppa's own that keeps the framework's default in all configurations of the job has none.
    """
    options = [each for name, each in known.items() if name in configuration.names and name not in leave_out]
    stated = [each for each in options if each.is_extra or can_vary(problem, each.name) or is_chosen(problem, configuration, each.name)]
    return [word for words in space_words.written(problem, configuration, stated).values() for word in words]


def arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that options state, by name; an option without a value is true."""
    return {option.removeprefix("--"): _typed(values[0]) if values else True for option, values in space_words.grouped(words).items()}


def options_of(values: Mapping[str, Any]) -> Options:
    """Return the options that state the arguments of a file; the inverse of `arguments`."""
    return {f"--{name}": [value if isinstance(value, str) else json.dumps(value)] for name, value in values.items()}


def _has_words(known: Parameter, configuration: Configuration) -> bool:
    """Return whether options state a parameter's value in a configuration, or the framework has no other value."""
    value = configuration[known.name]
    return argument_of(known).covers(value) if known.words else known.values == (value,)


def _typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
