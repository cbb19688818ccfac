"""Define the benchmarks of `oppa bench` that run with a number of repeats, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oppa.bench.declared import COPUS, DYNAMIX, OVERHEAD, POLLUX, PROFILED

if TYPE_CHECKING:  # the help imports this module, and must stay fast
    from oppa.report.record import Section


@dataclass(frozen=True, slots=True)
class Suite:
    """Describes a benchmark: what it shows, and the functions that run it."""

    about: str
    run: "Callable[..., Sequence[Section]]"
    """Function that takes the number of repeats, and the names of tasks if it has some."""
    when_named: bool = False
    """The benchmark runs only by its name; `oppa bench all` leaves it out."""
    figures: Callable[[int], Mapping[str, str]] = lambda repeats: {}
    """Function that returns SVG by file name, for the record."""
    to_json: Callable[..., Mapping[str, object]] | None = None
    """Function that returns the figures for `--json` by name, with the arguments of `run`. If None, `--json` prints the sections.

    Expensive results are cached, so that `run`, `figures` and `to_json` share them.
    """
    repeated: bool = True
    """The figures depend on the number of repeats."""
    tasks: tuple[str, ...] = ()
    """Names that `--tasks` accepts; if empty, the benchmark has no such option."""


def _help(repeats: int) -> "Sequence[Section]":
    from oppa.bench.help import help_overhead

    return [help_overhead(repeats)]


def _start_up(repeats: int) -> "Sequence[Section]":
    from oppa.bench.start_up import start_up

    return [start_up(repeats)]


def _prior(_repeats: int) -> "Sequence[Section]":
    from oppa.bench.prior import prior

    return prior()


def _calibrate(_repeats: int) -> "Sequence[Section]":
    from oppa.bench.calibrate import calibrate

    return calibrate()


def _machine(repeats: int) -> "Sequence[Section]":
    from oppa.bench.machine import machine

    return [machine(repeats)]


def _overhead(repeats: int, tasks: Sequence[str]) -> "Sequence[Section]":
    from oppa.bench.overhead import overhead

    return overhead(repeats, sizes=[int(task) for task in tasks])


def _stopping(repeats: int) -> "Sequence[Section]":
    from oppa.bench.stopping import stopping

    return stopping(repeats)


def _stopping_figures(repeats: int) -> "Mapping[str, str]":
    from oppa.bench.stopping import figures

    return figures(repeats)


def _simulator(_repeats: int) -> "Sequence[Section]":
    from oppa.bench.simulator import simulator

    return simulator()


def _profile(repeats: int, tasks: Sequence[str]) -> "Sequence[Section]":
    from oppa.bench.profile import profile

    return profile(repeats, tasks)


def _goodput_simulated(repeats: int, tasks: Sequence[str]) -> "Sequence[Section]":
    from oppa.bench.goodput.simulated import sections

    return sections(repeats, tasks)


def _goodput_simulated_figures(repeats: int) -> "Mapping[str, str]":
    from oppa.bench.goodput.simulated import figures

    return figures(repeats)


def _goodput_simulated_json(repeats: int, tasks: Sequence[str]) -> "Mapping[str, object]":
    from oppa.bench.goodput.simulated import to_json

    return to_json(repeats, tasks)


def _policies_simulated(repeats: int, tasks: Sequence[str]) -> "Sequence[Section]":
    from oppa.bench.policies.simulated import sections

    return sections(repeats, [int(task) for task in tasks])


def _policies_simulated_figures(repeats: int) -> "Mapping[str, str]":
    from oppa.bench.policies.simulated import figures

    return figures(repeats)


def _policies_simulated_json(repeats: int, tasks: Sequence[str]) -> "Mapping[str, object]":
    from oppa.bench.policies.simulated import to_json

    return to_json(repeats, [int(task) for task in tasks])


def _goodput_pollux(repeats: int, tasks: Sequence[str]) -> "Sequence[Section]":
    from oppa.bench.goodput.pollux import sections

    return sections(repeats, tasks)


SUITES = {
    "help": Suite("`oppa --help` against a bare typer program", _help),
    "start-up": Suite("trial set-up, warm against torchrun", _start_up),
    "prior": Suite("what is predicted against what others measured and published", _prior, repeated=False),
    "overhead": Suite(
        "seconds of a designer's step, against BoTorch's own and against Optuna's", _overhead, when_named=True, tasks=OVERHEAD
    ),
    "machine": Suite("what `priors/hardware/CPU.toml` states, measured here", _machine),
    "stopping": Suite(
        "when repetitions may end early, and how far off estimates are", _stopping, when_named=True, figures=_stopping_figures
    ),
    "profile": Suite("an active profile against an exhaustive one, on simulated clusters", _profile, when_named=True, tasks=PROFILED),
    "goodput-simulated": Suite(
        "time to loss under each policy, on simulated clusters",
        _goodput_simulated,
        when_named=True,
        figures=_goodput_simulated_figures,
        to_json=_goodput_simulated_json,
        tasks=COPUS,
    ),
    "goodput-pollux": Suite(
        "time to Pollux's results under each policy, on its measured step times", _goodput_pollux, when_named=True, tasks=POLLUX
    ),
    "policies-simulated": Suite(
        "learned batches at 8, 16 and 32 simulated workers",
        _policies_simulated,
        when_named=True,
        figures=_policies_simulated_figures,
        to_json=_policies_simulated_json,
        tasks=DYNAMIX,
    ),
    "simulator": Suite("the simulator against what others measured and published", _simulator, when_named=True, repeated=False),
    "calibrate": Suite("the coefficients of `priors/`, fitted to published measurements", _calibrate, when_named=True, repeated=False),
}
