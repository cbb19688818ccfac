"""Memory on a CPU as on an accelerator: a peak that can be measured and a limit that is enforced.

CUDA counts and limits by itself, in every step. On a CPU the warm-up's two steps do it. In the first, torch's profiler lists every
allocation and release of a tensor, from which a step's peak follows. In both, the kernel refuses to let the process's data grow beyond
what it held before the model was built plus the limit, so that an allocation of a tensor fails with an exception: in the first step
loosely (1.25 times the limit and 64 MiB, because the profiler's records need room), in the second exactly. The timed steps that follow
repeat the second; no limit is enforced in them, because malloc then keeps more than it needs, for speed.
"""

import contextlib
import ctypes
import errno
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch._C._profiler import RecordScope
from torch.autograd import _disable_profiler, _enable_profiler, _prepare_profiler  # type: ignore[attr-defined]
from torch.autograd.profiler import profile

from oppa.units import format_bytes

_ALLOCATOR_MESSAGES = (
    *("DefaultCPUAllocator", "not enough memory", "std::bad_alloc", "Cannot allocate memory"),
    *("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "'out of memory'"),  # NCCL's: Cuda failure 2 'out of memory'
)
_ONEDNN = "could not create a primitive"  # no room for generated code, as seen; where one is not supported, it says more

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_EXACT_BYTES, _FAST_BYTES = 256 << 10, 32 << 20
# From 256 KiB on every tensor gets pages of its own and gives them back: 7 % above the tensors' own bytes, where malloc's default
# holds 30-100 % more; but steps take 30 % longer. 32 MiB is where malloc's own dynamic threshold ends up.

_SLACK, _SLACK_BYTES = 0.25, 64 << 20
# While the profiler runs, its records need room too; only what is far beyond the limit fails already then.

_PAUSES, _PAUSE_S = 4, 0.005
_MARK = "oppa mark"


class PeakMemory:
    """The most bytes of tensors that were alive at once on this rank since `watch` was entered."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak_bytes = 0
        self.held_bytes = 0
        """What the watched block left behind: tensors, and room that malloc keeps for more; 0 on CUDA, which counts by itself."""
        self.marks: list[tuple[int, int]] = []
        """At each mark, bytes that were alive, and the most since the mark before; on a CPU once watching has ended."""

    def mark(self) -> None:
        """Note a moment of what is watched."""
        if self._device.type != "cuda":
            with torch.profiler.record_function(_MARK):
                return
        self.marks.append((torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)))
        torch.cuda.reset_peak_memory_stats(self._device)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """On a CPU, measures what runs inside: from before the model is built to the end of the first step."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            yield
            return
        free_bytes = _free_bytes()
        profiler = profile(use_kineto=True, profile_memory=True)
        config, activities = profiler.config(create_trace_id=False), profiler.kineto_activities
        _prepare_profiler(config, activities)
        # The profiler's own context manager records every operation: about six times the records (156,982 for 26,882), and seconds a step.
        _enable_profiler(config, activities, {RecordScope.USER_SCOPE})  # type: ignore[call-arg]
        try:
            yield
        finally:
            _let_threads_settle()
            results = _disable_profiler()
        events = [(event.start_ns(), event.name(), event.nbytes()) for event in results.events()]  # type: ignore[attr-defined]
        self._peak_bytes, self.marks = _peak(events), _marks(events)
        alive_bytes = sum(size for _, name, size in events if name == "[memory]")
        del events, results
        self.held_bytes = alive_bytes + max(0, _free_bytes() - free_bytes)

    def bytes(self) -> int:
        """The peak so far."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else self._peak_bytes


def _let_threads_settle() -> None:
    """Let gloo's threads tell the profiler of what they have ended; one that does once it has stopped crashes the process (5 of 200 runs).

    They do so a moment after whoever waited has gone on. Several short pauses, as a CPU quota may let this thread run first after one.
    """
    for _ in range(_PAUSES):
        time.sleep(_PAUSE_S)


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
    if "Optimizer.step" not in marks:  # gradients were not finite
        return peak
    alive_before, peak_before = marks["Optimizer.step"]
    alive_behind, _ = marks["Optimizer.zero_grad"]
    return max(peak, peak_before + alive_behind - alive_before)


def _marks(events: list[tuple[int, str, int]]) -> list[tuple[int, int]]:
    """Bytes alive at each mark, and the most since the mark before."""
    alive = peak = 0
    found = []
    for _, name, size in sorted(events, key=lambda event: event[0]):
        if name == "[memory]":
            alive += size
            peak = max(peak, alive)
        elif name == _MARK:
            found.append((alive, peak))
            peak = alive
    return found


@contextlib.contextmanager
def exact_pages(device: torch.device) -> Iterator[None]:
    """On a CPU, malloc holds no more for tensors than they have bytes, give or take 7%: what the kernel counts is what they need."""
    if device.type == "cuda":
        yield
        return
    _tune_malloc(_EXACT_BYTES)
    try:
        yield
    finally:
        _tune_malloc(_FAST_BYTES)


def keep_pages(device: torch.device) -> None:
    """On a CPU, malloc keeps what tensors give back for the next ones, as in the timed steps of a trial: else each step faults pages in."""
    if device.type != "cuda":
        _tune_malloc(_FAST_BYTES)


@contextlib.contextmanager
def memory_limit(limit_bytes: int | None, device: torch.device, *, held_bytes: int = 0, room: bool = False) -> Iterator[None]:
    """Let tensors beyond `limit_bytes` fail, of which `held_bytes` are there already; on a CPU, inside the block alone.

    With `room` for the profiler's records, only tensors far beyond the limit fail.
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
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))  # before anyone handles a failure, so that it can be told


@contextlib.contextmanager
def beyond_the_limit(device: torch.device) -> Iterator[None]:
    """On a CPU, raise the limit by what the block adds: threads of process groups, whose stacks no device would hold, are no tensors."""
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
    """Whether an allocation failed, here or in what caused `error` (a pipeline schedule wraps what its stages raise)."""
    for link in _chain(error):
        if isinstance(link, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(link, OSError) and link.errno == errno.ENOMEM:
            return True
        if isinstance(link, RuntimeError) and (str(link) == _ONEDNN or any(message in str(link) for message in _ALLOCATOR_MESSAGES)):
            return True
    return False


def allocation_failure(error: BaseException) -> str:
    """What could not be allocated, in a few words, from the exception at the root."""
    *_, root = _chain(error)
    asked = re.search(r"allocate (?:(\d+) bytes|([\d.]+ \w+))", str(root))
    if asked is None:
        return "an allocation failed"
    return f"cannot allocate {format_bytes(int(asked[1])) if asked[1] else asked[2]}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _tune_malloc(threshold_bytes: int) -> None:
    """Give blocks from this size on pages of their own; in one arena, because every further one holds memory back."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc alone has it
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, threshold_bytes)
        mallopt(_M_TRIM_THRESHOLD, 2 * threshold_bytes)


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`: ten sizes, of which the ninth is the free memory that malloc holds."""

    _fields_: ClassVar = [*((f"_{index}", ctypes.c_size_t) for index in range(8)), ("fordblks", ctypes.c_size_t), ("_9", ctypes.c_size_t)]


def _free_bytes() -> int:
    """What malloc holds and nobody uses: tensors grow into it unseen by the kernel."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _MallInfo
    return int(libc.mallinfo2().fordblks)


def _data_bytes() -> int:
    """What the kernel counts against RLIMIT_DATA: private writable memory, the stacks of threads included."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmData:")[1].split()[0]) << 10
