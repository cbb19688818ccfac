"""Recognise the lines of a program's output that report a lack of memory."""

import re

from oppa.problem.command import OUT_OF_MEMORY, StepFormat

OF_LIBRARIES = r"(?i:out[ -]?of[ -]?memory|oom[ _-]?kill)|CU[A-Z]+_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|Failed to CUDA [mc]alloc"
"""Pattern of such lines of CUDA's libraries, NCCL, ROCm, cgroups and Slurm, whatever pattern is stated."""


def reports_lack_of_memory(text: str, steps: StepFormat | None) -> bool:
    """Return whether a line reports a lack of memory, by the stated pattern or as libraries do."""
    return any(re.search(pattern, text) for pattern in (steps.out_of_memory if steps else OUT_OF_MEMORY, OF_LIBRARIES))
