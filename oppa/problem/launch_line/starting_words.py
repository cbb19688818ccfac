"""Recognise the words of a command in a script that may start a training job."""

import re
from collections.abc import Sequence
from pathlib import PurePath

from oppa.problem.launch_line.framework_commands import line_of_command
from oppa.problem.launch_line.starters import PYTHON, SHELLS, STARTERS
from oppa.problem.launch_line.words import Word

_CHECKS = re.compile(r"-(c|-version|V)")
_HARMLESS_MODULES = frozenset(["pip", "venv", "json.tool", "http.server", "site"])


def starts_something(words: Sequence[str]) -> bool:
    """Return whether a command may start a training job, by itself or behind wrappers such as `nice`."""
    starter = STARTERS.get(PurePath(words[0]).name) if words else None
    if starter is not None and starter.kind == "wrapper" and not starter.begins:
        return any(_starts(words[index:]) for index in range(1, len(words)))
    return _starts(words)


def _starts(words: Sequence[str]) -> bool:
    """Return whether a command without wrappers in front may start a training job."""
    names = [PurePath(word).name for word in words]
    if not names:
        return False
    if PYTHON.fullmatch(names[0]):
        first = next((word for word in words[1:] if not re.fullmatch(r"-[uOBIEsPq]+", word)), "")
        module = words[2] if len(words) > 2 and words[1] == "-m" else ""
        return not _CHECKS.fullmatch(first) and module not in _HARMLESS_MODULES and first != ""
    starter = STARTERS.get(names[0])
    if starter is None:
        return names[0] in SHELLS or names[0].endswith(".sh") or bool(line_of_command(words))
    if starter.kind == "step" and (inner := [name for name in names[1:] if not name.startswith("-")]):
        return inner[-1] not in ("hostname", "nvidia-smi") and "hostname" not in inner
    return (starter.kind != "wrapper" or bool(starter.begins)) and {*starter.begins} <= {*names[1:]}


def is_launcher_unknown(words: Sequence[Word]) -> bool:
    """Return whether the program itself is missing, and a Python file or a launcher follows."""
    return bool(words[0].missing) and any(word.text.endswith(".py") for word in words[1:])


def only_checks(words: Sequence[str]) -> bool:
    """Return whether a shell is named without a script."""
    return bool(words) and words[0] in ("bash", "sh") and "-c" not in words and len(words) < 2
