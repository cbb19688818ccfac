"""Make the files of settings harmless that a program opens itself: trials state their keys in the line, or the line is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.errors import UndeclaredError
from oppa.plain_text import clipped
from oppa.problem.declaration import shown
from oppa.problem.file_writes import harmless_keys
from oppa.problem.program_settings import CodeSettings
from oppa.problem.program_writes import ProgramWrites
from oppa.problem.settings_text import SUFFIXES
from oppa.problem.templates import literal
from oppa.problem.trial_values import WRITES
from oppa.problem.writes import REASONS, HarmlessArguments, WordChange, require_known
from oppa.problem.writes_file import DECLARED, PLAIN, UserKind

_RUNS = "hydra.run.dir"
"""Key of the folder that Hydra makes for each run."""


def in_code(
    program: ProgramWrites, line: HarmlessArguments, paths: Mapping[str, UserKind], folder: Path
) -> tuple[list[str], list[WordChange]]:
    """Return the words that trials add because of settings that the program opens itself, and what they change.

    Args:
        line: The line as trials have it.
        paths: Kinds that the user declares.
        folder: The folder in which the program starts.

    Raises:
        JobError: it is unknown what the program does with a path in the settings, or trials cannot change one that it writes.
    """
    words, changes = list[str](), list[WordChange]()
    stated = {word.lstrip("-+~").partition("=")[0] for word in line.words if "=" in word}
    names_another = any(each.path.endswith(SUFFIXES) for each in line.files)
    for settings in program.settings:
        if settings.unless_named and names_another:
            continue
        found = harmless_keys(PLAIN if settings.takes_keys else DECLARED, settings.content, paths=paths, folder=folder)
        unknown = [each for each in found.unknown if each.name not in stated]
        changed = [each for each in found.changes if each.name not in stated]
        if settings.takes_keys:
            require_known(unknown)
            added = [WordChange(name=_RUNS, original=(), trial=(f"{{folder}}/{WRITES}/hydra",), reason=REASONS["redirect"])]
            changed += added if settings.of_hydra and _RUNS not in stated else []
            words += [_override(each, settings) for each in changed]
            changes += changed
        else:
            names = {each.name: each.value for each in unknown} | {each.name: _text(each.original) for each in changed}
            if settings.path not in paths:
                _require_none(names, settings, program)
            changes.append(_note(program, f"reads {settings.path}, which trials do not change"))
        if settings.path and not settings.content:
            changes.append(_note(program, f"reads {settings.path}, which oppa cannot see"))
    return words, changes


def _note(program: ProgramWrites, reason: str) -> WordChange:
    return WordChange(name=program.program, original=(), trial=(), reason=reason)


def _require_none(names: Mapping[str, str], settings: CodeSettings, program: ProgramWrites) -> None:
    """Raise UndeclaredError if settings that trials cannot change have paths."""
    if not names:
        return
    listed = "`, `".join(clipped(f"{name} {value}".strip()) for name, value in names.items())
    raise UndeclaredError(
        f"`{program.program}` reads `{settings.path}`, which states `{listed}`, and trials cannot change that",
        hint="make it an option of the program, such as `--output_dir`; if trials may write it or never do, add "
        f"""`--set 'command.paths."{settings.path}"=read'`""",
    )


def _override(change: WordChange, settings: CodeSettings) -> str:
    """Return the word that states a key. Hydra refuses a key that its files lack, unless `++` stands before it."""
    value = change.trial[0]
    added = "++" if settings.of_hydra and not change.original and change.name != _RUNS else ""
    return f"{added}{change.name}={value if isinstance(value, str) else literal(json.dumps(value))}"


def _text(original: tuple[Any, ...]) -> str:
    """Return the value of a key; empty if there is none."""
    return " ".join(each if isinstance(each, str) else shown(each) for each in original)
