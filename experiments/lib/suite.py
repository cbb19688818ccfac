"""Define the benchmarks of `oppa bench` that run with a number of repeats, and the records that they have of their own."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oppa.bench.declared import Declared
from oppa.bench.registry import RESULTS, Benchmark, Recorded

if TYPE_CHECKING:  # the help imports this module, and must stay fast
    from oppa.report.record import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Describes a benchmark: what it shows, and its functions as `module:function`, which are imported when they run.

    Expensive results are cached, so that the functions share them.
    """

    about: str
    declared: Declared
    """Inputs of its figures."""
    run: str
    """Function that returns the sections. It takes the number of repeats if `repeated`, and the names of tasks if there are `tasks`."""
    figures: str = ""
    """Function that takes the number of repeats and returns SVG by file name, for the record; none if empty."""
    to_json: str = ""
    """Function that returns the figures for `--json` by name, with the arguments of `run`; if empty, `--json` prints the sections."""
    repeated: bool = True
    """The figures depend on the number of repeats."""
    tasks: tuple[str, ...] = ()
    """Names that `--tasks` accepts; if empty, the benchmark has no such option."""
    repeats: int = 7
    """Repeats of its own record."""
    smallest: str = ""
    """Arguments of its shortest command, besides `--repeats 1`."""

    def sections(self, repeats: int, tasks: Sequence[str] | None = None) -> "Sequence[Section]":
        """Run the benchmark, on all its tasks unless some are named, and return its sections."""
        made: Sequence[Section] = _function(self.run)(*self._extent(repeats, tasks))
        return made

    def json_figures(self, repeats: int, tasks: Sequence[str] | None = None) -> Mapping[str, object]:
        """Return the figures for `--json`; only for a suite with `to_json`."""
        found: Mapping[str, object] = _function(self.to_json)(*self._extent(repeats, tasks))
        return found

    def drawn(self, repeats: int) -> Mapping[str, str]:
        """Return the figures of the record as SVG, by file name."""
        found: Mapping[str, str] = _function(self.figures)(repeats) if self.figures else {}
        return found

    def benchmark(self, name: str, recorded: Recorded | None = None) -> Benchmark:
        """Return the benchmark of this name, with a record of its own unless another one is given."""
        own = Recorded(
            folder=RESULTS / name,
            command=f"{name}{f' --repeats {self.repeats}' if self.repeated else ''} --out results/{name}",
            arguments={"repeats": self.repeats} if self.repeated else {},
            declared=self.declared,
        )
        return Benchmark(
            shows=self.about,
            smallest=f"{name} --repeats 1 {self.smallest}".strip(),
            declared=self.declared,
            recorded=(recorded or own,),
            needs_data=recorded is None and bool(self.declared.data),
        )

    def _extent(self, repeats: int, tasks: Sequence[str] | None) -> tuple[object, ...]:
        return (*((repeats,) if self.repeated else ()), *((tasks or self.tasks,) if self.tasks else ()))


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
