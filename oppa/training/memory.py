"""Memory on a CPU as on an accelerator: a peak that can be measured and a limit that is enforced.

CUDA counts and limits by itself. For the CPU, torch's profiler lists every allocation and release of tensors, from which the
peak follows; and the kernel refuses to grow the process's data beyond a limit, so that an allocation fails with an exception.
"""

import contextlib
import ctypes
import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.autograd.profiler import profile

_ALLOCATOR_MESSAGES = ("DefaultCPUAllocator", "not enough memory", "std::bad_alloc", "Cannot allocate memory")
_M_ARENA_MAX = -8


class PeakMemory:
    """The most bytes of tensors that were alive at once on this rank since `watch` was entered."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak_bytes: int | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """On a CPU, measures what runs inside: from before the model is built to the end of the first step."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            yield
            return
        with profile(use_kineto=True, profile_memory=True) as profiler:
            yield
        results = profiler.kineto_results
        assert results is not None
        self._peak_bytes = _peak([(event.start_ns(), event.name(), event.nbytes()) for event in results.events()])

    def bytes(self) -> int | None:
        """The peak so far; None while the CPU's is being measured."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else self._peak_bytes


def _peak(events: list[tuple[int, str, int]]) -> int:
    """The peak of a steady step, from the events (time, name, bytes) up to the end of the first one.

    The first update allocates the optimizer's state when the activations are gone; from the second step on both are alive at once.
    """
    alive = peak = 0
    marks: dict[str, tuple[int, int]] = {}
    for _, name, size in sorted(events):
        if name == "[memory]":
            alive += size
            peak = max(peak, alive)
        elif name.startswith("Optimizer."):
            marks.setdefault(name.partition("#")[0], (alive, peak))
    alive_before, peak_before = marks["Optimizer.step"]
    alive_behind, _ = marks["Optimizer.zero_grad"]
    return max(peak, peak_before + alive_behind - alive_before)


@contextlib.contextmanager
def memory_limit(limit_bytes: int | None, device: torch.device) -> Iterator[None]:
    """Let allocations fail beyond `limit_bytes` more than this process holds now; lifted at the end, so that a failure can be told."""
    if limit_bytes is None:
        yield
        return
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
        yield
        return
    # One arena: each further one would reserve tens of MB that the limit counts and no tensor uses.
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, here or in what caused `error` (a pipeline schedule wraps what its stages raise)."""
    for link in _chain(error):
        if isinstance(link, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(link, OSError) and link.errno == errno.ENOMEM:
            return True
        if isinstance(link, RuntimeError) and any(message in str(link) for message in _ALLOCATOR_MESSAGES):
            return True
    return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _data_bytes() -> int:
    """What the kernel counts against RLIMIT_DATA: private writable memory, the stacks of threads included."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmData:")[1].split()[0]) << 10
