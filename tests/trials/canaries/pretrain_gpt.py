"""Megatron-LM's own program of this name on CPUs; it notes when its iterations end."""

import importlib.util
import runpy
import sys
from pathlib import Path

import writing
from cuda_on_cpu import OnCpu, replace_cuda


def main():
    replace_cuda()
    from megatron.training import training

    step = training.train_step

    def noted(*arguments, **options):
        done = step(*arguments, **options)
        writing.end_step()
        return done

    training.train_step = noted
    checkout = Path(importlib.util.find_spec("megatron.training").origin).parents[2]
    sys.path.insert(0, str(checkout))
    with OnCpu():
        runpy.run_path(str(checkout / "pretrain_gpt.py"), run_name="__main__")


if __name__ == "__main__":
    main()
