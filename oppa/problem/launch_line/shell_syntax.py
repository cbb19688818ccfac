"""Define the syntax of a shell script: words with their quotes and expansions, assignments, simple and compound commands.

A command that this subset lacks, such as a loop or a function, is `Opaque`, so that its effect is known to be unknown.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiteralText:
    """Literal text, with its line."""

    text: str
    line: int
    quoted: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """An expansion: `$NAME`, `${NAME:-default}`, `$((...))` or `$(...)`."""

    source: str
    """The expansion as the script has it."""
    kind: str
    """`variable`, `arithmetic` or `command`."""
    body: str
    line: int
    quoted: bool = False


Part = LiteralText | Expansion
Parts = tuple[Part, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """An assignment: of a word, or of the words of an array."""

    name: str
    value: Parts
    array: tuple[Parts, ...] | None = None
    adds: bool = False
    """True for `NAME+=...`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simple:
    """A simple command: assignments, then words; `ended_by` is the operator that follows it."""

    line: int
    assignments: tuple[Assigned, ...] = ()
    words: tuple[Parts, ...] = ()
    ended_by: str = "\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """An `if` command: branches with their conditions; the last condition is empty for `else`."""

    line: int
    branches: tuple[tuple[tuple["Command", ...], tuple["Command", ...]], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CaseCommand:
    """A `case` command: its word, and branches with their patterns."""

    line: int
    word: Parts
    branches: tuple[tuple[tuple[Parts, ...], tuple["Command", ...]], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """A loop, a function or another compound command, with the commands inside."""

    line: int
    kind: str
    body: tuple["Command", ...] = ()


Command = Simple | Conditional | CaseCommand | Opaque
