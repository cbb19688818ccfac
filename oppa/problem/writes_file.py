"""Read `runners/command/writes.toml`: what each framework writes, by option and by key of a configuration file."""

import fnmatch
import functools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from oppa import catalog
from oppa.errors import InputError, require_known
from oppa.problem.declaration import DeclaredTable, read

Kind = Literal["redirect", "cache", "disable", "report", "length", "balance", "read"]
UserKind = Literal["redirect", "cache", "disable", "read"]
"""Kinds that a user may declare for a path of the program's own."""
PLAIN = "plain"
"""The table of programs that use no known framework."""
DECLARED = "declared"
"""Stands for the table of a settings file that the user declares as read: its known keys count, and others if they name an output."""


class OptionTable(DeclaredTable):
    """Validates an option: `"--save" = { kind = "disable" }`."""

    kind: Kind
    values: Literal["none", "switch", "one", "optional", "many"] = "one"
    words: str | None = None
    always: bool = False
    unless: tuple[str, ...] = Field(default=(), strict=False)
    added_with: tuple[str, ...] = Field(default=(), strict=False)
    not_added_with: tuple[str, ...] = Field(default=(), strict=False)
    prefix: bool = False
    drop: tuple[str, ...] = Field(default=(), strict=False)
    file: str = ""

    @property
    def replacement(self) -> tuple[str, ...] | None:
        """Return the words of a trial; None if they follow from the option's value."""
        return None if self.words is None else tuple(shlex.split(self.words))


class KeyTable(DeclaredTable):
    """Validates a key of a configuration file: `"wandb.enabled" = { kind = "disable", to = false }`."""

    kind: Kind
    to: Any = None
    always: bool = False
    also: dict[str, Any] = Field(default_factory=dict)
    drop: tuple[str, ...] = Field(default=(), strict=False)
    file: str = ""


class ProgramTable(DeclaredTable):
    """Validates the options of a framework, or of what starts programs."""

    options: dict[str, OptionTable] = Field(default_factory=dict)
    others: tuple[str, ...] = Field(default=(), strict=False)
    also: tuple[str, ...] = Field(default=(), strict=False)
    spelling: Literal["exact", "either"] = "exact"
    place: Literal["first", "last"] = "last"
    sole_file: str = ""
    """Table of the keys of a file that may be the program's sole argument; empty if the program reads none."""
    abbreviates: bool = False
    """True if the parser takes the beginning of an option's name for the option."""

    def canonical(self, name: str) -> str:
        """Return the option by which a name is looked up; `-` and `_` are alike where `spelling` is either."""
        dashes = name[: len(name) - len(name.lstrip("-"))]
        return name if self.spelling == "exact" else dashes + name[len(dashes) :].replace("-", "_")

    def abbreviated(self, name: str) -> str:
        """Return the only option that begins with a name, if it writes; empty if there is none, or several."""
        found = [known for known in self.options if known.startswith(name)] if self.abbreviates else []
        return found[0] if len(found) == 1 and self.options[found[0]].kind not in ("read", "length", "report") else ""

    def joined(self, others: Sequence["ProgramTable"]) -> "ProgramTable":
        """Return the table with the options of others, and all names in the form by which they are looked up."""
        options = {self.canonical(name): option for table in (*reversed(others), self) for name, option in table.options.items()}
        names = tuple(self.canonical(name) for table in (self, *others) for name in table.others)
        return self.model_copy(update={"options": options, "others": names, "also": ()})


class StarterTable(ProgramTable):
    """Validates the options of what starts programs."""

    profilers: tuple[str, ...] = Field(default=(), strict=False)


class FileTable(DeclaredTable):
    """Validates the keys of a kind of configuration file."""

    keys: dict[str, KeyTable] = Field(default_factory=dict)
    others: tuple[str, ...] = Field(default=(), strict=False)

    def is_other(self, name: str) -> bool:
        """Return whether a key is declared to write nothing; `aio.*` stands for all keys of a table."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.others)


class EnvironmentTable(DeclaredTable):
    """Validates the variables that trials get, and those to which a launch line may assign any value."""

    set: dict[str, str] = Field(default_factory=dict)
    read: tuple[str, ...] = Field(default=(), strict=False)


class WritesFile(DeclaredTable):
    """Validates the whole file."""

    environment: EnvironmentTable
    launcher: StarterTable
    frameworks: dict[str, ProgramTable]
    files: dict[str, FileTable]

    def program(self, framework: str) -> ProgramTable:
        """Return a framework's table, with the options of those that it names in `also`."""
        require_known(framework, self.frameworks, f"what `{framework}` writes is not declared")
        own, *others = self._chain(framework)
        return own.joined(others)

    @property
    def starter(self) -> ProgramTable:
        """Return the table of what starts programs."""
        return self.launcher.joined(())

    def _chain(self, framework: str) -> Iterator[ProgramTable]:
        """Yield a framework's table, and those that it names in `also`."""
        yield self.frameworks[framework]
        for name in self.frameworks[framework].also:
            yield from self._chain(name)


@functools.cache
def writes() -> WritesFile:
    """Return the declarations of the catalogue."""
    return read(WritesFile, catalog.root() / "runners" / "command" / "writes.toml", error=InputError)


def trial_options(words: Iterable[str], framework: str) -> tuple[str, ...]:
    """Return the options among the words of a search space that only trials have, as they write less or report more."""
    declared = writes().program(framework)
    known = {word: declared.options.get(declared.canonical(word)) for word in words if word.startswith("--")}
    return tuple(sorted(word for word, own in known.items() if own and own.kind != "read"))


def framework_of(space: str) -> str:
    """Return the framework of a search space; `plain` if what it writes is not declared."""
    return space if space in writes().frameworks else PLAIN
