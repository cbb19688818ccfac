"""Find the libraries that tests of loops need and that may be missing, and mark such tests."""

import importlib.util

import pytest

from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.trials.runner import load_runner

DEEPSPEED = [pytest.mark.slow, pytest.mark.environment]
TORCHTITAN = [
    *DEEPSPEED,
    pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="NOT TESTED with torchtitan, which is not installed"),
]


def deepspeed_python() -> str:
    """The interpreter of DeepSpeed's environment; skips a test if there is none."""
    try:
        runner = load_runner(catalog.find("runners", "deepspeed"))
    except EnvironmentLackingError as lacking:
        pytest.skip(f"{lacking.message}; {lacking.hint}")
    return str(runner.python)
