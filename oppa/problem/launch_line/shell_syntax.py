"""Define the syntax of a shell script: words with their quotes and expansions, assignments, simple and compound commands.

A command that this subset lacks, such as a loop or a function, is `Opaque`, so that its effect is known to be unknown.
"""

import dataclasses
from collections.abc import Iterator, Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiteralText:
    """Holds literal text, with its line."""

    text: str
    line: int
    quoted: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Describes an expansion: `$NAME`, `${NAME:-default}`, `$((...))` or `$(...)`."""

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
    """Describes an assignment: of a word, or of the words of an array."""

    name: str
    value: Parts
    array: tuple[Parts, ...] | None = None
    adds: bool = False
    """True for `NAME+=...`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simple:
    """Describes a simple command: assignments, then words."""

    line: int
    assignments: tuple[Assigned, ...] = ()
    words: tuple[Parts, ...] = ()
    ended_by: str = "\n"
    """The operator that follows the command."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """Describes an `if` command: branches with their conditions; the last condition is empty for `else`."""

    line: int
    branches: tuple[tuple[tuple["Command", ...], tuple["Command", ...]], ...]
    ended_by: str = "\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CaseCommand:
    """Describes a `case` command: its word, and branches with their patterns."""

    line: int
    word: Parts
    branches: tuple[tuple[tuple[Parts, ...], tuple["Command", ...]], ...]
    ended_by: str = "\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """Describes a loop, a function, a group, a subshell or another compound command, with the commands inside."""

    line: int
    kind: str
    body: tuple["Command", ...] = ()
    names: tuple[str, ...] = ()
    """The name of a function, or the variable of a loop."""
    condition: tuple["Command", ...] = ()
    """The condition of a `while` or `until` loop, whose commands are also in the body."""
    ended_by: str = "\n"


Command = Simple | Conditional | CaseCommand | Opaque

GIVE_LINE = "give the launch line that it starts"
"""Hint of every script that cannot be followed."""
DECLARES = frozenset(["export", "declare", "readonly", "local", "typeset"])
"""Commands whose words may be assignments."""
FUNCTION, SUBSHELL, UNTIL = "a function", "a subshell", "a `until` loop"


def parts_of(command: Command) -> Iterator[Command]:
    """Yield the commands directly inside a command."""
    match command:
        case Conditional():
            for condition, body in command.branches:
                yield from (*condition, *body)
        case CaseCommand():
            for _, body in command.branches:
                yield from body
        case Opaque():
            yield from command.body


def every_command(commands: Sequence[Command]) -> Iterator[Command]:
    """Yield commands and all commands inside them."""
    for command in commands:
        yield command
        yield from every_command(tuple(parts_of(command)))
