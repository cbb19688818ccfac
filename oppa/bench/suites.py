"""The benchmarks that `oppa bench` knows, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oppa.report.record import Section


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark: what it shows, and how it is run with a number of repeats."""

    about: str
    run: Callable[[int], Sequence[Section]]
    when_named: bool = False
    """Only then: `oppa bench` without a name leaves it out."""


def _help(repeats: int) -> Sequence[Section]:
    from oppa.bench.help import help_overhead

    return [help_overhead(repeats)]


def _start_up(repeats: int) -> Sequence[Section]:
    from oppa.bench.start_up import start_up

    return [start_up(repeats)]


def _prior(_repeats: int) -> Sequence[Section]:
    from oppa.bench.prior import prior

    return prior()


def _calibrate(_repeats: int) -> Sequence[Section]:
    from oppa.bench.calibrate import calibrate

    return calibrate()


def _machine(repeats: int) -> Sequence[Section]:
    from oppa.bench.machine import machine

    return [machine(repeats)]


def _search(repeats: int) -> Sequence[Section]:
    from oppa.bench.search import search

    return search(repeats)


def _designer(repeats: int) -> Sequence[Section]:
    from oppa.bench.designer_step import designer_step

    return designer_step(repeats)


SUITES = {
    "help": Suite("`oppa --help` against a bare typer program", _help),
    "start-up": Suite("trial set-up, warm against torchrun", _start_up),
    "prior": Suite("what is predicted against what others measured and published", _prior),
    "designer": Suite("one step of the designer over 100,000 candidates, and BoTorch's own posterior", _designer),
    "machine": Suite("what `priors/hardware/CPU.toml` states, measured here", _machine),
    "search": Suite("trials until the fastest is found, against the peers, replayed", _search, when_named=True),
    "calibrate": Suite("the coefficients of `priors/`, fitted to published measurements", _calibrate, when_named=True),
}
