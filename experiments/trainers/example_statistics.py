"""Train the example of a trainer with gradient statistics, as a trial, and write the times of its steps.

Its first argument names the example, and the others are those of the example. It runs under torchrun with the variable `OPPA_TRIAL`.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from experiments.trainers.timed_statistics import TimedStatistics, write_times


def main() -> None:
    """Train, and write the times."""
    example = Path(__file__).parents[2] / "examples" / f"{sys.argv[1]}.py"
    sys.path.insert(0, str(example.parent))  # as for a script, which may import its neighbours
    spec = importlib.util.spec_from_file_location(sys.argv[1], example)
    assert spec is not None and spec.loader is not None
    program: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    torch.set_num_threads(1)
    sys.argv = [str(example), *sys.argv[2:]]
    program.GradientStatistics = TimedStatistics
    try:
        program.main()
    finally:
        write_times()


if __name__ == "__main__":
    main()
