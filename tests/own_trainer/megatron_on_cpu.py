"""Run a program of Megatron-LM on CPUs, with the call that connects it to oppa: `megatron_on_cpu.py PROGRAM ARGUMENTS`.

With the variable `GRADIENT_STATISTICS`, the gradients are measured as well.
"""

import os
import runpy
import sys
from pathlib import Path

from tests.trials.canaries.cuda_on_cpu import OnCpu, replace_cuda


def main() -> None:
    """Run the program under `supervise`."""
    _, program, *words = sys.argv
    sys.argv = [program, *words]
    sys.path.insert(0, str(Path(program).parent))
    replace_cuda()
    from oppa_client.megatron import supervise

    from oppa.training import GradientStatistics

    with OnCpu():
        supervise(statistics=GradientStatistics if "GRADIENT_STATISTICS" in os.environ else None)
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
