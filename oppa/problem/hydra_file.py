"""Find the file of Hydra that a launch line or its program names, and compose its keys with those of its defaults.

Source: hydra/_internal/utils.py, `compute_search_path_dir` (Hydra 1.3): a path is absolute, or relative to the program's folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.errors import InputError
from oppa.problem.file_keys import put
from oppa.problem.settings_text import read_settings
from oppa.regular_file import is_file

ARGUMENTS: Mapping[str, Sequence[str]] = {"config_path": ("--config-path", "-cp"), "config_name": ("--config-name", "-cn")}
"""Arguments of Hydra's decorator that name the file, with the options of a line that take precedence."""
_DEEPEST = 5
"""Most files of Hydra within each other."""


def hydra_file(program: Path, words: Sequence[str], code: Mapping[str, str]) -> tuple[Path, str]:
    """Return the folder of Hydra's files, and the name of the first one; an empty name if nothing states it.

    Args:
        program: The program's file.
        words: The program's own words.
        code: The arguments of the program's decorator.
    """
    stated = dict(code)
    for argument, options in ARGUMENTS.items():
        for number, word in enumerate(words):
            option, equals, value = word.partition("=")
            if option in options:
                stated[argument] = value if equals else next(iter(words[number + 1 :]), "")
    name = stated.get("config_name", "")
    return program.parent / stated.get("config_path", "."), _with_suffix(name) if name else ""


def composed(folder: Path, name: str, chosen: Mapping[str, str], depth: int = 0) -> dict[str, Any]:
    """Return the keys of a file of Hydra over those of the files in its list of defaults, as far as they are here.

    Args:
        chosen: Values of the line, which may choose another file of a group.
    """
    path = folder / name
    own = tables_of(path) if is_file(path) else {}
    found: dict[str, Any] = {}
    defaults = own.pop("defaults", None)
    for entry in defaults if isinstance(defaults, list) and depth < _DEEPEST else ():
        group, _, option = entry.rpartition("/") if isinstance(entry, str) else ("", "", "")
        if isinstance(entry, Mapping):
            group, option = next(((str(key), str(value)) for key, value in entry.items()), ("", ""))
        group, _, package = group.removeprefix("optional ").removeprefix("override ").partition("@")
        if option in ("", "_self_", "None") or group.startswith("hydra"):
            continue
        inner = composed(folder / group, _with_suffix(chosen.get(group, option)), {}, depth + 1)
        table = package or group.replace("/", ".")
        if table in ("", "_global_"):
            found |= inner
        else:
            put(found, table, inner)
    return found | own


def _with_suffix(name: str) -> str:
    return f"{name.removesuffix('.yaml')}.yaml"


def tables_of(path: Path) -> dict[str, Any]:
    """Return the tables of a file; empty if it cannot be read, or has none."""
    try:
        content = read_settings(path, hint="")
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}
