"""The benchmarks that `oppa bench` knows, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from oppa.report.record import Section


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark: what it shows, and how it is run with a number of repeats."""

    about: str
    run: Callable[[int], Section]


def _help(repeats: int) -> Section:
    from oppa.bench.help import help_overhead

    return help_overhead(repeats)


def _start_up(repeats: int) -> Section:
    from oppa.bench.start_up import start_up

    return start_up(repeats)


SUITES = {
    "help": Suite("`oppa --help` against a bare typer program", _help),
    "start-up": Suite("trial set-up, warm against torchrun", _start_up),
}
