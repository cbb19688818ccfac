"""Read the keys that a launch line or its configuration file states for a program of `keyed_programs.toml`."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import whole_number
from oppa.problem.declaration import shown
from oppa.problem.file_keys import at
from oppa.problem.launch_line.words import Word
from oppa.problem.templates import spelled
from oppa.tuning.launch_line.hydra_file import HYDRA, read_hydra_file
from oppa.tuning.launch_line.keyed_programs import KeyedProgram
from oppa.tuning.launch_line.options import Options
from oppa.tuning.launch_line.sources import LineSources

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_MOST_REFERENCES = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyedValues:
    """Holds what a line states, over its file."""

    program: KeyedProgram
    options: Options
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    file: Word | None = None
    """The file as the line names it, of which trials get copies; None if it names none that is here, or a file of Hydra."""
    of_hydra: str = ""
    """Name of the file of Hydra, whose keys the line changes."""

    @classmethod
    def of(cls, sources: LineSources, program: KeyedProgram) -> "KeyedValues":
        """Return the keys of a line; raises InputError if its file cannot be read."""
        options = Options(sources.line.arguments, spelled=lambda name: name.lstrip("-"), bare=program.is_bare)
        if program.file == HYDRA:
            name, values = read_hydra_file(sources)
            return cls(program=program, options=options, values=values, of_hydra=name)
        named = options.get(program.file, program.file.replace("_", "-")) if program.file not in ("", "first") else None
        words = [word for word in options.positional if PurePath(word.text).suffix in (".yaml", ".yml", ".json")]
        file = named.values[0] if named is not None and named.values else words[0] if words and program.file == "first" else None
        if file is None:
            return cls(program=program, options=options)
        if sources.local_file(file.text) is None:  # a file in the program's package may state what the line does not
            return cls(program=dataclasses.replace(program, usual={}), options=options)
        return cls(program=program, options=options, values=sources.contents(file), file=file)

    @property
    def choices(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """Return the keys of each value of a parameter. Those of a key that is true take precedence."""
        own = (choices for key, choices in self.program.instead.items() if self.stated(key)[0] is True)
        return {**self.program.choices, **next(own, {})}

    @property
    def held(self) -> dict[str, str]:
        """Return the parameters that stay as they are, each with the key that requires it."""
        return {name: key for key, name in self.program.holds.items() if self.stated(key)[0] is True}

    @property
    def shown_file(self) -> str:
        """Return the name of the file; empty without one."""
        return PurePath(self.file.text).name if self.file is not None else self.of_hydra

    def in_line(self, key: str) -> bool:
        """Return whether the line itself states a key."""
        return key in self.options

    def stated(self, key: str) -> tuple[Any, str]:
        """Return the value of a key with its origin: the line, the file, or the program's default; None and "" without any."""
        if option := self.options.get(key):
            return _typed(option.text), option.origin
        found = self._in_file(key)
        if found is not None:
            return found, self.shown_file
        if self._has_default(key):
            return self.program.usual[key], f"default of {self.program.title}"
        return None, self.of_hydra if self._is_in_file(key) else ""

    def _has_default(self, key: str) -> bool:
        """Return whether the program has a default for a key. A key of a table has one only where the table is stated."""
        above = key.rpartition(".")[0]
        in_table = not above or at(self.values, above) is not None or any(each.name.startswith(f"{above}.") for each in self.options.all)
        return key in self.program.usual and in_table

    def words(self, key: str, value: Any) -> list[str]:
        """Return the words that state a key in the line. Hydra refuses a key that its file lacks, unless `++` stands before it."""
        option = self.options.get(key)
        lacks = option.words[0].text.startswith("+") if option is not None else self.of_hydra and not self._is_in_file(key)
        added = "++" if lacks and self.program.file == HYDRA else ""
        return self.program.words(f"{added}{key}", value)

    def _is_in_file(self, key: str) -> bool:
        """Return whether the file has a key, which may be null."""
        above, _, name = key.rpartition(".")
        table = at(self.values, above) if above else self.values
        return isinstance(table, Mapping) and name in table

    def _in_file(self, key: str) -> Any:
        """Return the file's value of a key, with what it refers to as `${other.key}`."""
        found = at(self.values, key)
        for _ in range(_MOST_REFERENCES):
            reference = _REFERENCE.fullmatch(found) if isinstance(found, str) else None
            if reference is None:
                return found
            found = at(self.values, reference[1])
        return None

    def text(self, key: str) -> str:
        """Return the text of a key; empty if nothing states it."""
        found = self.stated(key)[0] if key else None
        return "" if found is None else spelled(found)

    def number(self, key: str) -> int | None:
        """Return the whole number of a key; None for a key that is unstated, empty or chosen by the program.

        Raises:
            InputError: it is less than 1, or a variable that nothing states.
        """
        option = self.options.get(key)
        if option is not None and option.values and option.values[0].missing:
            return self.options.number(key)
        found, origin = self.stated(key)
        if type(found) is not int:
            return None
        if found < 1:
            raise InputError(f"`{key} = {shown(found)}` ({origin}) is less than 1", hint="use 1 or more")
        return found


def _typed(text: str) -> Any:
    """Return the value that a text of the line stands for."""
    number = whole_number(text)
    if number is not None:
        return number
    return {"true": True, "false": False, "none": None, "null": None, "": True}.get(text.lower(), text)
