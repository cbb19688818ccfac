"""Let trials of a program that takes a file of arguments alone, `train.py args.json`, differ in a copy of that file.

HfArgumentParser reads such a file only if it is the program's sole argument, so no option can follow it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from oppa.problem.launch_line.words import Word
from oppa.tuning.formats.transformers import ACCUMULATED, MICRO, RECOMPUTE
from oppa.tuning.launch_line.meaning import EditedFile, Meaning
from oppa.tuning.launch_line.recognise import positional_file, trainer_options
from oppa.tuning.launch_line.sources import LineSources

_NAME = "arguments"
_OF_FILES = ("zero_stage", "recompute")
"""Choices that a file of the launcher or of DeepSpeed may hold."""


def sole_file(sources: LineSources) -> Word | None:
    """Return the file that is the program's sole argument; None if there are others, or none."""
    return positional_file(trainer_options(sources), sources) if len(sources.line.arguments) == 1 else None


def in_sole_file(meaning: Meaning, sources: LineSources, values: Mapping[str, Any]) -> Meaning:
    """Return the meaning with the arguments of trials in a copy of the sole file; the same meaning if the line has other arguments.

    A file of DeepSpeed that the sole file names has a copy of its own, which the copy of the sole file names.

    Args:
        values: The file's content.
    """
    word = sole_file(sources)
    if word is None:
        return meaning
    others = tuple(file for file in meaning.files if file.keys)
    keys: dict[str, Any] = {MICRO: "{micro_batch}", ACCUMULATED: "{num_microbatches}"}
    # the files of launchers stand in front of the program
    copies = {"deepspeed": f"{{{others[0].name}}}"} if others and meaning.framework == "transformers" else {}
    choices: dict[str, Any] = {}
    worded = meaning.arguments.get("recompute")
    if isinstance(worded, Mapping) and len(worded) > 1:
        option = worded["full"][0].lstrip("-")
        name = next((name for name in RECOMPUTE if name in values), option) if option in RECOMPUTE else option
        keys[name] = {"recompute": {choice: words[1] == "true" for choice, words in worded.items()}}
        choices["recompute"] = ["none", "full"]
    present, path = {key: values.get(key) for key in keys}, sources.line.path(word.text)
    copy = EditedFile(name=_NAME, path=path, keys={**keys, **copies}, present=present, copies=tuple(copies))
    choices |= {name: values for name, values in meaning.choices.items() if others and name in _OF_FILES}
    return dataclasses.replace(
        meaning,
        space="",
        words=(f"{{{_NAME}}}",),
        arguments={},
        files=(*others, copy),
        choices=choices,
        added=(),
    )
