"""Let trials of a program that takes a file of arguments alone, `train.py args.json`, differ in a copy of that file.

HfArgumentParser reads such a file only if it is the program's sole argument, so no option can follow it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from oppa.problem.launch_line.words import Word
from oppa.tuning.formats.deepspeed import BATCH, key_of
from oppa.tuning.formats.transformers import ACCUMULATED, MICRO, RECOMPUTE
from oppa.tuning.launch_line.meaning import EditedFile, Meaning
from oppa.tuning.launch_line.recognise import positional_file, trainer_options
from oppa.tuning.launch_line.sources import LineSources

_NAME = "arguments"
_OF_LAUNCHERS = ("zero_stage", "recompute")
"""Choices that a launcher's own file may hold."""


def sole_file(sources: LineSources) -> Word | None:
    """Return the file that is the program's sole argument; None if there are others, or none."""
    return positional_file(trainer_options(sources), sources) if len(sources.line.arguments) == 1 else None


def in_sole_file(meaning: Meaning, sources: LineSources, values: Mapping[str, Any]) -> Meaning:
    """Return the meaning with the arguments of trials in a copy of the sole file; the same meaning if the line has other arguments.

    A file of DeepSpeed that the sole file names stays as it is, and so does a batch that it states.

    Args:
        values: The file's content.
    """
    word = sole_file(sources)
    if word is None:
        return meaning
    of_launcher = tuple(file for file in meaning.files if meaning.framework != "transformers")
    keys: dict[str, Any] = {}
    choices: dict[str, Any] = {}
    if not _states_batch(meaning.files[len(of_launcher) :]):
        keys |= {MICRO: "{micro_batch}", ACCUMULATED: "{num_microbatches}"}
    worded = meaning.arguments.get("recompute")
    if isinstance(worded, Mapping) and len(worded) > 1:
        option = worded["full"][0].lstrip("-")
        name = next((name for name in RECOMPUTE if name in values), option) if option in RECOMPUTE else option
        keys[name] = {"recompute": {choice: words[1] == "true" for choice, words in worded.items()}}
        choices["recompute"] = ["none", "full"]
    copy = EditedFile(name=_NAME, path=sources.line.path(word.text), keys=keys, present={key: values.get(key) for key in keys})
    choices |= {name: values for name, values in meaning.choices.items() if of_launcher and name in _OF_LAUNCHERS}
    return dataclasses.replace(
        meaning,
        space="",
        words=(f"{{{_NAME}}}",),
        arguments={},
        files=(*of_launcher, copy),
        choices=choices,
        added=(),
    )


def _states_batch(files: tuple[EditedFile, ...]) -> bool:
    """Return whether a file of DeepSpeed states a size of the batch, which would contradict another one in the arguments."""
    sizes = [file.present.get(key_of("micro_batch", each)) for file in files for each in BATCH]
    return any(size not in (None, "auto") for size in sizes)
