"""The training core runs optimizer steps under any parallel layout, on CPUs with gloo or on CUDA devices with NCCL."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppa.training.statistics.adaptive_batch import NormTest
    from oppa.training.statistics.gradient_statistics import GradientStatistics
    from oppa.training.statistics.statistics_check import check_gradient_statistics

__all__ = ["GradientStatistics", "NormTest", "check_gradient_statistics"]
_WHERE = {
    "GradientStatistics": "statistics.gradient_statistics",
    "NormTest": "statistics.adaptive_batch",
    "check_gradient_statistics": "statistics.statistics_check",
}


def __getattr__(name: str) -> Any:
    """Import the names for users' own training loops on first access, so that `supported_layouts` can be imported without torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
