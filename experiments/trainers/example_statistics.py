"""Time steps of the example of a trainer with and without gradient statistics, in turn, as a trial.

Its first argument names the example, and the others are those of the example. It runs under torchrun with the variable `OPPA_TRIAL`.
Step times are in blocks of `BLOCK` steps, of which the first is a warm-up. Each rank writes the CPU seconds of its steps into the trial's
folder, in a file `cpu-RANK.json`.
"""

import importlib.util
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLOCK = 6
"""Steps of a block; a pair is a block with statistics and one without."""


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

    class Alternating(GradientStatistics):
        """Measures every other block, and reads the CPU's clock when a step begins."""

        taken = -1

        def resume(self) -> None:
            """Begin a step: measure it, or do not; the first call is that of the constructor."""
            if measured(max(0, self.taken)):
                super().resume()
            else:
                self.pause()
            if self.taken >= 0:
                begins_s.append(time.process_time())
            self.taken += 1

    torch.set_num_threads(1)
    sys.argv = [str(example), *sys.argv[2:]]
    program.GradientStatistics = Alternating
    try:
        program.main()
    finally:
        seconds = [end - begin for begin, end in itertools.pairwise(begins_s)]
        Path(os.environ["OPPA_TRIAL"], f"cpu-{os.environ['RANK']}.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
