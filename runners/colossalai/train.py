"""Train under ColossalAI's HybridParallelPlugin as a trial, with one process per rank."""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `rank`
import rank

sys.path.pop(0)  # its folders would shadow the frameworks of the same names

sys.path.insert(0, str(Path(__file__).parent))  # for the modules in this folder; the program may be imported from elsewhere

import importing
from colossalai.accelerator import set_accelerator

with importing.undemanding():
    import cpu_shim
    from hybrid import Hybrid


def build(spec, mesh):
    """Return this rank's part of the model."""
    if mesh.device.type == "cpu":
        cpu_shim.install()
    else:
        set_accelerator(mesh.device.type)
    return Hybrid(spec, mesh)


run = functools.partial(rank.run, build)

if __name__ == "__main__":
    rank.main(build)
