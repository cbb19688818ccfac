"""Find the experiments and timings: a checkout has them in `experiments`, an installed package does not."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from oppa import catalog
from oppa.errors import EnvironmentLackingError

if TYPE_CHECKING:
    from oppa.bench.registry import Benchmark

NAMES = (
    *("all", "help", "start-up", "ray-start-up", "trial-reading", "elastic-restart", "machine", "overhead", "prior"),
    *("calibrate", "simulator", "stopping", "profile", "control", "service", "goodput", "goodput-simulated"),
    *("goodput-pollux", "norm-test", "norm-test-fsdp", "policies", "policies-simulated", "schedule", "pipelines"),
    *("cluster-sim", "trainers", "trainers-goodput", "trainers-goodput-gpu", "faults", "proxy", "transfer", "libraries", "drift"),
)
"""Names of the experiments, as arguments of `oppa bench`."""


def is_checkout() -> bool:
    """Return whether this is a checkout, which has the experiments."""
    return (catalog.root() / "experiments" / "registry.py").is_file()


def require_checkout(name: str) -> None:
    """Check that an experiment can run.

    Raises:
        EnvironmentLackingError: this is an installed package.
    """
    if not is_checkout():
        hint = "clone the repository, run `make setup` in it, and use its `oppa`"
        raise EnvironmentLackingError(f"`oppa bench {name}` runs an experiment and needs a checkout", hint=hint)


def benchmarks() -> "Mapping[str, Benchmark]":
    """Return the experiments' records and inputs; none without a checkout."""
    found: Mapping[str, Benchmark] = _registry().BENCHMARKS if is_checkout() else {}
    return found


def commands() -> Mapping[str, Callable[..., None]]:
    """Return the experiments' command lines, by name; none without a checkout."""
    found: Mapping[str, Callable[..., None]] = _registry().commands() if is_checkout() else {}
    return found


def _registry() -> Any:
    root = str(catalog.root())
    if root not in sys.path:
        sys.path.append(root)  # at the end, so that nothing in the checkout shadows a library
    return importlib.import_module("experiments.registry")
