"""Read and check what a search space declares of the framework's own language: words of a launch line, keys of a file, variables."""

import shlex
from collections.abc import Iterator, Mapping

from oppa.errors import JobError, SpaceError, nearest
from oppa.problem.command import OTHERS, LaunchCommand, argument_of
from oppa.problem.configuration import Value
from oppa.problem.declaration import shown
from oppa.problem.space import Keys, Parameter, SearchSpace, Words
from oppa.problem.templates import NAMES, check_secrets, check_template, spelled

OURS = ("PATH", "PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that each rank of a trial gets, besides those that begin with `OPPA_`."""
StatedWords = str | list[str] | dict[str, str | list[str]]
StatedKeys = str | dict[str, str | bool | int | float | dict[str, str | bool | int | float | list[str]]]


def words_of(name: str, stated: StatedWords) -> Words:
    """Return the words of a parameter; a text is split as a shell splits it."""
    if isinstance(stated, dict):
        return {value: _split(name, words) for value, words in stated.items()}
    return _split(name, stated)


def keys_of(name: str, stated: StatedKeys) -> Keys:
    """Return the keys of a parameter; a text is the key of its value. In a choice by value `[]` stands for no value."""
    found: dict[str, Value | Mapping[str, Value | None]] = {}
    for key, to in {stated: f"{{{name}}}"}.items() if isinstance(stated, str) else stated.items():
        if isinstance(to, dict) and any(isinstance(each, list) and each for each in to.values()):
            raise SpaceError(f"`[parameters.{name}]`: `{key}` has a list", hint="write one value, or `[]` to leave the key as it is")
        found[key] = {value: None if isinstance(each, list) else each for value, each in to.items()} if isinstance(to, dict) else to
    return found


def check_choices(knob: Parameter, command: LaunchCommand | None) -> None:
    """Raise JobError if a text that a knob may have is a secret by the knob's name, its variable, its words or the launch line."""
    placeholder, lines = f"{{{knob.name}}}", [*(command.lines if command else ()), tuple(argument_of(knob).templates)]
    lines += [(f"{key}={to}",) for key, to in knob.keys.items() if isinstance(to, str)]
    pairs = [pair for line in lines for pair in zip(("", *line), line, strict=False) if placeholder in pair[1]]
    for value in (value for value in knob.choices if isinstance(value, str)):
        for name in filter(None, (knob.name, knob.env)):
            check_secrets((f"{name}={value}",))
        for before, word in pairs:
            check_secrets((before, word.replace(placeholder, value)))


def _split(name: str, stated: str | list[str]) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(stated) if isinstance(stated, str) else stated)
    except ValueError as error:
        message = f"`[parameters.{name}]`: `words = {shown(stated)}` cannot be split: {error}"
        raise SpaceError(message, hint='close the quotation, or write a list: `words = ["--option", "{name}"]`') from None


def check_words(space: SearchSpace) -> None:
    """Raise SpaceError if words or keys name something unknown, or are for a value that the parameter lacks, or if a variable is taken."""
    variables = [parameter.env for parameter in space.parameters]
    for parameter in space.parameters:
        for value, templates in _by_value(parameter):
            known = [*map(spelled, parameter.values), *map(spelled, parameter.open if isinstance(parameter.open, tuple) else ())]
            if value not in ("", OTHERS, *known):
                message = f"`[parameters.{parameter.name}]` has words for `{value}`, which is no value"
                raise SpaceError(message, hint=nearest(value, known))
            try:
                for template in templates:
                    check_template(template, (*NAMES, *space.names))
            except JobError as error:
                raise SpaceError(f"`[parameters.{parameter.name}]`: {error.message}", hint=error.hint) from None
        if parameter.env.startswith("OPPA_") or parameter.env in OURS:
            raise SpaceError(
                f"`[parameters.{parameter.name}]`: oppa itself sets `{parameter.env}` in a trial", hint="choose another variable"
            )
        if parameter.env and variables.count(parameter.env) > 1:
            raise SpaceError(f"several parameters set the variable `{parameter.env}`", hint="give one of them another variable")


def _by_value(parameter: Parameter) -> Iterator[tuple[str, list[str]]]:
    """Yield the templates in the words and the keys of a parameter by the value that they are for; "" stands for every value."""
    for words in (parameter.words, *parameter.keys.values()):
        for value, stated in words.items() if isinstance(words, Mapping) else [("", words)]:
            texts = stated if isinstance(stated, tuple) else [stated]
            yield value, [text for text in texts if isinstance(text, str)]
