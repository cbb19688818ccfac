"""Find out what commands may change that are not followed: commands of loops and functions, and those that may or may not run."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from oppa.errors import InputError
from oppa.problem.bounded_text import whole_number
from oppa.problem.launch_line.shell_parser import parse_script
from oppa.problem.launch_line.shell_syntax import DECLARES, GIVE_LINE, Command, LiteralText, Opaque, Simple, every_command
from oppa.problem.launch_line.shell_values import Variables, set_by_arithmetic
from oppa.problem.launch_line.words import Word, texts

BEFORE = frozenset(["exec", "time", "nohup", "command", "builtin", "then", "do", "!"])
"""Words before a command that change nothing about what it starts."""
_READS = frozenset(["read", "unset", "mapfile", "readarray", "getopts", "wait"])
_NAME = re.compile(r"[A-Za-z_]\w*")
_ELEMENT = re.compile(r"([A-Za-z_]\w*)(?:\[.*\])?\+?=", re.DOTALL)
_OF_TOOLS = re.compile(r"\b(conda|mamba|micromamba|modulecmd|ssh-agent|pyenv|direnv|brew)\b")
"""Programs whose output a script evaluates to find its tools."""
_SETUP = re.compile(r"[Aa]ctivate.*|conda\.sh|setvars\.sh|.*profile.*|.*bashrc.*")
_SYSTEM = re.compile(r"/(etc|usr|opt)/.*")
_NESTED = 8


@dataclasses.dataclass(slots=True, kw_only=True)
class Effects:
    """Collects the variables, arguments and folder that commands may change."""

    names: set[str] = dataclasses.field(default_factory=set)
    lasting: set[str] = dataclasses.field(default_factory=set)
    """Variables whose later assignments mean something else, as after `declare -i`."""
    everything: bool = False
    arguments: bool = False
    folder: bool = False

    def apply(self, variables: Variables) -> None:
        """Mark the variables as unknown."""
        if self.everything:
            variables.forget_all()
        if self.arguments:
            variables.forget_arguments()
        variables.forget(sorted(self.names))
        variables.forget(sorted(self.lasting), lasting=True)


def without_prefix(words: Sequence[Word]) -> list[Word]:
    """Return the words of a command without `exec`, `time` and the like."""
    found = list(words)
    while found and found[0].text in BEFORE:
        found = found[1:]
    return found


def is_setup(text: str) -> bool:
    """Return whether a file sets up tools or the system, and none of a script's own variables."""
    return bool(_SETUP.fullmatch(text.rpartition("/")[2]) or _SYSTEM.fullmatch(text))


def is_of_tools(words: Sequence[Word]) -> bool:
    """Return whether `eval` receives what a program such as conda prints to be found."""
    return all(_OF_TOOLS.search(each) for word in words for each in word.missing)


def elements_of(words: Sequence[Word]) -> list[str]:
    """Return the variables of leading words such as `A[0]=1`, which the syntax of this subset leaves as words."""
    found = []
    for each in words:
        if not (match := _ELEMENT.match(each.text)):
            break
        found.append(match[1])
    return found


def effects_of(commands: Sequence[Command], variables: Variables, functions: Mapping[str, Sequence[Command]]) -> Effects:
    """Return what commands may change, with the functions that they call.

    Args:
        commands: The commands, any of which may run, several times or never.
        variables: A copy of the variables, which the reading may change.
        functions: The commands of all functions by their names.
    """
    found = Effects()
    _Collecting(found, variables, functions).add(commands, 0)
    return found


class _Collecting:
    """Adds the effects of commands."""

    def __init__(self, found: Effects, variables: Variables, functions: Mapping[str, Sequence[Command]]) -> None:
        self._found, self._variables, self._functions = found, variables, functions
        self._called: set[str] = set()

    def add(self, commands: Sequence[Command], depth: int) -> None:
        if depth > _NESTED:
            self._found.everything = True
            return
        for each in every_command(commands):
            if isinstance(each, Opaque):
                self._found.names |= {name for name in each.names if _NAME.fullmatch(name)}
            elif isinstance(each, Simple):
                self._add_simple(each, depth)

    def _add_simple(self, command: Simple, depth: int) -> None:
        self._found.names |= {assigned.name for assigned in command.assignments}
        for assigned in command.assignments:
            self._found.names |= self._variables.changed_by(assigned.value)
        for parts in command.words:
            self._found.names |= self._variables.changed_by(parts)
        words = without_prefix([word for parts in command.words for word in self._variables.fields(parts)])
        if words:
            self.add_words(words, [assigned.name for assigned in command.assignments], depth)

    def add_words(self, words: Sequence[Word], assigned: Sequence[str], depth: int) -> None:
        """Add the effects of a command by its words; `assigned` has the variables in front of it or after `declare`."""
        found, name, rest = self._found, words[0].text, words[1:]
        found.names |= set(elements_of(words))
        if name in DECLARES:
            self._add_declared(name, rest, assigned)
        elif name == "eval":
            self._add_evaluated(rest, depth)
        elif name in ("source", "."):
            found.everything |= not rest or not is_setup(rest[0].text)
        elif name == "let":
            found.names |= {each for word in rest for each in set_by_arithmetic(word.text)}
            found.everything |= any(word.missing for word in rest)
        elif name == "printf" and rest and rest[0].text.startswith("-v"):
            found.names |= set(_names_in(rest))
        elif name in _READS:
            found.names |= {"REPLY", "OPTARG", "OPTIND", "MAPFILE", *_names_in(rest)}
            found.everything |= any(word.missing for word in rest) and name != "unset"
        elif name in ("set", "shift"):
            found.arguments |= name == "shift" or changes_arguments(texts(rest))
        elif name in ("cd", "pushd", "popd"):
            found.folder = True
        elif name == "trap" and any(word.text == "DEBUG" for word in rest):
            raise self._not_followed("`trap ... DEBUG`, whose commands run before every other")
        elif name == "trap" and rest:
            self._add_evaluated(rest[:1], depth)
        elif name in self._functions and name not in self._called:
            self._called.add(name)
            self.add(self._functions[name], depth + 1)

    def _add_declared(self, name: str, rest: Sequence[Word], assigned: Sequence[str]) -> None:
        self._found.names |= set(_names_in(rest))
        self._found.everything |= any(word.missing for word in rest)
        if any(re.match(r"-\w*n", word.text) for word in rest) and name not in ("export", "local"):
            raise self._not_followed(f"`{name} -n`, which gives a variable a second name")
        self._found.everything |= name == "local" and any(re.match(r"-\w*n", word.text) for word in rest)
        if any(re.match(r"-\w*[iAluc]", word.text) for word in rest):
            self._found.lasting |= {*assigned, *_names_in(rest)}

    def _not_followed(self, what: str) -> InputError:
        return InputError(f"`{self._variables.source}` has {what}", hint=GIVE_LINE)

    def _add_evaluated(self, rest: Sequence[Word], depth: int) -> None:
        if any(word.missing for word in rest):
            self._found.everything |= not is_of_tools(rest)
            return
        try:
            self.add(parse_script(" ".join(texts(rest)), source=self._variables.source), depth + 1)
        except InputError:
            self._found.everything = True


def effects_of_words(
    words: Sequence[Word], assigned: Sequence[str], variables: Variables, functions: Mapping[str, Sequence[Command]]
) -> Effects:
    """Return what a command may change, apart from what the expansion of its words sets; `assigned` as after `declare`."""
    found = Effects()
    _Collecting(found, variables, functions).add_words(words, assigned, 0)
    return found


def changes_arguments(words: Sequence[str]) -> bool:
    """Return whether `set` with these words replaces the script's arguments."""
    return arguments_at(words) is not None


def leaves_a_loop(commands: Sequence[Command]) -> bool:
    """Return whether one of the commands is `break` or `continue`."""
    first = (each.words[0] for each in every_command(commands) if isinstance(each, Simple) and each.words)
    return any("".join(part.text for part in word if isinstance(part, LiteralText)) in ("break", "continue") for word in first)


def set_arguments(variables: Variables, words: Sequence[Word]) -> None:
    """Change a script's arguments, and what it exports, as `shift` and `set` do."""
    given = texts(words[1:])
    if any(word.missing for word in words[1:]):
        variables.forget_arguments()
    elif words[0].text == "shift":
        count = whole_number(given[0]) if given else 1
        if count is None:
            variables.forget_arguments()
        elif count <= len(variables.arguments) and not variables.arguments_unknown:
            variables.arguments = variables.arguments[count:]
    else:
        at = arguments_at(given)
        for each in given[: at or len(given)]:
            if re.fullmatch(r"[-+]\w*a\w*", each) or each == "allexport":
                variables.exports_all = each != "allexport" and each[0] == "-"
        if at is not None:
            variables.arguments, variables.arguments_unknown = tuple(words[1 + at :]), False


def arguments_at(words: Sequence[str]) -> int | None:
    """Return where the new arguments of `set` begin; None if it sets options only."""
    at = 0
    while at < len(words):
        if words[at] in ("--", "-"):
            return at + 1 if words[at] == "--" or at + 1 < len(words) else None
        if words[at][:1] not in ("-", "+"):
            return at
        at += 2 if words[at].endswith("o") else 1
    return None


def _names_in(words: Sequence[Word]) -> list[str]:
    """Return the variables that words name, such as `A`, `A=1`, `A[0]` or `-vA`."""
    named = (re.match(r"(?:-v)?([A-Za-z_]\w*)", word.text) for word in words)
    return [match[1] for match in named if match]
