"""Find and read the file of Hydra that a launch line or its program names by `config_path` and `config_name`.

Source: hydra/_internal/utils.py, `compute_search_path_dir` (Hydra 1.3): a path is absolute, or relative to the program's folder.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from oppa.tuning.launch_line.options import Options
from oppa.tuning.launch_line.sources import LineSources

HYDRA = "hydra"


def read_hydra_file(sources: LineSources, options: Options) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the file and its content; both are empty for a file that is not here, or that Hydra composes of others.

    Raises:
        InputError: the file cannot be read.
    """
    folder = options.value("config-path", "cp") or _stated(sources, "config_path")
    name = options.value("config-name", "cn") or _stated(sources, "config_name")
    if not folder or not name or sources.line.is_module:
        return "", {}
    path = PurePath(sources.line.program.text).parent / folder / f"{name.removesuffix('.yaml')}.yaml"
    if sources.local_file(str(path)) is None:
        return "", {}
    values = sources.contents(str(path))
    return ("", {}) if any(map(_is_other, values.get("defaults") or ())) else (path.name, values)


def _is_other(default: Any) -> bool:
    """Return whether an entry of a list of defaults names another file; one without a value names none."""
    return default != "_self_" and not (isinstance(default, Mapping) and {*default.values()} == {None})


def _stated(sources: LineSources, name: str) -> str:
    """Return what the program hands to its decorator of Hydra; empty if that is no plain text."""
    match = re.search(rf"""\b{name}\s*=\s*["']([^"'\n]+)["']""", sources.script)
    return match[1] if match else ""
