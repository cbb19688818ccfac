"""Understand a launch line without a mark of a framework: the placeholders that the user typed are what may vary."""

import itertools
import re
from collections.abc import Iterator

from oppa.problem.configuration import Value
from oppa.problem.inline_choices import read_inline_choices
from oppa.tuning.launch_line.batch_hint import batch_hints
from oppa.tuning.launch_line.meaning import Meaning
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates

_OPTION = re.compile(
    r"""add_argument\(\s*(?:["']-\w["'],\s*)?["'](--[\w-]*(?:batch|accum|worker|bucket|compile|checkpointing|prefetch)[\w-]*)["']"""
)
"""Options of argparse whose names suggest that they change the speed."""
_MOST = 6


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line: what its placeholders state.

    Raises:
        InputError: a placeholder has no choice, or contradictory ones.
    """
    words = templates(sources.line.arguments)
    inline = read_inline_choices(words)
    present: dict[str, Value] = dict(inline.present)
    return Meaning(
        framework="plain",
        evidence=evidence,
        devices=sources.devices,
        settings=present,
        origins=dict.fromkeys(present, "line"),
        words=tuple(words),
        hints=tuple(itertools.islice((*batch_hints(sources), *_options_to_name(sources)), 1)) if not present else (),
        missing=sources.missing,
    )


def _options_to_name(sources: LineSources) -> Iterator[str]:
    """Yield a hint with the options of the program that could vary; nothing if its source shows none."""
    found = list(dict.fromkeys(_OPTION.findall(sources.script)))[:_MOST]
    if found:
        named = ", ".join(f"`{option}`" for option in found)
        name = "micro_batch" if "batch" in found[0] else found[0].strip("-").replace("-", "_")
        yield f"`{sources.line.program_name}` has {named}: name one with its present value first, `{found[0]} {{{name}=8:4,8,16}}`"
