"""Read which program a shell script starts, without running it.

A script is followed line by line: assignments, exports, `cd`, `source`, `set`, conditions that its own values decide, and `eval`. Commands
that start nothing of a training job, such as `mkdir`, are passed over. A script that may start several things, or whose launch depends on
something unknown, is refused.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import read_text
from oppa.problem.launch_line.batch_header import header_of
from oppa.problem.launch_line.script_launch import ScriptLaunch
from oppa.problem.launch_line.shell_conditions import SUCCEEDS, condition_holds, joined, matches_pattern
from oppa.problem.launch_line.shell_effects import (
    Effects,
    effects_of,
    effects_of_words,
    is_of_tools,
    is_setup,
    leaves_a_loop,
    set_arguments,
    without_prefix,
)
from oppa.problem.launch_line.shell_folder import FolderOfShell
from oppa.problem.launch_line.shell_parser import parse_script
from oppa.problem.launch_line.shell_syntax import (
    DECLARES,
    FUNCTION,
    GIVE_LINE,
    SUBSHELL,
    UNTIL,
    CaseCommand,
    Command,
    Conditional,
    Expansion,
    LiteralText,
    Opaque,
    Parts,
    Simple,
    every_command,
)
from oppa.problem.launch_line.shell_values import Variables
from oppa.problem.launch_line.starting_words import is_launcher_unknown, only_checks, starts_something
from oppa.problem.launch_line.words import Word, first_words, texts, word
from oppa.regular_file import is_file

MOST_SCRIPTS = 8
"""Most scripts that lead from the launch line to the program."""
MOST_TURNS = 1000
"""Most turns of all loops that are followed."""
_HINT = f"{GIVE_LINE}: `oppa tune -- torchrun ...`"


def read_script(
    path: Path,
    words: Sequence[Word],
    *,
    environment: Mapping[str, str],
    unknown: Mapping[str, Word] | None = None,
    text: str | None = None,
    folder: Path | None = None,
    gpus: int | None = None,
) -> ScriptLaunch:
    """Return what a script starts.

    Args:
        path: The script.
        words: The script's own word, and its arguments.
        environment: Variables that it inherits.
        unknown: Further ones, of which something is missing.
        text: Its text; None: it is read from `path`.
        folder: The folder that it starts in; None for that of oppa.
        gpus: GPUs of a host; None if their number is not known.

    Raises:
        InputError: it cannot be read, starts nothing or several things, or its launch depends on something unknown.
    """
    text = read_text(path, hint="name a shell script") if text is None else text
    variables = Variables(source=path.name, arguments=words[1:], environment=environment, unknown=unknown, script=words[0], gpus=gpus)
    reading = _Reading(variables, folder or Path())
    reading.script(text)
    if not reading.launches:
        what = f"ends with {reading.exit}, before it starts a program" if reading.exit else "starts no program"
        hint = f"set in front of the line what the script requires, or {_HINT}" if reading.exit else _HINT
        raise InputError(f"`{path.name}` {what} that oppa recognises", hint=hint)
    if len(reading.launches) > 1:
        places = ", ".join(f"`{first_words(each.words)}` at {each.source}" for each in reading.launches[:3])
        raise InputError(f"`{path.name}` starts several things: {places}", hint=_HINT)
    return dataclasses.replace(reading.launches[0], header=header_of(text))


class _Reading:
    """Follows the commands of a script."""

    def __init__(self, variables: Variables, start: Path) -> None:
        self.launches: list[ScriptLaunch] = []
        self.exit = ""
        """The command that ends the script, with its line; empty if the script is followed to its end."""
        self._variables, self._place = variables, FolderOfShell(start)
        self._functions: dict[str, list[Command]] = {}
        self._sourced = self._turns = 0
        self._exits = self._passes_arguments = False

    def script(self, text: str) -> bool:
        """Follow the text of a script; return whether it ends with `exit` or `return`."""
        commands = parse_script(text, source=self._variables.source)
        self._variables.declare(commands)
        for each in every_command(commands):
            if isinstance(each, Opaque) and each.kind == FUNCTION:
                self._functions.setdefault(each.names[0], []).extend(each.body)
        return self.follow(commands)

    def follow(self, commands: Sequence[Command]) -> bool:
        """Follow commands; return whether the script ends with one of them."""
        start = 0
        for number, command in enumerate(commands, 1):
            if command.ended_by in ("&&", "||", "|") and number < len(commands):
                continue
            listed, start = commands[start:number], number
            if command.ended_by == "&":
                with self._subshell():
                    self._list(listed)
            elif self._list(listed):
                return True
        return False

    def _list(self, commands: Sequence[Command]) -> bool:
        """Follow commands that `&&`, `||` and `|` join; what a pipe joins runs in subshells."""
        runs: bool | None = True
        status: bool | None = True
        joint, before = "\n", commands[0]
        for command in commands:
            if joint in ("&&", "||"):
                runs = status if joint == "&&" or status is None else not status
                if status is None and joint == "&&" and self._may_launch(command, before):
                    runs = True
            if runs is None:
                self._unknown(command, [command])
                status = None
            elif runs:
                if "|" in (joint, command.ended_by):
                    with self._subshell():
                        self._command(command)
                elif self._command(command):
                    return True
                status = self._status(command)
            joint, before = command.ended_by, command
        return False

    def _may_launch(self, command: Command, before: Command) -> bool:
        """Return whether a command starts something after one that is no test: without its success nothing is started."""
        if not isinstance(command, Simple) or not isinstance(before, Simple):
            return False
        first, words = self._words(before), self._words(command)
        return starts_something(texts(words)) and not (first and first[0].text in ("[", "[[", "test"))

    def _status(self, command: Command) -> bool | None:
        """Return whether a command that ran succeeded; None if that is unknown."""
        if not isinstance(command, Simple):
            return None
        words = [self._variables.single(parts) for parts in command.words]
        if not words:
            return True if not any(isinstance(part, Expansion) for each in command.assignments for part in each.value) else None
        if words[0].text in ("[", "[[", "test", "true", "false"):
            return self._test(words)
        return True if words[0].text in SUCCEEDS else None

    def _test(self, words: Sequence[Word]) -> bool | None:
        if any(self._variables.may_be_stated(each) for each in words):
            return None
        return condition_holds(words, self._place.path)

    @contextlib.contextmanager
    def _subshell(self) -> Iterator[None]:
        """Follow commands with variables and a folder that change apart from those of the script."""
        outer, place, exits = self._variables, self._place, self._exits
        self._variables, self._place = outer.copy(), place.copy()
        yield
        outer.counts_also(self._variables)
        self._variables, self._place, self._exits = outer, place, exits

    def _command(self, command: Command) -> bool:
        match command:
            case Simple():
                return self._simple(command)
            case Conditional():
                return self._conditional(command)
            case CaseCommand():
                return self._case(command)
            case Opaque():
                return self._opaque(command)

    def _words(self, command: Simple) -> list[Word]:
        return without_prefix([each for parts in command.words for each in self._variables.fields(parts)])

    def _simple(self, command: Simple) -> bool:
        """Follow a simple command; return whether the script ends with it."""
        words = self._words(command)
        name = words[0].text if words else ""
        if not name or name in DECLARES:
            self._assign(command, words)
        elif name == "eval":
            return self._evaluate(command, words[1:])
        elif name in self._functions:
            self._call(command, words)
        elif name in ("source", ".") and len(words) > 1:
            return self._source(words[1:])
        elif name in ("exit", "return"):
            self._exits = name == "exit"
            self.exit = f"`{first_words(words)}` at line {command.line}"
            return True
        elif name in ("cd", "pushd", "popd"):
            self._place.change(words, self._variables)
        elif name in ("shift", "set"):
            set_arguments(self._variables, words)
        elif starts_something(texts(words)) or is_launcher_unknown(words):
            self._launch(command, words)
        else:
            self._forget_by(words)
        return False

    def _assign(self, command: Simple, words: Sequence[Word]) -> None:
        exports = bool(words) and (words[0].text == "export" or any(re.fullmatch(r"-\w*x\w*", word.text) for word in words[1:]))
        for assigned in command.assignments:
            self._variables.assign(assigned, exports=exports)
        is_known = all(not word.missing and re.fullmatch(r"[A-Za-z_]\w*|-[fxrga]+", word.text) for word in words[1:])
        for each in words[1:] if exports and is_known else ():
            self._variables.export(each.text)
        if words and not is_known:
            self._forget_by(words, [assigned.name for assigned in command.assignments])

    def _forget(self, commands: Sequence[Command]) -> None:
        """Mark as unknown what commands that are not followed may change."""
        self._apply(effects_of(commands, self._variables.copy(), self._functions))

    def _forget_by(self, words: Sequence[Word], assigned: Sequence[str] = ()) -> None:
        """Mark as unknown what a command may change, whose words are expanded."""
        self._apply(effects_of_words(words, assigned, self._variables.copy(), self._functions))

    def _apply(self, effects: Effects) -> None:
        effects.apply(self._variables)
        if effects.folder:
            self._place.forget()

    def _call(self, command: Simple, words: Sequence[Word]) -> None:
        """Mark as unknown what a function may set; raise InputError if it may start the program."""
        body = self._functions[words[0].text]
        self._refuse_launches(body, f"the function `{clipped(words[0].text)}`")
        if starts_something(texts(words[1:])):
            raise self._starts_inside(words[1:], f"the function `{clipped(words[0].text)}`", command.line)
        self._forget_by(words)

    def _evaluate(self, command: Simple, words: Sequence[Word]) -> bool:
        """Follow the words of `eval`; words that the shell would divide again are read as a script."""
        divided = without_prefix(self._variables.divided(words))
        stated = " ".join(piece.text for word in words for piece in word.pieces if not piece.missing)
        if not re.search(r"[^\w \t./:,@%+=-]", stated) and ("=" not in stated or starts_something(texts(divided))):
            return self._evaluated(command, divided)
        if any(word.missing for word in words):
            if starts_something(texts(divided)):
                raise self._starts_inside(divided, "an `eval` of something unknown", command.line)
            self._apply(Effects(everything=not is_of_tools(words)))
            return False
        text = " ".join(texts(words))
        self._count_script()
        self._passes_arguments |= any(word.is_typed for word in words)
        return self.script("\n" * (command.line - 1) + text)

    def _evaluated(self, command: Simple, words: Sequence[Word]) -> bool:
        """Follow plain words, which keep their origins."""
        if starts_something(texts(words)) and words[0].text not in self._functions:
            self._launch(command, words)
            return False
        if any(word.missing for word in words):
            self._apply(Effects(everything=not is_of_tools(words)))
            return False
        return self._simple(Simple(line=command.line, words=tuple((LiteralText(text=each.text, line=command.line),) for each in words)))

    def _launch(self, command: Simple, words: Sequence[Word]) -> None:
        own = self._variables.copy().in_front(command.assignments)
        launch = ScriptLaunch(
            words=tuple(words),
            environment={**self._variables.exported, **own},
            folder=self._place.folder_of(first_words(words)),
            source=f"{self._variables.source}:{command.line}",
            takes_arguments=self._passes_arguments or any(word.is_typed for word in words) or not self._variables.arguments,
        )
        self.launches.append(launch)

    def _source(self, words: Sequence[Word]) -> bool:
        """Follow another script; one that is not here or no script may set everything. Return whether the script ends."""
        found = self._place.path / words[0].text
        if is_setup(words[0].text):
            return False
        if words[0].missing or not is_file(found) or found.suffix not in (".sh", ".env", "", ".bash", ".conf"):
            self._variables.forget_all()
            return False
        self._count_script()
        outer, arguments = self._variables.source, (self._variables.arguments, self._variables.arguments_unknown)
        self._variables.source = found.name
        if words[1:]:
            self._variables.arguments, self._variables.arguments_unknown = tuple(words[1:]), any(word.missing for word in words[1:])
        self.script(read_text(found, hint=_HINT))
        self._variables.source = outer
        if words[1:]:
            self._variables.arguments, self._variables.arguments_unknown = arguments
        return self._exits

    def _count_script(self) -> None:
        self._sourced += 1
        if self._sourced > MOST_SCRIPTS:
            raise InputError(f"`{self._variables.source}` reads more than {MOST_SCRIPTS} scripts", hint=_HINT)

    def _conditional(self, command: Conditional) -> bool:
        return self._branch(command, ((self._holds(condition), body) for condition, body in command.branches))

    def _case(self, command: CaseCommand) -> bool:
        word = self._variables.single(command.word)

        def matches(patterns: Sequence[Parts]) -> bool | None:
            spelled = [self._variables.single(each).text for each in patterns]
            return None if word.missing else matches_pattern(word.text, spelled)

        return self._branch(command, ((matches(patterns), body) for patterns, body in command.branches))

    def _branch(self, command: Command, branches: Iterable[tuple[bool | None, Sequence[Command]]]) -> bool:
        """Follow the first branch that is taken; return whether the script ends with it."""
        for is_taken, body in branches:
            if is_taken is None:
                self._unknown(command, [command])
                return False
            if is_taken:
                return self.follow(body)
        return False

    def _holds(self, condition: Sequence[Command]) -> bool | None:
        """Return whether the condition of an `if` holds; None if that is unknown."""
        if not condition:
            return True
        found: bool | None = None
        joint, inside = "", False
        for each in condition:
            if not isinstance(each, Simple) or each.assignments:
                return None
            words = [self._variables.single(parts) for parts in each.words]
            names = texts(words)
            result = self._test([word("["), *words] if inside and names[:1] != ["[["] else words)
            inside = (inside or names[:1] == ["[["]) and names[-1:] != ["]]"]
            found = joined(found, joint, result)
            joint = each.ended_by
        return found

    def _opaque(self, command: Opaque) -> bool:
        if command.kind == "{":
            return self.follow(command.body)
        if command.kind == SUBSHELL:
            with self._subshell():
                self.follow(command.body)
        elif command.kind != FUNCTION:
            return self._loop(command)
        return False

    def _loop(self, loop: Opaque) -> bool:
        """Follow the turns of a loop as far as its condition is known; return whether the script ends in one of them."""
        turn, first = loop.body[len(loop.condition) :], self._turns
        while loop.condition and self._turns < MOST_TURNS:
            holds = self._holds(loop.condition)
            if holds is (loop.kind == UNTIL):
                return False
            if holds is None or leaves_a_loop(turn):
                break
            if self._turns == first:
                self._refuse_launches(loop.body, loop.kind)
            self._turns += 1
            if self.follow(turn):
                return True
        self._unknown(loop, [loop])
        return False

    def _unknown(self, command: Command, body: Sequence[Command]) -> None:
        """Mark what commands that may or may not run would set; raise InputError if one of them may start the program."""
        self._refuse_launches(body, command.kind if isinstance(command, Opaque) else "a branch whose condition is unknown")
        self._forget(body)

    def _refuse_launches(self, body: Sequence[Command], kind: str) -> None:
        before, self._variables = self._variables, self._variables.copy()
        for each in every_command(body):
            words = self._words(each) if isinstance(each, Simple) else []
            if words and starts_something(texts(words)) and not only_checks(texts(words)):
                raise self._starts_inside(words, kind, each.line)
        self._variables = before

    def _starts_inside(self, words: Sequence[Word], kind: str, line: int) -> InputError:
        return InputError(f"`{self._variables.source}` starts `{first_words(words)}` inside {kind}, at line {line}", hint=_HINT)
