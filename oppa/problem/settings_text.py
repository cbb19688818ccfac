"""Read the settings files of other programs: JSON, YAML or TOML by their suffix, within bounds."""

from pathlib import Path
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import parse_json, parse_yaml, read_text
from oppa.problem.declaration import parse

SUFFIXES = (".json", ".yaml", ".yml", ".toml")
"""Suffixes of files that oppa can read."""


def read_settings(path: Path, *, hint: str, error: type[InputError] = InputError) -> Any:
    """Return the values of a file; one without a known suffix is read as JSON.

    Args:
        hint: What to do if it cannot be read.
        error: Raised if the file cannot be opened, or is no TOML.

    Raises:
        InputError: it is not of its kind, or exceeds the bounds.
    """
    text, hint = read_text(path, error=error, hint=hint), f"correct it, or {hint}"
    if path.suffix == ".toml":
        return parse(text, source=str(path), error=error)
    if path.suffix in (".yaml", ".yml"):
        return parse_yaml(text, source=f"`{path}`", hint=hint)
    return parse_json(text, source=f"`{path}`", hint=hint)
