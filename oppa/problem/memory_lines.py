"""Recognise the lines of a program's output that report a lack of memory."""

import errno
import re

from oppa.problem.command import OUT_OF_MEMORY, StepFormat

_OF_LIBRARIES = re.compile(
    rf"{OUT_OF_MEMORY}|(?i:out[ -]?of[ -]?memory|oom[ _-]?kill)|std::bad_alloc|\[Errno {errno.ENOMEM}\]"
    r"|\b(?:CU|HIP)[A-Z_]+_ALLOC(?:ATION)?_FAILED|cudaErrorMemoryAllocation|Failed to CUDA (?:host |[mc])alloc"
)
"""Such lines of Python, C++, CUDA's libraries, NCCL, ROCm, cgroups and Slurm, whatever pattern is stated."""
_HARMLESS = re.compile(r"(?<!=)\b(?:INFO|WARNING)\b|\bIf (?:you are .*)?out[ -]of[ -]memory|out of resource")
"""Lines of a log's lower levels, advice, and kernels that Triton skips because they exceed the shared memory of an SM."""
_FAILURE = re.compile(r"Error\b|Exception\b|[Ff]ail|FAILED|RESOURCE_EXHAUSTED|[Kk]ill|terminate called|(?i:error: |fatal)")


def reports_lack_of_memory(text: str, steps: StepFormat | None) -> bool:
    """Return whether a line reports a lack of memory, by the stated pattern or as libraries do."""
    return _is_as_stated(text, steps) or (_OF_LIBRARIES.search(text) is not None and not _HARMLESS.search(text))


def reports_failure(text: str, steps: StepFormat | None) -> bool:
    """Return whether a line that reports a lack of memory states that something failed. Otherwise, it may be a remark."""
    return _is_as_stated(text, steps) or _FAILURE.search(text) is not None


def _is_as_stated(text: str, steps: StepFormat | None) -> bool:
    return steps is not None and steps.out_of_memory != OUT_OF_MEMORY and re.search(steps.out_of_memory, text) is not None
