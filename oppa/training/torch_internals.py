"""Name torch's private functions and classes that the training core uses, and the versions of torch with which it was tested.

Private names may change without notice. All of them are here, so this module shows what a new version of torch may break.
"""

import contextlib
import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C._profiler import RecordScope
from torch._C._profiler import _ExtraFields_Allocation as AllocationEvent
from torch._C._profiler import _ProfilerEvent as ProfilerEvent
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import _disable_profiler as disable_profiler  # type: ignore[attr-defined]
from torch.autograd import _enable_profiler as enable_profiler  # type: ignore[attr-defined]
from torch.autograd import _prepare_profiler as prepare_profiler  # type: ignore[attr-defined]
from torch.distributed.fsdp import FSDPModule
from torch.jit import _state as scripting
from torch.nn.parallel import DistributedDataParallel

from oppa.errors import EnvironmentLackingError
from oppa.problem.software import minor_release

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime as PipelineRuntime

__all__ = [
    "FLASH_ATTENTION_ON_CPU",
    "GROUPED_PRODUCT",
    "TESTED",
    "AllocationEvent",
    "FakeTensorMode",
    "PipelineRuntime",
    "ProfilerEvent",
    "RecordScope",
    "ZeroRedundancyOptimizer",
    "accumulated_apart",
    "all_threads_counted",
    "disable_profiler",
    "divide_factors",
    "enable_profiler",
    "foreach_mul_",
    "foreach_norm",
    "forget_shardings",
    "leave_to_their_ranks",
    "prepare_profiler",
    "require_tested",
    "runtime_of",
]


@contextlib.contextmanager
def _scripting_off() -> Iterator[None]:
    """Let torch leave uncompiled what it would compile by TorchScript on import."""
    was_enabled = bool(scripting._enabled)
    scripting.disable()
    try:
        yield
    finally:
        if was_enabled:
            scripting.enable()


with _scripting_off():  # its package has eight other optimizers, whose compilation would take 0.4 s of every start
    from torch.distributed.optim import ZeroRedundancyOptimizer

TESTED = ("2.13",)
"""Versions of torch, without their patch level, with which `make check` runs the core; `torch` in `runners/torch/runner.toml`."""
FLASH_ATTENTION_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
GROUPED_PRODUCT = torch.ops.aten._grouped_mm

foreach_norm, foreach_mul_ = torch._foreach_norm, torch._foreach_mul_
leave_to_their_ranks = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
"""Exclude the named parameters of a module from DDP, which would otherwise average their gradients."""


def require_tested(version: str = torch.__version__) -> None:
    """Raise EnvironmentLackingError unless the core was tested with this version of torch."""
    if minor_release(version) not in TESTED:
        message = f"the built-in trainer was not tested with torch {version}; it calls private functions of torch {', '.join(TESTED)}"
        raise EnvironmentLackingError(message, hint=f"install `torch=={TESTED[-1]}.*` in this environment")


@contextlib.contextmanager
def all_threads_counted() -> Iterator[None]:
    """Make the CPU allocator's count of live bytes include what any thread does; otherwise only threads under the profiler count."""
    c10 = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
    counts = ctypes.c_bool.in_dll(c10, "FLAGS_caffe2_report_cpu_memory_usage")
    counts.value = True
    try:
        yield
    finally:
        counts.value = False


def accumulated_apart(sharded: FSDPModule) -> dict[int, Callable[[], Tensor | None]]:
    """Return functions that return the gradient which FSDP2 accumulates apart from a gathered parameter, by the parameter's `id`.

    Under a `reduce_dtype` of its own, FSDP2 moves a gradient there after each backward pass that reduces nothing. The result is empty under
    a version of torch that keeps it elsewhere.
    """
    state = sharded._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", ())
    each = [parameter for group in groups for parameter in group.fsdp_params if hasattr(parameter, "unsharded_accumulated_grad")]
    return {id(parameter._unsharded_param): functools.partial(_apart, weakref.ref(parameter)) for parameter in each}


def _apart(parameter: "weakref.ref[Any]") -> Tensor | None:
    found: Tensor | None = getattr(parameter(), "unsharded_accumulated_grad", None)
    return found


def divide_factors(model: nn.Module) -> set[float | None]:
    """Return what FSDP2 divides summed gradients by, as `set_gradient_divide_factor` states it; None is the number of ranks.

    The result is empty under a version of torch that keeps it elsewhere.
    """
    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    return {group.gradient_divide_factor for state in states for group in getattr(state, "_fsdp_param_groups", ())}


def forget_shardings() -> None:
    """Clear DTensor's cache of shardings, which would keep process groups and their threads alive after they are destroyed."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()


def runtime_of(
    rows: Iterable[Sequence[str]], stages: Sequence["PipelineStage"], micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> "PipelineRuntime":
    """Return torch's runtime with a schedule, to which torch adds the sends and receives.

    Args:
        rows: Actions of each rank, in torch's notation.
    """
    # Imported here, because it loads torch's compiler, which only pipelines need.
    from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

    runtime = _PipelineScheduleRuntime(list(stages), micro_batches, loss_fn=loss, scale_grads=False)
    runtime._prepare_schedule_with_comms({rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)})
    return runtime
