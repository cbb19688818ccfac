"""Understand a launch line of which oppa knows no framework: the placeholders that the user typed are what may vary."""

from oppa.errors import InputError
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
    micro, count = present.get("micro_batch"), sources.devices.count
    batch = micro * count if isinstance(micro, int) and count and not isinstance(micro, bool) else None
    return Meaning(
        framework="plain",
        title="a program of your own",
        evidence=evidence,
        devices=sources.devices,
        global_batch=batch,
        batch_origin="micro_batch x devices" if batch else "",
        settings=present,
        origins=dict.fromkeys(present, "line"),
        words=tuple(words),
        missing=tuple(dict.fromkeys(name for word in sources.line.program_words for name in word.missing)),
    )


def require_no_guess(title: str, choices: object) -> None:
    """Raise InputError if nothing may vary."""
    if not choices:
        hint = "name what may vary in the line, with its present value first: `--batch-size {micro_batch=8:4,8,16}`"
        raise InputError(f"nothing in this launch line of {title} may vary", hint=hint)
