"""Read the options of a program from the words of its launch line: `--name value`, `--name=value`, `name=value`, switches."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import whole_number
from oppa.problem.launch_line.words import Word, texts

_NAME = re.compile(r"--?[A-Za-z]")


def require_number(word: Word | None, shown: str, origin: str, *, least: int = 1) -> int:
    """Return the whole number that a word states.

    Args:
        word: The value; None if there is none.
        shown: Option and value, as an error shows them.

    Raises:
        InputError: it is no whole number, less than `least`, or a variable that nothing states.
    """
    number = whole_number(word.text) if word is not None else None
    if number is None:
        missing = f", because nothing states `{word.missing[0]}`" if word is not None and word.missing else ""
        raise InputError(f"`{shown}` ({origin}) is not a number{missing}", hint="write the number itself in the line")
    if number < least:
        raise InputError(f"`{shown}` ({origin}) is less than {least}", hint=f"use {least} or more")
    return number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineOption:
    """Holds one option of a line, with the words that belong to it."""

    name: str
    words: tuple[Word, ...]
    values: tuple[Word, ...]

    @property
    def origin(self) -> str:
        """Return the origin of its value, or of a switch itself."""
        return (self.values or self.words)[-1].origin

    @property
    def text(self) -> str:
        """Return its values as text."""
        return " ".join(texts(self.values))


class Options:
    """Holds the options of a program in their order; of two equal ones the later counts."""

    def __init__(
        self, words: Sequence[Word], *, spelled: Callable[[str], str] = str, bare: bool = False, subcommands: Collection[str] = ()
    ) -> None:
        """Read the words.

        Args:
            words: The program's arguments.
            spelled: Returns the one spelling of a name that has several.
            bare: Options have no dashes: `train.global_batch_size=32`.
            subcommands: Words that state a value as `name:value`.
        """
        self.positional: list[Word] = []
        self.all: list[LineOption] = []
        for word in words:
            name, equals, _ = word.text.partition("=")
            if bare and equals and re.fullmatch(r"\+{0,2}[\w.]+", name):
                self.all.append(LineOption(name=spelled(name.lstrip("+")), words=(word,), values=(word.after(len(name) + 1),)))
            elif word.text in subcommands:
                name = word.text.partition(":")[0]
                self.all.append(LineOption(name=spelled(name), words=(word,), values=(word.after(len(name) + 1),)))
            elif _NAME.match(word.text):
                values = (word.after(len(name) + 1),) if equals else ()
                self.all.append(LineOption(name=spelled(name), words=(word,), values=values))
            elif self.all and not (bare and len(self.all[-1].words) > 1):
                last = self.all[-1]
                self.all[-1] = dataclasses.replace(last, words=(*last.words, word), values=(*last.values, word))
            else:
                self.positional.append(word)

    def __contains__(self, name: str) -> bool:
        return any(option.name == name for option in self.all)

    def get(self, *names: str) -> LineOption | None:
        """Return the last of these options; None if none is given."""
        return next((option for option in reversed(self.all) if option.name in names), None)

    def value(self, *names: str) -> str:
        """Return the first value of the last of these options; empty if there is none."""
        found = self.get(*names)
        return found.values[0].text if found and found.values else ""

    def origin(self, *names: str) -> str:
        """Return the origin of the last of these options; empty if none is given."""
        found = self.get(*names)
        return found.origin if found else ""

    def number(self, *names: str, least: int = 1) -> int | None:
        """Return the whole number of an option; None if it is not given.

        Raises:
            InputError: its value is no whole number, less than `least`, or a variable that nothing states.
        """
        found = self.get(*names)
        if found is None:
            return None
        value = found.values[0] if found.values else None
        shown = f"{clipped(found.words[0].text)} {clipped(value.text if value is not None else '')}"
        return require_number(value, shown, found.origin, least=least)

    def grouped(self) -> dict[str, list[str]]:
        """Return the values of each option."""
        return {option.name: texts(option.values) for option in self.all}

    def without(self, names: Iterable[str]) -> list[Word]:
        """Return the words without those of some options."""
        left_out = set(names)
        return [*self.positional, *(word for option in self.all if option.name not in left_out for word in option.words)]

    def contradictory(self, names: Iterable[str]) -> tuple[LineOption, LineOption] | None:
        """Return two options of one name and one file that state different values; None if there are none."""
        wanted, first = set(names), dict[tuple[str, str], LineOption]()
        for option in self.all:
            key = option.name, option.origin.partition(":")[0]
            before = first.setdefault(key, option)
            if option.name in wanted and before.text != option.text:
                return before, option
        return None


def contradiction(message: str, *, hint: str = "remove one of the two") -> InputError:
    """Return the error for a launch line whose parts exclude each other."""
    return InputError(f"the launch line contradicts itself: {message}", hint=hint)


def require_consistent(options: Options, names: Iterable[str]) -> None:
    """Raise InputError if an option is given twice in one place with different values."""
    if found := options.contradictory(names):
        first, second = found
        message = f"`{first.name}` is `{clipped(first.text)}` ({first.origin}) and `{clipped(second.text)}` ({second.origin})"
        raise contradiction(message)


def require_whole_names(options: Options, names: Iterable[str]) -> None:
    """Raise InputError for the beginning of a name of several words, which argparse takes for the option."""
    known = tuple(names)
    for option in options.all:
        if full := next((name for name in known if name != option.name and name.startswith(option.name) and "_" in option.name), ""):
            word = clipped(option.words[0].text.partition("=")[0])
            raise InputError(f"`{word}` ({option.origin}) may abbreviate `--{full}`", hint=f"write the whole name: `--{full}`")
