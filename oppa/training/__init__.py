"""The training core: one optimizer step under any parallel layout, on gloo and CPUs or NCCL and CUDA devices alike."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppa.training.adaptive_batch import NormTest
    from oppa.training.gradient_statistics import GradientStatistics

__all__ = ["GradientStatistics", "NormTest"]
_WHERE = {"GradientStatistics": "gradient_statistics", "NormTest": "adaptive_batch"}


def __getattr__(name: str) -> Any:
    """What is for loops of one's own, imported when it is asked for: `rules` do without torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
