"""Understand a launch line of which oppa knows no framework: the placeholders that the user typed are what may vary."""

from oppa.problem.configuration import Value
from oppa.problem.inline_choices import read_inline_choices
from oppa.tuning.launch_line.meaning import Meaning
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates


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
        title="a program of your own",
        evidence=evidence,
        devices=sources.devices,
        settings=present,
        origins=dict.fromkeys(present, "line"),
        words=tuple(words),
        missing=tuple(dict.fromkeys(name for word in sources.line.program_words for name in word.missing)),
    )
