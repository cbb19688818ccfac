"""Read a model's dimensions from a `config.json` on this machine: in the folder that a line names, or in the cache of Hugging Face."""

import os
from collections.abc import Mapping
from pathlib import Path

from oppa.errors import InputError
from oppa.problem.configuration import Value
from oppa.problem.transformers_config import read_config
from oppa.regular_file import is_file, is_folder
from oppa.tuning.launch_line.sources import LineSources

CONFIG = "config.json"
_TYPES = ("torch_dtype", "dtype")
"""Keys of the type of the weights; releases of Transformers from 4.56 on write the second one."""


def local_model(sources: LineSources, name: str, seq_len: int | None) -> tuple[dict[str, Value], str, list[str]]:
    """Return `[model]` for a model that a line names, its origin, and what else would state it.

    Args:
        name: A folder, a file, or a name on the hub.
        seq_len: Tokens of a training sequence; None if nothing states them.
    """
    path = _config(sources, name)
    if path is None:
        return {}, "", []
    try:
        read_config(path)
    except InputError as error:
        return {}, "", [f"the model has no prior: {error.message}"]
    if seq_len is None:
        return (
            {},
            "",
            [f"`--model {_shown(path)},seq_len=...` gives the search its prior: the line does not state the tokens of a sequence"],
        )
    return {"config": str(path), "seq_len": seq_len}, _shown(path), []


def weights_type(sources: LineSources, name: str) -> tuple[str, str]:
    """Return the type of a model's weights, such as `bfloat16`, by its config.json, and that file; empty texts if nothing states it."""
    path = _config(sources, name)
    values = sources.contents(str(path)) if path is not None else {}
    text = values.get("text_config")
    stated = [table.get(key) for table in (values, text if isinstance(text, dict) else {}) for key in _TYPES]
    found = next((each for each in stated if isinstance(each, str)), "")
    return found, _shown(path) if path is not None and found else ""


def cache_of(environment: Mapping[str, str]) -> Path:
    """Return the folder in which libraries of Hugging Face keep files."""
    return Path(environment.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))  # noqa: PTH111 (a text of the environment)


def _shown(path: Path) -> str:
    """Return a path as a user below this folder would type it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _config(sources: LineSources, name: str) -> Path | None:
    if not name or "\0" in name:
        return None
    given = sources.line.path(name)
    for path in (given, given / CONFIG):
        if path.name.endswith(".json") and is_file(path):
            return path.absolute()
    folder = cache_of(sources.environment) / "hub" / f"models--{name.replace('/', '--')}" / "snapshots"
    return next(iter(sorted(folder.glob(f"*/{CONFIG}"))), None) if name.count("/") == 1 and is_folder(folder) else None
