"""The rows of a table as a policy weighs them: all at once, thousands in a fraction of a millisecond.

Notation (n offers: of each strategy at each global batch the fastest micro-batch; k = 3 that are best):
    samples_per_s    T of COPUS eq. 3, the median belief      (n,)
    batches          B_g, sequences                           (n,)
    layouts          the number of the strategy               (n,)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import Option
from oppa.errors import TableError
from oppa.problem.configuration import Configuration
from oppa.table.goodput import Optimizer, goodput
from oppa.table.rows import Row, Strategy
from oppa.table.table import Table

Array = NDArray[np.float64]
BEST = 3


class Offers:
    """What a table offers; raises TableError if that is nothing."""

    def __init__(self, table: Table, *, optimizer: Optimizer = "adam") -> None:
        rows: Sequence[Row] = list(table.fastest().values())
        if not rows:
            raise TableError("the table has no row to choose from", hint="go on with `oppa profile`")
        numbers: dict[Strategy, int] = {}
        self.layouts = np.array([numbers.setdefault(row.strategy, len(numbers)) for row in rows])
        self.samples_per_s = np.array([row.samples_per_s for row in rows])
        self.batches = np.array([row.configuration.global_batch for row in rows], np.float64)
        self._configurations = [row.configuration for row in rows]
        self._rates = {row.configuration: row.samples_per_s for row in table.rows}
        self._numbers, self._optimizer = numbers, optimizer

    def goodputs(self, noise_scale: float) -> Array:
        """Of all offers, shape (n,)."""
        return goodput(self.samples_per_s, self.batches, noise_scale, optimizer=self._optimizer)

    def current(self, configuration: Configuration, noise_scale: float, steps_per_s: float | None) -> Option | None:
        """What a configuration is worth: by the table, as all others, else by what was measured of it; None if neither knows it."""
        samples_per_s = self._rates.get(configuration)
        if samples_per_s is None:
            if steps_per_s is None:
                return None
            samples_per_s = steps_per_s * configuration.global_batch
        worth = goodput(samples_per_s, configuration.global_batch, noise_scale, optimizer=self._optimizer)
        return Option(configuration=configuration, samples_per_s=samples_per_s, goodput=float(worth))

    def of_layout(self, configuration: Configuration) -> NDArray[np.bool_]:
        """Which offers need no other layout than this configuration, shape (n,)."""
        return np.asarray(self.layouts == self._numbers.get(Strategy.of(configuration), -1))

    def among(self, configurations: frozenset[Configuration]) -> NDArray[np.bool_]:
        """Which offers are one of these, shape (n,)."""
        if not configurations:
            return np.zeros(len(self.batches), bool)
        return np.array([each in configurations for each in self._configurations])

    def option(self, index: int, goodputs: Array) -> Option:
        """An offer, by its number."""
        return Option(
            configuration=self._configurations[index], samples_per_s=float(self.samples_per_s[index]), goodput=float(goodputs[index])
        )

    def best(self, goodputs: Array) -> tuple[Option, ...]:
        """The few with the largest goodput, best first."""
        count = min(BEST, len(goodputs))
        largest = np.argpartition(-goodputs, count - 1)[:count]
        return tuple(self.option(int(index), goodputs) for index in largest[np.argsort(-goodputs[largest], kind="stable")])
