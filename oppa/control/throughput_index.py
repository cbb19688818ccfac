"""Index the rows of a throughput table for policies, which evaluate thousands of candidates in a fraction of a millisecond.

Notation (N rows; n candidates, each the fastest micro-batch of a strategy at a global batch; m different batches):
    samples_per_s    T of COPUS eq. 3, the median of its distribution    (n,)
    batches          B_g, sequences                                      (n,)
    layouts          the number of the strategy                          (n,)
    sizes            the different batches, ascending                    (m,)

At one noise scale, goodput is T times a factor of the batch alone. So the factor is computed for m batches in place of n candidates.
"""

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oppa.control.decision import Option
from oppa.errors import InputError, TableError
from oppa.problem.configuration import Configuration
from oppa.problem.training import Scaling
from oppa.table.goodput import goodput
from oppa.table.refinement import StepTimeObservation, posterior, together
from oppa.table.rows import ParallelStrategy, TableRow
from oppa.table.table import Table

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]
BEST = 3
KEPT = 32
"""Number of sets of configurations whose rows are kept."""


class ThroughputIndex:
    """Indexes the candidates of a table. Jobs may share an instance; refining it for a job makes a new one.

    Raises:
        TableError: if the table has no row.
    """

    def __init__(self, table: Table) -> None:
        if not table.rows:
            raise TableError("the table has no row to choose from", hint="continue with `oppa profile`")
        self._rows = _Rows(table.rows)
        self._scaling: Scaling = "sqrt"
        self._saturating = True
        self._choose(np.array([row.steps_per_s for row in table.rows]))

    def scaled(self, scaling: Scaling) -> "ThroughputIndex":
        """Return a copy for a job whose learning rate follows the batch by `scaling`."""
        made = copy.copy(self)
        made._scaling = scaling
        return made

    def as_written(self) -> "ThroughputIndex":
        """Return a copy that uses COPUS eq. 8, in which the learning-rate factor never saturates."""
        made = copy.copy(self)
        made._saturating = False
        return made

    def refined(self, observations: Iterable[StepTimeObservation]) -> "ThroughputIndex":
        """Return candidates refined by step times of training, in about a millisecond; equivalent to `oppa.table.refinement.refined`."""
        seen = together(observations)
        if not seen:
            return self
        made = copy.copy(self)
        made._rows = self._rows.with_strangers([each for each in seen if each not in self._rows.places])
        known = [each for each in seen if each in self._rows.places]
        places = [self._rows.places[each] for each in known]
        rates, _ = posterior(self._rates, self._rows.log_stddevs, places, [seen[each] for each in known])
        strangers = [np.exp(seen[each].mean) for each in made._rows.configurations[len(rates) :]]
        if strangers or not self._rows.keep_choice(self._rates, rates, places):
            made._choose(np.concatenate([rates, strangers]))
        else:
            made._rate(rates)
        return made

    def avoiding(self, configurations: frozenset[Configuration]) -> "ThroughputIndex":
        """Return a copy for one decision, in which a slower micro-batch takes the place of each candidate that is among these.

        A candidate stays if all of its micro-batches are among them.
        """
        if not self.among(configurations).any():
            return self
        made = copy.copy(self)
        made._choose(self._rates, self._rows.places_of(configurations))
        return made

    @property
    def configurations(self) -> Sequence[Configuration]:
        """Return the configurations of all rows, with every micro-batch."""
        return self._rows.configurations

    def largest_batch(self, maximum: float) -> float:
        """Return the largest global batch up to `maximum`; raises InputError if there is none."""
        if not (below := self.batches[self.batches <= maximum]).size:
            raise InputError(f"`maximum = {maximum:g}` is below all batches of the table", hint=f"give at least {self.batches.min():g}")
        return float(below.max())

    def goodputs(self, noise_scale: float) -> Array:
        """Return the goodput of every candidate, shape (n,)."""
        return self.samples_per_s * self._goodput(1.0, self._rows.sizes, noise_scale)[self._size_numbers]

    def largest_goodput(self, noise_scale: float) -> float:
        """Return the largest goodput of all candidates."""
        return float((self._fastest * self._goodput(1.0, self._rows.sizes, noise_scale)).max())

    def measured(self, configuration: Configuration, noise_scale: float, steps_per_s: float) -> Option:
        """Return a configuration with its goodput at a measured speed, independent of the table."""
        samples_per_s = steps_per_s * configuration.global_batch
        worth = float(self._goodput(samples_per_s, configuration.global_batch, noise_scale))
        return Option(configuration=configuration, samples_per_s=samples_per_s, goodput=worth)

    def current(self, configuration: Configuration, noise_scale: float, steps_per_s: float | None) -> Option | None:
        """Return a configuration with its goodput; None if its speed is unknown.

        The speed comes from the table, as for all candidates. `steps_per_s` is used only if the table lacks the configuration.
        """
        place = self._rows.places.get(configuration)
        rate = steps_per_s if place is None else float(self._rates[place])
        if rate is None:
            return None
        return self.measured(configuration, noise_scale, rate)

    def of_layout(self, configuration: Configuration) -> NDArray[np.bool_]:
        """Return a mask of the candidates in the layout of this configuration, shape (n,)."""
        return np.asarray(self.layouts == self._rows.numbers.get(ParallelStrategy.of(configuration), -1))

    def among(self, configurations: frozenset[Configuration]) -> NDArray[np.bool_]:
        """Return a mask of the candidates that are among these configurations, shape (n,)."""
        return np.isin(self._chosen, self._rows.places_of(configurations))

    def configuration(self, index: int) -> Configuration:
        """Return the configuration of candidate number `index`."""
        return self._rows.configurations[int(self._chosen[index])]

    def option(self, index: int, goodputs: Array) -> Option:
        """Return candidate number `index` with its goodput."""
        return Option(
            configuration=self.configuration(index), samples_per_s=float(self.samples_per_s[index]), goodput=float(goodputs[index])
        )

    def best(self, goodputs: Array) -> tuple[Option, ...]:
        """Return up to BEST candidates with the largest goodput, best first."""
        count = min(BEST, len(goodputs))
        largest = np.argpartition(-goodputs, count - 1)[:count]
        return tuple(self.option(int(index), goodputs) for index in largest[np.argsort(-goodputs[largest], kind="stable")])

    def _goodput(self, samples_per_s: ArrayLike, global_batch: ArrayLike, noise_scale: float) -> Array:
        return goodput(samples_per_s, global_batch, noise_scale, scaling=self._scaling, saturating=self._saturating)

    def _choose(self, steps_per_s: Array, last: Sequence[int] | Numbers = ()) -> None:
        """Choose the fastest micro-batch of each strategy at each batch; the first row wins a tie, and the rows `last` lose to others."""
        values = steps_per_s.copy()
        values[np.asarray(last, np.intp)] -= steps_per_s.max()
        self._chosen = self._rows.first_largest(values)
        self.batches, self.layouts = self._rows.batches[self._chosen], self._rows.layouts[self._chosen]
        self._size_numbers = self._rows.size_numbers[self._chosen]
        self._rate(steps_per_s)

    def _rate(self, steps_per_s: Array) -> None:
        """Set the rates of all rows, which choose the same candidates as before."""
        self._rates = steps_per_s
        self.samples_per_s = steps_per_s[self._chosen] * self.batches
        self._fastest = np.zeros(len(self._rows.sizes))
        """Samples per second of the fastest candidate at each batch, shape (m,)."""
        np.maximum.at(self._fastest, self._size_numbers, self.samples_per_s)


class _Rows:
    """Holds the parts of a table's rows that refinement leaves unchanged."""

    def __init__(self, rows: Sequence[TableRow]) -> None:
        self.configurations: list[Configuration] = [row.configuration for row in rows]
        self.log_stddevs = np.array([row.log_stddev for row in rows])
        self.places: Mapping[Configuration, int] = {each: place for place, each in enumerate(self.configurations)}
        self.numbers = dict[ParallelStrategy, int]()
        self.batches = np.array([each.global_batch for each in self.configurations], np.float64)
        self.layouts: Numbers = np.array([self.numbers.setdefault(row.strategy, len(self.numbers)) for row in rows])
        self._group()

    def with_strangers(self, configurations: Sequence[Configuration]) -> "_Rows":
        """Return a copy with rows appended for configurations that are not in the table; `self` if there are none."""
        if not configurations:
            return self
        made = _Rows.__new__(_Rows)
        made.configurations = [*self.configurations, *configurations]
        made.log_stddevs = self.log_stddevs
        made.places = {each: place for place, each in enumerate(made.configurations)}
        made.numbers = dict(self.numbers)
        numbers = [made.numbers.setdefault(ParallelStrategy.of(each), len(made.numbers)) for each in configurations]
        made.batches = np.concatenate([self.batches, [float(each.global_batch) for each in configurations]])
        made.layouts = np.concatenate([self.layouts, numbers])
        made._group()
        return made

    def _places_of(self, configurations: frozenset[Configuration]) -> Numbers:
        """Return the numbers of the rows of these configurations."""
        return np.array([self.places[each] for each in configurations if each in self.places], np.intp)

    def first_largest(self, values: Array) -> Numbers:
        """Return the row with the largest value of each strategy at each batch, of equals the first; in ascending order, shape (n,)."""
        ordered = values[self._order]
        largest = np.maximum.reduceat(ordered, self._starts)[self._groups]
        found = np.flatnonzero(ordered == largest)
        firsts = found[np.diff(self._groups[found], prepend=-1) > 0]
        return np.sort(self._order[firsts])

    def keep_choice(self, before: Array, after: Array, changed: Sequence[int]) -> bool:
        """Return whether both arrays choose the same rows. Except in the `changed` rows, they differ by a common factor."""
        for place in changed:
            start, end = np.searchsorted(self._groups, (self._numbers[place], self._numbers[place] + 1))
            group = self._order[start:end]
            if np.argmax(before[group]) != np.argmax(after[group]):
                return False
        return True

    def _group(self) -> None:
        """Number the batches, and sort the rows by their pairs of strategy and batch, so that a choice from each pair sorts nothing."""
        self.sizes, self.size_numbers = np.unique(self.batches, return_inverse=True)
        _, self._numbers = np.unique(self.size_numbers * len(self.numbers) + self.layouts, return_inverse=True)
        self._order: Numbers = np.argsort(self._numbers, kind="stable")
        self._groups: Numbers = self._numbers[self._order]
        self._starts: Numbers = np.flatnonzero(np.diff(self._groups, prepend=-1))
        self.places_of = functools.lru_cache(maxsize=KEPT)(self._places_of)
        """Places of a set of thousands of configurations, kept because the next decisions of a job mostly have the same set."""
