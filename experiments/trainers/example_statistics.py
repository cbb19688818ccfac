"""Time steps of the example of a trainer with and without gradient statistics, in turn, as a trial.

Its first argument names the example, and the second one is the interval of measured steps; 0 leaves it to the statistics. The others are
those of the example. It runs under torchrun with the variable `OPPA_TRIAL`. Step times are in blocks of `BLOCK` steps, of which the first
is a warm-up. Each rank writes a file `cpu-RANK.json` into the trial's folder: the CPU seconds of its steps, and which were measured.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLOCK = 9
"""Steps of a block; a pair is a block with statistics and one without. All but the first are as many as the longest interval."""


def measured(step: int) -> bool:
    """Return True if the block of a step has statistics; each pair begins with the other kind."""
    pair, second = divmod(step // BLOCK, 2)
    return (pair % 2 == 0) == (second == 0)


def costs(step_times_s: Sequence[float]) -> list[float]:
    """Return the seconds with statistics over those without, minus 1, for each pair of blocks."""
    found = []
    for begin in range(0, len(step_times_s) // (2 * BLOCK) * 2 * BLOCK, 2 * BLOCK):
        seconds = {measured(start): sum(step_times_s[start + 1 : start + BLOCK]) for start in (begin, begin + BLOCK)}
        found.append(seconds[True] / seconds[False] - 1)
    return found


def main() -> None:
    """Train with statistics in every other block."""
    import torch

    from oppa.training import GradientStatistics

    example = Path(__file__).parents[2] / "examples" / f"{sys.argv[1]}.py"
    spec = importlib.util.spec_from_file_location(sys.argv[1], example)
    assert spec is not None and spec.loader is not None
    program: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)

    begins_s: list[float] = []
    is_measured: list[bool] = []
    every = int(sys.argv[2]) or None

    class Alternating(GradientStatistics):
        """Has statistics in every other block, and reads the CPU's clock when a step begins."""

        def begin(self, plan: Any, replicas: int) -> None:
            """Begin a step."""
            if measured(len(begins_s)):
                super().begin(dataclasses.replace(plan, statistics_every=every), replicas)
            else:
                self.pause()
            begins_s.append(time.process_time())
            is_measured.append(not self.paused)

    torch.set_num_threads(1)
    sys.argv = [str(example), *sys.argv[3:]]
    program.GradientStatistics = Alternating
    try:
        program.main()
    finally:
        seconds = [end - begin for begin, end in itertools.pairwise(begins_s)]
        found = {"seconds": seconds, "measured": is_measured}
        Path(os.environ["OPPA_TRIAL"], f"cpu-{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
