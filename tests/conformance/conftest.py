"""The small problem of tests/tuning, and its landscape."""

from tests.tuning.conftest import candidates, landscape, make, make_problem, problem

__all__ = ["candidates", "landscape", "make", "make_problem", "problem"]
