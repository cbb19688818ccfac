"""Read the file of Hydra whose keys a launch line changes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.problem.hydra_file import ARGUMENTS, hydra_file
from oppa.problem.launch_line.words import texts
from oppa.tuning.launch_line.sources import LineSources

HYDRA = "hydra"


def read_hydra_file(sources: LineSources) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the file and its content; both are empty for a file that is not here, or that Hydra composes of others.

    Raises:
        InputError: the file cannot be read.
    """
    line = sources.line
    code = {name: text for name in ARGUMENTS if (text := _stated(sources, name))}
    folder, name = hydra_file(Path(line.program.text), texts(line.arguments), code)
    path = str(folder / name)
    if not name or line.is_module or sources.local_file(path) is None:
        return "", {}
    values = sources.contents(path)
    return ("", {}) if any(map(_is_other, values.get("defaults") or ())) else (Path(name).name, values)


def _is_other(default: Any) -> bool:
    """Return whether an entry of a list of defaults names another file; one without a value names none."""
    return default != "_self_" and not (isinstance(default, Mapping) and {*default.values()} == {None})


def _stated(sources: LineSources, name: str) -> str:
    """Return what the program hands to its decorator of Hydra; empty if that is no plain text."""
    match = re.search(rf"""\b{name}\s*=\s*["']([^"'\n]+)["']""", sources.script)
    return match[1] if match else ""
