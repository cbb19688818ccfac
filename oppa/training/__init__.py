"""The training core: one optimizer step under any parallel layout, on gloo and CPUs or NCCL and CUDA devices alike."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppa.training.gradient_statistics import GradientStatistics

__all__ = ["GradientStatistics"]


def __getattr__(name: str) -> Any:
    """`GradientStatistics`, imported when it is asked for: `rules` do without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oppa.training.gradient_statistics import GradientStatistics

    return GradientStatistics
