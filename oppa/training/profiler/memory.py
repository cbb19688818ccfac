"""Measure the peak of tensor memory and enforce a limit on it, on a CPU as on an accelerator.

CUDA measures and limits memory itself, in every step. On a CPU, the two steps of the warm-up do so. In the first, torch's profiler records
the bytes of all tensors at every allocation and release, from which a step's peak is computed. In both, the kernel limits the data of the
process to what it held before the model was built, plus the limit. An allocation beyond it raises an exception. The limit is loose in the
first step (1.25 times the limit and 64 MiB), because the profiler's records need room. It is exact in the second. The timed steps repeat
the second step. They have no limit, because malloc then keeps more memory than it needs, for speed.

The profiler follows threads that torch's own code started, and these only while they work for the step. A thread of gloo lets go of a
collective's tensors after its work. If it is the last one to do so, the release is not recorded, and the tensors would count for ever. So
what is alive comes from the allocator's count, which `all_threads_counted` makes complete, and not from the sum of what was recorded.
"""

import contextlib
import ctypes
import errno
import re
import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch.autograd.profiler import profile

from oppa.problem.memory_lines import reports_lack_of_memory
from oppa.training.torch_internals import (
    AllocationEvent,
    ProfilerEvent,
    RecordScope,
    all_threads_counted,
    disable_profiler,
    enable_profiler,
    prepare_profiler,
)
from oppa.units import format_bytes

_ON_CPUS = ("DefaultCPUAllocator", "not enough memory", "Cannot allocate memory")  # in torch's own messages
_ONEDNN = "could not create a primitive"  # observed when generated code does not fit; an unsupported primitive has a longer message

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_EXACT_BYTES, _FAST_BYTES = 256 << 10, 32 << 20
# From 256 KiB on, every tensor has its own pages and returns them. The process then holds 7 % more than the tensors' bytes; with malloc's
# default it holds 30-100 % more. Steps take 30 % longer, though. 32 MiB is the value that malloc's dynamic threshold reaches.

_SLACK, _SLACK_BYTES = 0.25, 64 << 20
# The profiler's records need room, too. While it runs, an allocation fails only far beyond the limit.

_PAUSES, _PAUSE_S = 4, 0.005
_MARK = "oppa mark"


class PeakMemory:
    """Measures the peak bytes of live tensors on this rank since `watch` was entered."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak_bytes = 0
        self.held_bytes = 0
        """Bytes held after the watched block: live tensors, and free memory that malloc keeps; 0 on CUDA, which counts itself."""
        self.marks: list[tuple[int, int]] = []
        """Live bytes at each mark, and the peak since the mark before; on a CPU, available after `watch` has ended."""

    def mark(self) -> None:
        """Record the memory at this moment of the watched block."""
        if self._device.type != "cuda":
            with torch.profiler.record_function(_MARK):
                return
        self.marks.append((torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)))
        torch.cuda.reset_peak_memory_stats(self._device)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Measure the block: from before the model is built to the end of the first step. On CUDA, this only resets the peak."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            yield
            return
        free_bytes = _free_bytes()
        profiler = profile(use_kineto=True, profile_memory=True)
        config, activities = profiler.config(create_trace_id=False), profiler.kineto_activities
        prepare_profiler(config, activities)
        # The profiler's own context manager records every operation: six times as many records (156,982, not 26,882), and seconds per step.
        with all_threads_counted():
            enable_profiler(config, activities, {RecordScope.USER_SCOPE})  # type: ignore[call-arg]
            try:
                yield
            finally:
                _let_threads_settle()
                torch.empty(1)  # a last event, which counts what these threads have released
                results = disable_profiler()
        history = _history(results.experimental_event_tree())
        self._peak_bytes, self.marks = _peak(history), _marks(history)
        _, alive_bytes = history[-1]
        del history, results
        self.held_bytes = alive_bytes + max(0, _free_bytes() - free_bytes)

    def bytes(self) -> int:
        """Return the peak so far."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else self._peak_bytes


def _let_threads_settle() -> None:
    """Wait until gloo's threads have reported their finished work to the profiler.

    They do so shortly after the waiting thread continues. A report after the profiler has stopped crashes the process (5 of 200 runs).
    Several short pauses are needed, because a CPU quota may run this thread first after a single one.
    """
    for _ in range(_PAUSES):
        time.sleep(_PAUSE_S)


def _history(events: Iterable[ProfilerEvent]) -> list[tuple[str, int]]:
    """Return the names of all events in their order, each with the bytes of tensors that are alive after it."""
    history, alive_bytes, before_bytes = list[tuple[str, int]](), 0, None
    for event in sorted(_with_children(events), key=lambda event: event.start_time_ns):
        change = event.extra_fields
        if isinstance(change, AllocationEvent):
            if before_bytes is None:
                before_bytes = change.total_allocated - change.alloc_size
            alive_bytes = change.total_allocated - before_bytes
        history.append((event.name, alive_bytes))
    return history


def _with_children(events: Iterable[ProfilerEvent]) -> Iterator[ProfilerEvent]:
    for event in events:
        yield event
        yield from _with_children(event.children)


def _peak(history: list[tuple[str, int]]) -> int:
    """Compute the peak of a steady step from the history up to the end of the first step.

    The first update allocates the optimizer's state after the activations are freed. From the second step on, both are alive at once.
    """
    peak = 0
    marks: dict[str, tuple[int, int]] = {}
    for name, alive in history:
        peak = max(peak, alive)
        if name.startswith("Optimizer."):
            marks.setdefault(name.partition("#")[0], (alive, peak))
    if "Optimizer.step" not in marks:  # gradients were not finite
        return peak
    alive_before, peak_before = marks["Optimizer.step"]
    alive_behind, _ = marks["Optimizer.zero_grad"]
    return max(peak, peak_before + alive_behind - alive_before)


def _marks(history: list[tuple[str, int]]) -> list[tuple[int, int]]:
    """Return the live bytes at each mark, and the peak since the mark before."""
    peak = 0
    found = []
    for name, alive in history:
        peak = max(peak, alive)
        if name == _MARK:
            found.append((alive, peak))
            peak = alive
    return found


@contextlib.contextmanager
def exact_pages(device: torch.device) -> Iterator[None]:
    """Make malloc hold at most 7% more than the tensors' bytes on a CPU, so that the kernel's count is what tensors need."""
    if device.type == "cuda":
        yield
        return
    _tune_malloc(_EXACT_BYTES)
    try:
        yield
    finally:
        _tune_malloc(_FAST_BYTES)


def keep_pages(device: torch.device) -> None:
    """Make malloc keep freed memory on a CPU, as in the timed steps of a trial; otherwise each step faults its pages in again."""
    if device.type != "cuda":
        _tune_malloc(_FAST_BYTES)


@contextlib.contextmanager
def memory_limit(limit_bytes: int | None, device: torch.device, *, held_bytes: int = 0, room: bool = False) -> Iterator[None]:
    """Make allocations beyond a limit fail; on a CPU, only inside the block.

    Args:
        limit_bytes: Limit of this rank; None for no limit.
        device: Device of this rank.
        held_bytes: Bytes that count against the limit and are allocated already; used on a CPU only.
        room: Leave room for the profiler's records, so that only allocations far beyond the limit fail; used on a CPU only.
    """
    if device.type == "cuda":
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (limit_bytes or total_bytes) / total_bytes), device)
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes is not None:
        more = int(limit_bytes * (1 + _SLACK)) + _SLACK_BYTES if room else limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + max(0, more - held_bytes), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))  # before a failure is handled, so that it can be reported


@contextlib.contextmanager
def beyond_the_limit(device: torch.device) -> Iterator[None]:
    """Raise a CPU's limit by the bytes that the block adds: stacks of process groups' threads are not device memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if device.type == "cuda" or soft == hard:
        yield
        return
    before_bytes = _data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft + _data_bytes() - before_bytes, hard))


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` or one of its causes is a failed allocation (a pipeline schedule wraps the errors of its stages)."""
    for link in _chain(error):
        if isinstance(link, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(link, OSError) and link.errno == errno.ENOMEM:
            return True
        if isinstance(link, RuntimeError) and _is_of_memory(str(link)):
            return True
    return False


def _is_of_memory(message: str) -> bool:
    """Return whether the message of an error reports a failed allocation, by torch or by a library below it."""
    return message == _ONEDNN or any(words in message for words in _ON_CPUS) or reports_lack_of_memory(message, None)


def allocation_failure(error: BaseException) -> str:
    """Return a short description of the failed allocation, from the root cause of `error`."""
    *_, root = _chain(error)
    size = re.search(r"allocate (?:(\d+) bytes|([\d.]+ \w+))", str(root))
    if size is None:
        return "an allocation failed"
    return f"cannot allocate {format_bytes(int(size[1])) if size[1] else size[2]}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _tune_malloc(threshold_bytes: int) -> None:
    """Give blocks from this size on their own pages, and use a single arena, because every further arena retains memory."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # only glibc has it
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, threshold_bytes)
        mallopt(_M_TRIM_THRESHOLD, 2 * threshold_bytes)


class _MallInfo(ctypes.Structure):
    """Mirrors glibc's `struct mallinfo2` with its ten sizes; the ninth is the free memory that malloc holds."""

    _fields_: ClassVar = [*((f"_{index}", ctypes.c_size_t) for index in range(8)), ("fordblks", ctypes.c_size_t), ("_9", ctypes.c_size_t)]


def _free_bytes() -> int:
    """Return the unused bytes that malloc holds: tensors can use them without a change in the kernel's count; 0 without glibc."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _MallInfo
    return int(libc.mallinfo2().fordblks)


def _data_bytes() -> int:
    """Return the bytes that the kernel counts against RLIMIT_DATA: private writable memory, including the stacks of threads."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmData:")[1].split()[0]) << 10
