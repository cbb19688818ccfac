"""Time matrix products, memory and copies on one device.

A repeat runs an operation as often as fills its share of the time. It waits for the device at its end, so launches do not count.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from oppa.launchers.measurement.figures import MATMUL, MEMORY, TO_DEVICE, TO_HOST, Figure, MeasurementPlan

Operation = Callable[[], object]
_ADA, _AMPERE = (8, 9), (8, 0)
_MOST_RUNS = 100_000


def kernel_figures(device: torch.device, plan: MeasurementPlan) -> Iterator[Figure]:
    """Yield the figures of one device: matrix products at each precision that it has, memory bandwidth, and copies."""
    for precision in _precisions(device):
        yield from _matmul(device, precision, plan)
    yield _memory(device, plan)
    if device.type == "cuda":
        yield from _copies(device, plan)


def timed(operation: Operation, device: torch.device, plan: MeasurementPlan) -> tuple[float, ...]:
    """Return the seconds of an operation, one mean for each repeat."""
    operation()
    runs = runs_in(seconds_of(operation, device, 1), plan)
    return tuple(seconds_of(operation, device, runs) for _ in range(plan.repeats))


def runs_in(seconds: float, plan: MeasurementPlan) -> int:
    """Return how many operations of this length a repeat runs."""
    return max(1, min(_MOST_RUNS, round(plan.figure_s / plan.repeats / max(seconds, 1e-9))))


def wait(device: torch.device) -> None:
    """Wait until the device has computed all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(operation: Operation, device: torch.device, runs: int) -> float:
    """Return the mean seconds of an operation over some runs."""
    wait(device)
    start = time.perf_counter()
    for _ in range(runs):
        operation()
    wait(device)
    return (time.perf_counter() - start) / runs


def _precisions(device: torch.device) -> list[str]:
    """Return the precisions that the device has in hardware."""
    if device.type != "cuda":
        return ["fp32", "bf16"]
    if torch.version.hip:
        return ["fp32", "fp16", "bf16", *(["fp8"] if "gfx94" in _arch(device) or "gfx95" in _arch(device) else [])]
    capability = torch.cuda.get_device_capability(device)
    return [
        "fp32",
        *(["tf32"] if capability >= _AMPERE else []),
        "fp16",
        *(["bf16"] if capability >= _AMPERE else []),
        *(["fp8"] if capability >= _ADA else []),
    ]


def _arch(device: torch.device) -> str:
    return str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", ""))


def _matmul(device: torch.device, precision: str, plan: MeasurementPlan) -> Iterator[Figure]:
    """Yield the fastest shape's figure; nothing if this build of torch lacks the precision."""
    figures = []
    for rows, inner, columns in plan.matmul_shapes:
        try:
            product = _product(device, precision, rows, inner, columns)
            seconds = timed(product, device, plan)
        except (RuntimeError, AttributeError, NotImplementedError):  # no kernel for it, or too little memory
            continue
        finally:
            torch.set_float32_matmul_precision("highest")
        figures.append(Figure(what=MATMUL, detail=precision, work=2.0 * rows * inner * columns, seconds=seconds))
    if figures:
        yield max(figures, key=lambda each: each.median)


def _product(device: torch.device, precision: str, rows: int, inner: int, columns: int) -> Operation:
    """Return a matrix product of random operands at a precision."""
    left, right = torch.randn(rows, inner, device=device), torch.randn(inner, columns, device=device)
    if precision == "fp8":
        kind = torch.float8_e4m3fnuz if "gfx94" in _arch(device) else torch.float8_e4m3fn
        one = torch.ones((), device=device)
        low, high = left.to(kind), right.t().contiguous().to(kind).t()  # the second operand is column-major
        whole = functional.ScalingType.TensorWise  # torch 2.10 and newer; older ones have no figure of fp8
        return lambda: functional.scaled_mm(low, high, one, whole, one, whole, output_dtype=torch.bfloat16)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    left, right, product = left.to(kind), right.to(kind), torch.empty(rows, columns, dtype=kind, device=device)
    return lambda: torch.mm(left, right, out=product)


def _memory(device: torch.device, plan: MeasurementPlan) -> Figure:
    """Return the bytes read and written per second by an addition."""
    left, right, total = (torch.ones(plan.memory_bytes // 4, device=device) for _ in range(3))
    seconds = timed(lambda: torch.add(left, right, out=total), device, plan)
    return Figure(what=MEMORY, payload_bytes=plan.memory_bytes, work=3.0 * plan.memory_bytes, seconds=seconds)


def _copies(device: torch.device, plan: MeasurementPlan) -> Iterator[Figure]:
    """Yield the bandwidth of copies from and to pinned memory of the host, and the seconds of a small one."""
    for size in (plan.copy_bytes, 4):
        there, here = torch.empty(size, dtype=torch.uint8, device=device), torch.empty(size, dtype=torch.uint8, pin_memory=True)
        work = float(size) if size > 4 else 0.0
        for what, target, source in ((TO_DEVICE, there, here), (TO_HOST, here, there)):
            seconds = timed(_copy(target, source), device, plan)
            yield Figure(what=what, payload_bytes=size, work=work, seconds=seconds)


def _copy(target: torch.Tensor, source: torch.Tensor) -> Operation:
    return lambda: target.copy_(source, non_blocking=True)
