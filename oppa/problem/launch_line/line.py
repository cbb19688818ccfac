"""Read a launch line: environment assignments, wrappers, the step of a cluster, the launcher, the program and its arguments.

The reading covers the syntax of the programs that start others, and no framework's options. A shell script in the line is resolved without
running it; see `oppa.problem.launch_line.script`.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from oppa.errors import InputError
from oppa.plain_text import clipped
from oppa.problem.bounded_text import read_text
from oppa.problem.launch_line.batch_header import SHORT, exported_by, header_of, options_of, variables_of
from oppa.problem.launch_line.script import MOST_SCRIPTS, read_script
from oppa.problem.launch_line.script_launch import ScriptLaunch
from oppa.problem.launch_line.shell_syntax import GIVE_LINE
from oppa.problem.launch_line.starters import (
    ASSIGNMENT,
    FOREIGN,
    MODULES,
    PYTHON,
    SHELLS,
    STARTERS,
    Starter,
    name_of,
    options_at,
    python_option_takes_value,
    takes_value,
)
from oppa.problem.launch_line.words import Word, texts, typed, word

MOST_WORDS = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Describes a program that starts the next one: a wrapper, a step of a cluster, or a launcher of ranks."""

    name: str
    kind: str
    words: tuple[Word, ...]
    """Its own words, its name first."""
    options: tuple[tuple[str, Word | None], ...] = ()
    """Its options by name, with dashes and without those in front, each with its value."""

    def value(self, *names: str) -> Word | None:
        """Return the value of the last of these options; None if none is given."""
        found = [value for name, value in self.options if name in names and value is not None]
        return found[-1] if found else None

    def has(self, *names: str) -> bool:
        """Return whether one of these options is given."""
        return any(name in names for name, _ in self.options)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """Divides a launch line into its parts."""

    typed: tuple[str, ...]
    """The user's own words."""
    environment: tuple[tuple[str, Word], ...] = ()
    """Variables that are set in front of the programs, or that a script exports; of several values the last one."""
    stages: tuple[Stage, ...] = ()
    python: tuple[Word, ...] = ()
    """The interpreter and its options; empty if the program starts by itself, or if the launcher starts the interpreter."""
    program: Word
    """A file or a module of Python, or a command."""
    is_module: bool = False
    arguments: tuple[Word, ...] = ()
    folder: Path | None = None
    """The folder that a script changes to; None if it stays."""
    scripts: tuple[str, ...] = ()
    """Places in scripts that lead to the program, such as `run.sh:12`."""
    header: tuple[str, ...] = ()
    """Options in the lines of a batch script that begin with `#SBATCH`."""
    takes_arguments: bool = True
    """True if the program receives further words that are appended to the user's own line."""

    def stage(self, *names: str) -> Stage | None:
        """Return the first stage with one of these names, or of one of these kinds; None if there is none."""
        return next((each for each in self.stages if each.name in names or each.kind in names), None)

    @property
    def program_name(self) -> str:
        """Return the name of the program's file without its folders, or the whole name of a module."""
        return self.program.text if self.is_module else PurePath(self.program.text).name

    @property
    def is_python(self) -> bool:
        """Return whether the program is known to be one of Python; another command may start ranks of its own."""
        launcher = self.stage("launcher")
        by_launcher = launcher is not None and not launcher.has("no-python", "command-mode", "c")
        return bool(self.python) or self.is_module or self.program.text.endswith(".py") or by_launcher

    @property
    def program_words(self) -> tuple[Word, ...]:
        """Return the interpreter, the program and its arguments."""
        module = typed(["-m"]) if self.is_module and self.python else ()
        return (*self.python, *module, self.program, *self.arguments)

    @property
    def started(self) -> str:
        """Return the program as torchrun takes it: a file, or `-m` with a module."""
        return f"-m {self.program.text}" if self.is_module else self.program.text

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that the line sets, without those of an unknown value."""
        return {name: word.text for name, word in self.environment if not word.missing}

    def words_of_env(self, withheld: Collection[str]) -> list[str]:
        """Return the arguments of `env` that set the folder and the variables of the line, without those that are withheld."""
        folder = ["-C", str(self.folder)] if self.folder is not None and str(self.folder) != "." else []
        return [*folder, *(f"{name}={text}" for name, text in self.variables.items() if name not in withheld)]

    def path(self, text: str) -> Path:
        """Return the path of a file that the program would open by this name."""
        return Path(text) if self.folder is None else self.folder / text

    def variable(self, name: str) -> Word | None:
        """Return a variable that the line sets; None if it sets none."""
        return dict(self.environment).get(name)


def read_line(words: Sequence[str], *, environment: Mapping[str, str], gpus: int | None = None) -> LaunchLine:
    """Return the parts of a launch line.

    Args:
        words: The words that the user typed.
        environment: Variables that scripts inherit.
        gpus: GPUs of a host, which scripts may ask for; None if their number is not known.

    Raises:
        InputError: the line starts no program, or several things; a script in it cannot be resolved; or a program in it starts ranks that
            oppa cannot end.
    """
    if len(words) > MOST_WORDS:
        raise InputError(f"the launch line has {len(words)} words", hint=f"give at most {MOST_WORDS}")
    if separators := [word for word in words if word in ("|", ";", "&&", "||", "&")]:
        raise InputError(f"the launch line has `{separators[0]}`, which only a shell understands", hint="give one command, without a shell")
    return _Peeling(words, environment, gpus).line()


class _Peeling:
    """Takes the parts off a launch line, from the left."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], gpus: int | None) -> None:
        self._typed = tuple(words)
        self._words = list(typed(words))
        self._inherited, self._gpus = environment, gpus
        self._set: dict[str, Word] = {}
        self._stages: list[Stage] = []
        self._folder: Path | None = None
        self._scripts: list[str] = []
        self._header: tuple[str, ...] = ()
        self._takes_arguments = True

    def line(self) -> LaunchLine:
        while self._words:
            first = self._words[0]
            name = PurePath(first.text).name
            if match := ASSIGNMENT.match(first.text):
                self._set[match[1]] = self._words.pop(0).after(match.end())
            elif name in FOREIGN:
                hint = "start its program on this machine, or give oppa hosts of its own: `--set launcher.name=slurm`"
                raise InputError(f"`{name}` cannot start trials: {FOREIGN[name]}", hint=hint)
            elif name == "sbatch":
                self._sbatch()
            elif name in SHELLS or (name.endswith((".sh", ".slurm", ".sbatch", ".bash")) and not first.missing):
                self._script(name)
            elif PYTHON.fullmatch(name):
                if made := self._python():
                    return made
            elif starter := self._starter(name):
                if made := self._started(starter, [self._words.pop(0)]):
                    return made
            else:
                return self._made(self._words.pop(0), is_module=False)
        raise InputError("the launch line starts no program", hint="give it after `--`: `oppa tune -- torchrun train.py`")

    def _starter(self, name: str) -> Starter | None:
        starter = STARTERS.get(name)
        if starter is None:
            return None
        behind = texts(self._words[1:])
        end = options_at(starter, behind)
        if behind[end - len(starter.begins) : end] != list(starter.begins):
            return None
        return starter

    def _started(self, starter: Starter, words: list[Word]) -> LaunchLine | None:
        """Take the words of a program that starts another; return the line if the program follows in its options."""
        end = options_at(starter, texts(self._words))
        words += self._words[:end]
        del self._words[:end]
        options: list[tuple[str, Word | None]] = []
        is_module = False
        while self._words and (self._words[0].text.startswith("-") or self._is_blank()):
            word = self._words.pop(0)
            words.append(word)
            if word.text in ("--", ""):
                if word.text == "--":
                    break
                continue
            name = name_of(word.text)
            if starter.module and name in ("m", "module", "module-mode"):
                is_module = True
                continue
            if takes_value(starter, word.text) and self._words:
                words.append(self._words.pop(0))
                options.append((name, words[-1]))
                words += [self._words.pop(0)] if name in starter.pairs and self._words else []
            else:
                options += list(_attached(starter, word))
        words += [self._words.pop(0) for _ in range(min(starter.operands, len(self._words)))]
        if starter.name == "env":
            self._environment_of(options)
        if starter.name == "srun":
            self._step(options)
        self._stages.append(Stage(name=starter.name, kind=starter.kind, words=tuple(words), options=tuple(options)))
        if starter.kind == "launcher" and self._words and not self._starts_python_itself(options):
            return self._made(self._words.pop(0), is_module=is_module)
        return None

    @staticmethod
    def _starts_python_itself(options: Sequence[tuple[str, Word | None]]) -> bool:
        return any(name in ("no-python", "command-mode", "c") for name, _ in options)

    def _is_blank(self) -> bool:
        return not self._words[0].text and not self._words[0].missing

    def _environment_of(self, options: Sequence[tuple[str, Word | None]]) -> None:
        for name, value in options:
            if name in ("C", "chdir") and value is not None:
                self._folder = (self._folder or Path()) / value.text

    def _python(self) -> LaunchLine | None:
        """Take an interpreter; return the line, or None if it starts a launcher of ranks."""
        taken = [self._words.pop(0)]
        while self._words and self._words[0].text.startswith("-") and self._words[0].text not in ("-m", "-c", "-"):
            taken.append(self._words.pop(0))
            if python_option_takes_value(taken[-1].text) and self._words:
                taken.append(self._words.pop(0))
        if not self._words or self._words[0].text in ("-c", "-"):
            raise InputError("the launch line starts Python without a program", hint="name a file or a module: `python train.py`")
        if self._words[0].text != "-m":
            return self._made(self._words.pop(0), is_module=False, python=taken)
        dash = self._words.pop(0)
        if not self._words:
            raise InputError("`-m` names no module", hint="name one: `python -m package.train`")
        if launcher := MODULES.get(self._words[0].text):
            starter = STARTERS[launcher]
            if not self._words[0].text.endswith("accelerate"):
                starter = dataclasses.replace(starter, begins=())
            return self._started(starter, [*taken, dash, self._words.pop(0)])
        return self._made(self._words.pop(0), is_module=True, python=taken)

    def _sbatch(self) -> None:
        """Take `sbatch` and its options, which are those of the script's header."""
        self._words.pop(0)
        options = []
        while self._words and self._words[0].text.startswith("-"):
            options.append(self._words.pop(0).text)
            if not options[-1].startswith("--") and len(options[-1]) == 2 and self._words:
                options.append(self._words.pop(0).text)
        if not self._words:
            raise InputError("`sbatch` names no script", hint="give the launch line that the script starts")
        path = self.path(self._words[0].text)
        requested = (*header_of(read_text(path, hint="name the batch script")), *options)
        stated = options_of(requested)
        self._export(stated.get("export"))
        self._inherited = {**self._inherited, **variables_of(stated)}
        if "chdir" in stated:
            self._words[0] = word(str(path.absolute()))
            self._folder = self.path(stated["chdir"])
        self._script(path.name)
        self._header = requested

    def _step(self, options: Sequence[tuple[str, Word | None]]) -> None:
        """Take what options of `srun` change for the programs behind it: their variables and their folder."""
        stated = {SHORT.get(name, name): value.text for name, value in options if value is not None and not value.missing}
        self._export(stated.get("export"))
        self._inherited = {**self._inherited, **variables_of(stated)}
        if "chdir" in stated:
            if not Path(stated["chdir"]).is_absolute():
                hint = "give the whole path of the folder"
                raise InputError(f"`srun --chdir={clipped(stated['chdir'])}` depends on the folder of Slurm", hint=hint)
            self._folder = Path(stated["chdir"])

    def _export(self, value: str | None) -> None:
        """Set the variables of `--export`; without `ALL` in it the others are not passed on."""
        passes_on, given = exported_by(value)
        if not passes_on:
            self._inherited, self._set = {}, {}
        self._set |= {name: word(text) for name, text in given.items()}

    def _script(self, name: str) -> None:
        """Replace a shell script by the command that it starts."""
        if len(self._scripts) >= MOST_SCRIPTS:
            raise InputError(f"more than {MOST_SCRIPTS} scripts lead to the program", hint="give the launch line that the last one starts")
        text = None
        if name in SHELLS:
            self._words.pop(0)
            while self._words and re.fullmatch(r"-[a-z]*|--\w+", self._words[0].text) and "c" not in self._words[0].text:
                self._words.pop(0)
            if self._words and re.fullmatch(r"-[a-z]*c", self._words[0].text):
                self._words.pop(0)
                text = self._words[0].text if self._words else ""
        if not self._words:
            raise InputError(f"`{name}` names no script", hint=GIVE_LINE)
        script = self._words[0]
        if script.missing and text is None:
            raise InputError(f"the script `{clipped(script.text)}` is not known", hint=GIVE_LINE)
        inherited = {**self._inherited, **{name: word.text for name, word in self._set.items() if not word.missing}}
        unknown = {name: word for name, word in self._set.items() if word.missing}
        if text is None:
            launch = self._resolved(self.path(script.text), inherited, unknown)
        else:
            shown = dataclasses.replace(script, pieces=script.pieces[:1])
            words = self._words[1:] or [shown]  # the first word behind the text is `$0`
            launch = read_script(
                Path("sh -c"), words, environment=inherited, unknown=unknown, text=text, folder=self._folder, gpus=self._gpus
            )
        self._words = list(launch.words)
        self._set |= {
            name: self._set.get(name, word) if word.text == self._text_of(name) else word for name, word in launch.environment.items()
        }
        self._folder = self._folder if launch.folder is None else (self._folder or Path()) / launch.folder
        self._scripts.append(launch.source)
        self._header = launch.header or self._header
        self._takes_arguments &= launch.takes_arguments

    def _resolved(self, path: Path, inherited: Mapping[str, str], unknown: Mapping[str, Word]) -> ScriptLaunch:
        """Return what a script starts, with the origin of the variables that the line sets in front of it."""
        launch = read_script(path, self._words, environment=inherited, unknown=unknown, folder=self._folder, gpus=self._gpus)
        exported = {name: _from_line(value, self._set) for name, value in launch.environment.items()}
        return dataclasses.replace(launch, words=tuple(_from_line(word, self._set) for word in launch.words), environment=exported)

    def _text_of(self, name: str) -> str | None:
        return self._set[name].text if name in self._set else None

    def path(self, text: str) -> Path:
        """Return the path of a file that the line names."""
        return Path(text) if self._folder is None else self._folder / text

    def _made(self, program: Word, *, is_module: bool, python: Sequence[Word] = ()) -> LaunchLine:
        return LaunchLine(
            typed=self._typed,
            environment=tuple(self._set.items()),
            stages=tuple(self._stages),
            python=tuple(python),
            program=program,
            is_module=is_module,
            arguments=tuple(self._words),
            folder=self._folder,
            scripts=tuple(self._scripts),
            header=self._header,
            takes_arguments=self._takes_arguments,
        )


def _from_line(word: Word, given: Mapping[str, Word]) -> Word:
    """Return a word whose pieces name the line as the origin of variables that the line sets."""
    named = {f"environment {name}" for name in given}
    return Word(pieces=tuple(dataclasses.replace(each, origin="line") if each.origin in named else each for each in word.pieces))


def _attached(starter: Starter, word: Word) -> Iterator[tuple[str, Word | None]]:
    """Yield the options of one word: `--name=value`, `-N64`, a flag, or several flags."""
    text = word.text
    if "=" in text:
        yield name_of(text), word.after(text.index("=") + 1)
    elif text.startswith("--") or starter.long_by_one_dash or len(text) <= 2:
        yield name_of(text), None
    elif text[1] not in starter.short_flags:
        yield text[1], word.after(2)
    else:
        for letter in text[1:]:
            yield letter, None
