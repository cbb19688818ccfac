"""Run oppa's own training core as a trial, with one process per rank."""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `rank`
import rank

sys.path.pop(0)  # its folders would shadow the frameworks of the same names

from oppa.training.replica import Replica

run = functools.partial(rank.run, Replica)

if __name__ == "__main__":
    rank.main(Replica)
