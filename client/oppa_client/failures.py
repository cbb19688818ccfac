"""Classify the errors that end a training program."""

from __future__ import annotations

import errno

OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "alloc_cpu.cpp", "std::bad_alloc"),
    *("_ALLOC_FAILED", "_ALLOCATION_FAILED", "Failed to CUDA calloc", "Failed to CUDA malloc", "Failed to CUDA host alloc"),
)
"""Words in the messages of failed allocations, the latter by the libraries of CUDA and ROCm."""


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return True if `error`, or an error that caused it, is a failed allocation, whichever library raised it."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY):
            return True
        error = error.__cause__
    return False
