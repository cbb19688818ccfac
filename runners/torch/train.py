"""oppa's own training core as a trial: one process per rank."""

import functools

import rank

from oppa.training.replica import Replica

run = functools.partial(rank.run, Replica)

if __name__ == "__main__":
    rank.main(Replica)
