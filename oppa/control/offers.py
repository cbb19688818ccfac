"""The rows of a table as a policy weighs them: all at once, thousands in a fraction of a millisecond.

Notation (N rows; n offers: of each strategy at each global batch the fastest micro-batch; k = 3 that are best):
    samples_per_s    T of COPUS eq. 3, the median belief      (n,)
    batches          B_g, sequences                           (n,)
    layouts          the number of the strategy               (n,)
"""

import copy
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oppa.control.decision import Option
from oppa.errors import TableError
from oppa.problem.configuration import Configuration
from oppa.problem.training import Scaling
from oppa.table.goodput import goodput
from oppa.table.refinement import Observation, posterior, together
from oppa.table.rows import Row, Strategy
from oppa.table.table import Table

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]
BEST = 3


class Offers:
    """What a table offers; many jobs may share one, and each has its own when training has refined it.

    Raises:
        TableError: if that is nothing.
    """

    def __init__(self, table: Table) -> None:
        if not table.rows:
            raise TableError("the table has no row to choose from", hint="go on with `oppa profile`")
        self._rows = _Rows(table.rows)
        self._scaling: Scaling = "sqrt"
        self._saturating = True
        self._choose(np.array([row.steps_per_s for row in table.rows]))

    def scaled(self, scaling: Scaling) -> "Offers":
        """The same to a job whose learning rate follows the batch so."""
        made = copy.copy(self)
        made._scaling = scaling
        return made

    def as_written(self) -> "Offers":
        """The same by COPUS eq. 8, in which the learning rate counts always."""
        made = copy.copy(self)
        made._saturating = False
        return made

    def refined(self, observations: Iterable[Observation]) -> "Offers":
        """With what training has seen, as `oppa.table.refinement.refined` has it: these once more, in a millisecond."""
        seen = together(observations)
        if not seen:
            return self
        made = copy.copy(self)
        made._rows = self._rows.with_strangers([each for each in seen if each not in self._rows.places])
        known = [each for each in seen if each in self._rows.places]
        places = [self._rows.places[each] for each in known]
        rates, _ = posterior(self._rates, self._rows.log_stddevs, places, [seen[each] for each in known])
        strangers = [np.exp(seen[each].mean) for each in made._rows.configurations[len(rates) :]]
        made._choose(np.concatenate([rates, strangers]))
        return made

    @property
    def configurations(self) -> Sequence[Configuration]:
        """Of all rows, every micro-batch among them."""
        return self._rows.configurations

    def goodputs(self, noise_scale: float) -> Array:
        """Of all offers, shape (n,)."""
        return self._goodput(self.samples_per_s, self.batches, noise_scale)

    def measured(self, configuration: Configuration, noise_scale: float, steps_per_s: float) -> Option:
        """What a configuration is worth at the speed that it has shown, whatever the table says."""
        samples_per_s = steps_per_s * configuration.global_batch
        worth = float(self._goodput(samples_per_s, configuration.global_batch, noise_scale))
        return Option(configuration=configuration, samples_per_s=samples_per_s, goodput=worth)

    def current(self, configuration: Configuration, noise_scale: float, steps_per_s: float | None) -> Option | None:
        """What a configuration is worth: by the table, as all others, else by what was measured of it; None if neither knows it."""
        place = self._rows.places.get(configuration)
        rate = steps_per_s if place is None else float(self._rates[place])
        if rate is None:
            return None
        return self.measured(configuration, noise_scale, rate)

    def of_layout(self, configuration: Configuration) -> NDArray[np.bool_]:
        """Which offers need no other layout than this configuration, shape (n,)."""
        return np.asarray(self.layouts == self._rows.numbers.get(Strategy.of(configuration), -1))

    def among(self, configurations: frozenset[Configuration]) -> NDArray[np.bool_]:
        """Which offers are one of these, shape (n,)."""
        return np.isin(self._chosen, [self._rows.places[each] for each in configurations if each in self._rows.places])

    def configuration(self, index: int) -> Configuration:
        """Of an offer, by its number."""
        return self._rows.configurations[int(self._chosen[index])]

    def option(self, index: int, goodputs: Array) -> Option:
        """An offer, by its number."""
        return Option(
            configuration=self.configuration(index), samples_per_s=float(self.samples_per_s[index]), goodput=float(goodputs[index])
        )

    def best(self, goodputs: Array) -> tuple[Option, ...]:
        """The few with the largest goodput, best first."""
        count = min(BEST, len(goodputs))
        largest = np.argpartition(-goodputs, count - 1)[:count]
        return tuple(self.option(int(index), goodputs) for index in largest[np.argsort(-goodputs[largest], kind="stable")])

    def _goodput(self, samples_per_s: ArrayLike, global_batch: ArrayLike, noise_scale: float) -> Array:
        return goodput(samples_per_s, global_batch, noise_scale, scaling=self._scaling, saturating=self._saturating)

    def _choose(self, steps_per_s: Array) -> None:
        """Of each strategy at each batch the fastest micro-batch, of equals the first."""
        order = np.lexsort((-steps_per_s, self._rows.groups))  # stable
        groups = self._rows.groups[order]
        self._chosen: Numbers = np.sort(order[np.flatnonzero(np.diff(groups, prepend=-1))])
        self._rates = steps_per_s
        self.batches, self.layouts = self._rows.batches[self._chosen], self._rows.layouts[self._chosen]
        self.samples_per_s = steps_per_s[self._chosen] * self.batches


class _Rows:
    """What training does not change of a table's rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.configurations: list[Configuration] = [row.configuration for row in rows]
        self.log_stddevs = np.array([row.log_stddev for row in rows])
        self.places: Mapping[Configuration, int] = {each: place for place, each in enumerate(self.configurations)}
        self.numbers = dict[Strategy, int]()
        self.batches = np.array([each.global_batch for each in self.configurations], np.float64)
        self.layouts: Numbers = np.array([self.numbers.setdefault(row.strategy, len(self.numbers)) for row in rows])
        self.groups = self._grouped()

    def with_strangers(self, configurations: Sequence[Configuration]) -> "_Rows":
        """With what training was in, and the table does not have; the same where that is nothing."""
        if not configurations:
            return self
        made = _Rows.__new__(_Rows)
        made.configurations = [*self.configurations, *configurations]
        made.log_stddevs = self.log_stddevs
        made.places = {each: place for place, each in enumerate(made.configurations)}
        made.numbers = dict(self.numbers)
        numbers = [made.numbers.setdefault(Strategy.of(each), len(made.numbers)) for each in configurations]
        made.batches = np.concatenate([self.batches, [float(each.global_batch) for each in configurations]])
        made.layouts = np.concatenate([self.layouts, numbers])
        made.groups = made._grouped()
        return made

    def _grouped(self) -> Numbers:
        """The number of each row's strategy and batch, shape (N,)."""
        _, batches = np.unique(self.batches, return_inverse=True)
        return np.asarray(batches * len(self.numbers) + self.layouts)
