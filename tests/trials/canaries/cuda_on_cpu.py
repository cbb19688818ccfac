"""Stand-ins for the calls to CUDA of Megatron-LM, so that its own programs train on CPUs.

Loop, arguments, data, optimizer and checkpoints are Megatron's.
"""

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo  # it lists all functions of torch, so it comes before any is replaced
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
HOST = torch.Generator().manual_seed(0)
"""Random numbers of data loaders, which on a host with GPUs take none of a GPU's; all others stand for a GPU's."""


class OnCpu(TorchFunctionMode):
    """Makes and keeps every tensor on the CPU, and gives it the name of a type of CUDA, on which Megatron asserts."""

    def __torch_function__(
        self, func: Callable[..., Any], kinds: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch with the CPU in place of each CUDA device."""
        given = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.random_ and given.get("generator") is None:
            given["generator"] = HOST
        if func is torch.Tensor.type and len(args) == 1 and not given:
            return func(*args).replace("torch.", "torch.cuda.")
        if "device" in given and _is_cuda(given["device"]):
            given["device"] = CPU
        return func(*[CPU if isinstance(each, torch.device | str) and _is_cuda(each) else each for each in args], **given)


def _is_cuda(device: object) -> bool:
    return isinstance(device, int) or str(device).startswith("cuda")


class Stream:
    """Stands for a stream of CUDA: all operations have ended when they return."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, stream: "Stream") -> None:
        """Wait for nothing."""


def replace_cuda() -> None:
    """Replace what Megatron calls of `torch.cuda`."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    def get_state(*_: Any, **__: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.set_rng_state(state)

    def stream(*_: Any) -> Stream:
        return Stream()

    states: dict[str, Any] = {"get_rng_state": get_state, "set_rng_state": set_state, "manual_seed": torch.manual_seed}
    found = dict.fromkeys(("synchronize", "set_device", "set_stream", "empty_cache"), nothing)
    found |= {"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: CPU}
    found |= {"get_device_capability": lambda *_: (9, 0), "get_device_properties": lambda *_: types.SimpleNamespace(major=9)}
    found |= {"current_stream": stream, "default_stream": stream}
    found |= {"Stream": Stream, "stream": lambda *_: contextlib.nullcontext()}
    for name, replacement in {**states, **found}.items():
        setattr(torch.cuda, name, replacement)
    for name, replacement in states.items():
        setattr(torch.cuda.random, name, replacement)
    torch.cuda.nvtx = types.SimpleNamespace(range_push=nothing, range_pop=nothing)
    import megatron.core.datasets.utils as core_datasets
    import megatron.core.tensor_parallel.random as core_random
    import megatron.legacy.fused_kernels as fused_kernels

    core_random._set_cuda_rng_state = set_state
    core_datasets.compile_helpers = nothing  # the package has them compiled
    fused_kernels.load = nothing
