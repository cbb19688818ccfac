"""Read which program a shell script starts, without running it.

A script is followed line by line: assignments, exports, `cd`, `source`, `set`, conditions that its own values decide, and `eval`. Commands
that start nothing of a training job, such as `mkdir`, are passed over. A script that may start several things, or whose launch depends on
something unknown, is refused.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import read_text
from oppa.problem.launch_line.batch_header import header_of
from oppa.problem.launch_line.shell_parser import parse_script
from oppa.problem.launch_line.shell_syntax import CaseCommand, Command, Conditional, Opaque, Simple
from oppa.problem.launch_line.shell_values import Variables, condition_holds, matches_pattern
from oppa.problem.launch_line.words import Word, texts, word

MOST_SCRIPTS = 8
"""Most scripts that lead from the launch line to the program."""
_HINT = "give the launch line that it starts: `oppa tune -- torchrun ...`"
STARTERS = frozenset(
    ["torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "bash", "sh", "zsh", "uv", "numactl", "apptainer", "singularity"]
)
"""Programs that start others; `python` in all its spellings is among them, too."""
_AFTER = frozenset(["exec", "time", "nohup", "command", "builtin", "then", "do", "!"])
"""Words before a command that change nothing about what it starts."""
_CHECKS = re.compile(r"-(c|-version|V)")
_HARMLESS_MODULES = frozenset(["pip", "venv", "json.tool", "http.server", "site"])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLaunch:
    """The command that a script starts."""

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    """Variables that the script exports, or sets in front of the command."""
    folder: Path | None
    """The folder that the script changes to; None if it stays."""
    source: str
    """Place of the command, such as `run.sh:12`."""
    takes_arguments: bool
    """True if the script passes its own arguments on."""
    header: tuple[str, ...] = ()
    """Options in lines that begin with `#SBATCH`."""


def read_script(path: Path, words: Sequence[Word], *, environment: Mapping[str, str], text: str | None = None) -> ScriptLaunch:
    """Return what a script starts.

    Args:
        path: The script.
        words: The script's own word, and its arguments.
        environment: Variables that it inherits.
        text: Its text; None: it is read from `path`.

    Raises:
        InputError: it cannot be read, starts nothing or several things, or its launch depends on something unknown.
    """
    shown = path.name
    text = read_text(path, hint="name a shell script") if text is None else text
    variables = Variables(source=shown, arguments=words[1:], environment=environment, script=words[0])
    reading = _Reading(variables, path.parent)
    reading.follow(parse_script(text, source=shown))
    if not reading.launches:
        raise InputError(f"`{shown}` starts no program that oppa recognises", hint=_HINT)
    if len(reading.launches) > 1:
        places = ", ".join(f"`{clipped(' '.join(texts(each.words)[:4]))}` at {each.source}" for each in reading.launches[:3])
        raise InputError(f"`{shown}` starts several things: {places}", hint=_HINT)
    return dataclasses.replace(reading.launches[0], header=header_of(text))


def starts_something(words: Sequence[str]) -> bool:
    """Return whether a command may start a training job."""
    names = [PurePath(word).name for word in words]
    if not names:
        return False
    if re.fullmatch(r"python[0-9.]*", names[0]):
        first = next((word for word in words[1:] if not re.fullmatch(r"-[uOBIEsPq]+", word)), "")
        module = words[2] if len(words) > 2 and words[1] == "-m" else ""
        return not _CHECKS.fullmatch(first) and module not in _HARMLESS_MODULES and first != ""
    if names[0] in ("srun", "mpirun") and (inner := [name for name in names[1:] if not name.startswith("-")]):
        return inner[-1] not in ("hostname", "nvidia-smi") and "hostname" not in inner
    return names[0] in STARTERS or names[0].endswith(".sh") or (names[0] in ("env", "conda", "poetry") and "run" in names[1:2])


class _Reading:
    """Follows the commands of a script."""

    def __init__(self, variables: Variables, folder: Path) -> None:
        self.launches: list[ScriptLaunch] = []
        self._variables, self._base = variables, folder
        self._folder: Path | None = None
        self._sourced = 0

    def follow(self, commands: Sequence[Command]) -> bool:
        """Follow commands; return whether the script ends with one of them."""
        runs: bool | None = True
        for command in commands:
            if runs is True:
                if self._command(command):
                    return True
            elif runs is None:
                self._unknown(command, [command])
            runs = self._goes_on(command, runs)
        return False

    def _goes_on(self, command: Command, runs: bool | None) -> bool | None:
        """Return whether the next command runs, after `&&` and `||`; None if that is unknown.

        A command that is no test counts as successful.
        """
        joint = command.ended_by if isinstance(command, Simple) else "\n"
        if joint not in ("&&", "||"):
            return True
        if not isinstance(command, Simple) or runs is not True:
            return runs
        words = [self._variables.single(parts) for parts in command.words]
        is_test = bool(words) and words[0].text in ("[", "[[", "test", "true", "false")
        holds = condition_holds(words) if is_test else True
        return holds if joint == "&&" or holds is None else not holds

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

    def _simple(self, command: Simple) -> bool:
        """Follow a simple command; return whether the script ends with it."""
        words = [each for parts in command.words for each in self._variables.fields(parts)]
        while words and words[0].text in _AFTER:
            words = words[1:]
        name = words[0].text if words else ""
        if name in ("", "export", "declare", "readonly", "local", "typeset"):
            for assigned in command.assignments:
                self._variables.assign(assigned, exports=name == "export")
            for word in words[1:] if name == "export" else ():
                self._variables.export(word.text)
            return False
        if name == "eval":
            words = words[1:]
        match words[0].text if words else "":
            case "cd" if len(words) > 1 and not words[1].missing:
                self._folder = (self._folder or Path()) / words[1].text
                self._variables.set("PWD", words[1])
            case "source" | "." if len(words) > 1:
                self._source(words[1:])
            case "exit" | "return":
                return True
            case "shift":
                self._variables.arguments = self._variables.arguments[1:]
            case "read" | "unset" | "mapfile" | "readarray":
                self._variables.forget((word.text for word in words[1:] if not word.text.startswith("-")), f"`{words[0].text}`")
            case _ if words and (starts_something(texts(words)) or self._is_launcher_unknown(words)):
                self._launch(command, words)
        return False

    @staticmethod
    def _is_launcher_unknown(words: Sequence[Word]) -> bool:
        """Return whether the program itself is missing, and a Python file or a launcher follows."""
        return bool(words[0].missing) and any(word.text.endswith(".py") for word in words[1:])

    def _launch(self, command: Simple, words: Sequence[Word]) -> None:
        own = {assigned.name: self._variables.single(assigned.value) for assigned in command.assignments}
        source = f"{self._variables.source}:{command.line}"
        takes = any(word.is_typed for word in words) or not self._variables.arguments
        launch = ScriptLaunch(
            words=tuple(words),
            environment={**self._variables.exported, **own},
            folder=self._folder,
            source=source,
            takes_arguments=takes,
        )
        self.launches.append(launch)

    def _source(self, words: Sequence[Word]) -> None:
        path = Path(words[0].text)
        found = next((each for each in (path, self._base / path) if each.is_file()), None) if not words[0].missing else None
        if found is None or found.suffix not in (".sh", ".env", "", ".bash"):
            return
        self._sourced += 1
        if self._sourced > MOST_SCRIPTS:
            raise InputError(f"`{self._variables.source}` reads more than {MOST_SCRIPTS} scripts", hint=_HINT)
        if re.fullmatch(r"activate|conda\.sh|.*profile.*|.*bashrc.*", found.name):
            return
        outer, self._variables.source = self._variables.source, found.name
        self.follow(parse_script(read_text(found, hint=_HINT), source=found.name))
        self._variables.source = outer

    def _conditional(self, command: Conditional) -> bool:
        for condition, body in command.branches:
            holds = self._holds(condition)
            if holds is None:
                self._unknown(command, [inner for _, each in command.branches for inner in each])
                return False
            if holds:
                return self.follow(body)
        return False

    def _case(self, command: CaseCommand) -> bool:
        word = self._variables.single(command.word)
        for patterns, body in command.branches:
            spelled = [self._variables.single(each).text for each in patterns]
            matches = None if word.missing else matches_pattern(word.text, spelled)
            if matches is None:
                self._unknown(command, [inner for _, each in command.branches for inner in each])
                return False
            if matches:
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
            result = condition_holds([word("["), *words] if inside and names[:1] != ["[["] else words)
            inside = (inside or names[:1] == ["[["]) and names[-1:] != ["]]"]
            found = _joined(found, joint, result)
            joint = each.ended_by
        return found

    def _opaque(self, command: Opaque) -> bool:
        if command.kind == "{":
            return self.follow(command.body)
        self._unknown(command, command.body)
        return False

    def _unknown(self, command: Command, body: Sequence[Command]) -> None:
        """Mark what commands that may or may not run would set; raise InputError if one of them may start the program."""
        kind = command.kind if isinstance(command, Opaque) else "a branch whose condition is unknown"
        names: list[str] = []
        for each in _all(body):
            names += [assigned.name for assigned in each.assignments]
            words = [word for parts in each.words for word in self._variables.fields(parts)]
            if kind != "a function" and starts_something(texts(words)) and not _only_checks(texts(words)):
                message = f"`{self._variables.source}` starts `{clipped(' '.join(texts(words)[:4]))}` inside {kind}, at line {each.line}"
                raise InputError(message, hint=_HINT)
        if kind != "a function":
            self._variables.forget(names, kind)


def _joined(before: bool | None, joint: str, result: bool | None) -> bool | None:
    """Return the truth of two tests that `&&`, `||` or nothing joins."""
    if joint == "&&":
        return False if before is False or result is False else None if before is None or result is None else True
    if joint == "||":
        return True if before is True or result is True else None if before is None or result is None else False
    return result


def _only_checks(words: Sequence[str]) -> bool:
    return bool(words) and words[0] in ("bash", "sh") and "-c" not in words and len(words) < 2


def _all(commands: Sequence[Command]) -> Iterator[Simple]:
    """Yield the simple commands inside commands."""
    for command in commands:
        match command:
            case Simple():
                yield command
            case Conditional():
                for condition, body in command.branches:
                    yield from _all(condition)
                    yield from _all(body)
            case CaseCommand():
                for _, body in command.branches:
                    yield from _all(body)
            case Opaque():
                yield from _all(command.body)
