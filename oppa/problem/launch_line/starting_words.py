"""Recognise the words of a command in a script that may start a training job."""

import re
from collections.abc import Sequence
from pathlib import PurePath

from oppa.problem.launch_line.words import Word

STARTERS = frozenset(
    ["torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "bash", "sh", "zsh", "uv", "numactl", "apptainer", "singularity"]
)
"""Programs that start others; `python` in all its spellings is among them, too."""
_CHECKS = re.compile(r"-(c|-version|V)")
_HARMLESS_MODULES = frozenset(["pip", "venv", "json.tool", "http.server", "site"])


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


def is_launcher_unknown(words: Sequence[Word]) -> bool:
    """Return whether the program itself is missing, and a Python file or a launcher follows."""
    return bool(words[0].missing) and any(word.text.endswith(".py") for word in words[1:])


def only_checks(words: Sequence[str]) -> bool:
    """Return whether a shell is named without a script."""
    return bool(words) and words[0] in ("bash", "sh") and "-c" not in words and len(words) < 2
