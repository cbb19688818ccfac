"""Write out the file of arguments that the commands `swift` and `megatron` of ms-swift turn into options.

The modules that these commands start read options alone, and end with an error for a file. Source: parse_yaml_args in swift/cli/main.py
(ms-swift 4.6).
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from oppa.errors import InputError
from oppa.problem.launch_line.words import Word, texts
from oppa.tuning.launch_line.sources import LineSources

_COMMANDS = ("swift", "megatron")
_MODULE = re.compile(r"(.*/)?swift[./]cli[./](_megatron[./])?(pt|sft|rlhf)(\.py)?")
_OF_TORCHRUN = ("NPROC_PER_NODE", "MASTER_PORT", "NNODES", "NODE_RANK", "MASTER_ADDR")
"""Variables that the commands pass on as options of torchrun."""


def command_file(sources: LineSources) -> Word | None:
    """Return the file that a command of ms-swift turns into options; None for any other line."""
    named = sources.line.arguments[1:2] if sources.line.program_name in _COMMANDS else ()
    return next((word for word in named if sources.settings_file(word.text)), None)


def variables_of(sources: LineSources) -> dict[str, str]:
    """Return the variables that the file of a command of ms-swift sets; empty without such a file."""
    word = command_file(sources)
    stated = sources.contents(word).get("ENV") if word is not None else None
    return {str(name): str(value) for name, value in stated.items()} if isinstance(stated, dict) else {}


def written_out(sources: LineSources, start: str) -> str:
    """Return a launch line with the options of a command's file.

    Args:
        start: The launch line up to the first option.
    """
    word = command_file(sources)
    if word is None:
        return f"{start} ..."
    variables = [f"{name}={shlex.quote(value)}" for name, value in variables_of(sources).items() if name not in _OF_TORCHRUN]
    return " ".join([*variables, start, *_options(sources, word, sources.line.arguments[2:])])


def require_options(sources: LineSources) -> None:
    """Raise InputError if a module of ms-swift has a file of arguments, which only the command reads."""
    line = sources.line
    if not line.arguments or not _MODULE.fullmatch(line.program.text) or not sources.settings_file(line.arguments[0].text):
        return
    word = line.arguments[0]
    message = f"`{line.program.text}` of ms-swift takes options alone, and `{word.text}` is a file, which only `swift` and `megatron` read"
    options = " ".join(_options(sources, word, line.arguments[1:]))
    raise InputError(message, hint=f"write its keys as options: `{line.started} {options}`")


def _options(sources: LineSources, file: Word, others: Sequence[Word]) -> Iterator[str]:
    """Yield the options of a file and of the words after it, as a shell takes them."""
    for key, value in sources.contents(file).items():
        if key != "ENV":
            yield f"--{key}"
            yield from (shlex.quote(_text(each)) for each in (value if isinstance(value, list) else [value]))
    yield from map(shlex.quote, texts(others))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
