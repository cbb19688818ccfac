"""Suggest how a program of an unknown framework names its micro-batch, from the options, keys and files that its line states."""

import re
from collections.abc import Iterator

from oppa.problem.bounded_text import whole_number
from oppa.tuning.launch_line.options import Options
from oppa.tuning.launch_line.program_source import divides_accumulation
from oppa.tuning.launch_line.sources import LineSources

_OF_RANK = re.compile(r"(?i).*(micro|(per_?)?device|per_?(gpu|rank)).*batch.*|.*batch.*(per_?(gpu|rank|device)).*|mbs")
_ANY = re.compile(r"(?i)(.*[_.-])?batch([_-]?size)?([_-]?train(ing)?)?|bs")
_ACCUMULATED = re.compile(r"(?i)(.*[_.-])?grad(ient)?s?_?acc(um)?\w*|(.*[_.-])?accumulat\w*")
_OTHER = re.compile(r"(?i).*(eval|val|test|predict|infer|global|total|tokens|logprob|log_prob|rollout|generation|forward).*")


def batch_hints(sources: LineSources) -> Iterator[str]:
    """Yield a hint that names the argument of the batch, with its present value first; nothing if the line shows none."""
    stated = list(_stated(sources))
    for pattern in (_OF_RANK, _ANY):
        for name, value, joint, where in stated:
            if pattern.fullmatch(name.lstrip("-+").replace("-", "_")):
                words, batch = _with_accumulation(sources, stated, _named(name, value, joint), value)
                yield f"`{name}{joint}{value}` is stated: if that is the batch of a rank, name it{where}: `{words}`{batch}"
                return


def _with_accumulation(sources: LineSources, stated: list[tuple[str, int, str, str]], words: str, micro: int) -> tuple[str, str]:
    """Return the words with a placeholder for the micro-batches that the line accumulates, and how to state the batch of a step."""
    options = (each for each in stated if _ACCUMULATED.fullmatch(each[0].lstrip("-+").replace("-", "_")))
    name, steps, joint, _ = next(options, ("", 0, "", ""))
    if not name or not sources.devices.count:
        return words, ""
    divides = divides_accumulation(sources.script)
    accumulated, ranks = ("total_microbatches", 1) if divides else ("num_microbatches", sources.devices.count)
    return f"{words} {name}{joint}'{{{accumulated}}}'", f", with `--set batch.global_batch={micro * steps * ranks}`"


def _stated(sources: LineSources) -> Iterator[tuple[str, int, str, str]]:
    """Yield options and keys of the line with a number, each with what is between name and value, and where a placeholder is read."""
    for bare in (False, True):
        for option in Options(sources.line.arguments, bare=bare).all:
            number = whole_number(option.text)
            if number and not _OTHER.fullmatch(option.name):
                name, equals, _ = option.words[0].text.partition("=")
                where = "" if option.words[-1].is_typed else " in the launch line itself, in place of its script"
                yield name, number, "=" if equals else " ", where


def _named(name: str, value: int, joint: str) -> str:
    """Return an option whose value is a placeholder for the micro-batch."""
    choices = ",".join(str(each) for each in dict.fromkeys((max(value // 2, 1), value, 2 * value)))
    return f"{name}{joint}'{{micro_batch={value}:{choices}}}'"
