"""Run a program whose gradient statistics compare workers, where it compares micro-batches: `over_workers.py PROGRAM ARGUMENTS`."""

import functools
import runpy
import sys

import oppa.training

oppa.training.GradientStatistics = functools.partial(oppa.training.GradientStatistics, over="workers")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
