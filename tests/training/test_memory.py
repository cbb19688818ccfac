"""Running out of memory is distinguished from every other failure, also if CUDA, cuBLAS or NCCL reports it."""

import errno
import os
import threading

import pytest
import torch
import torch.distributed as dist

from oppa.training.profiler.memory import PeakMemory, allocation_failure, beyond_the_limit, memory_limit, ran_out_of_memory

NCCL = "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
UNHANDLED = NCCL + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure {}"

MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."),
    RuntimeError("could not create a primitive"),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    dist.DistBackendError(UNHANDLED.format("2 'out of memory'")),
    dist.DistBackendError(UNHANDLED.format("'out of memory'")),
    dist.DistBackendError(NCCL + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 4 bytes"),
    *map(
        RuntimeError,
        (
            *("HIP error: out of memory", "CUDA driver error: out of memory", "Triton Error [CUDA]: out of memory"),
            *("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
            *("cuFFT error: CUFFT_ALLOC_FAILED", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
            "Failed to CUDA host alloc 1234 bytes",
        ),
    ),
]
OTHERS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    dist.DistBackendError(UNHANDLED.format("1 'invalid argument'")),
    dist.DistNetworkError("Connection reset by peer"),
    RuntimeError("could not create a primitive descriptor for the matmul primitive."),
    RuntimeError("No valid triton configs. OutOfMemoryError: out of resource: triton_tem Required: 262144 Hardware limit:232448"),
    ValueError("out of memory"),
]


@pytest.mark.parametrize("error", MEMORY, ids=repr)
def test_want_of_memory_is_seen_also_where_it_is_the_cause(error: Exception) -> None:
    assert ran_out_of_memory(error)
    wrapped = RuntimeError("a stage failed")
    wrapped.__cause__ = error
    assert ran_out_of_memory(wrapped)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_failures_are_not_want_of_memory(error: Exception) -> None:
    assert not ran_out_of_memory(error)


def test_what_could_not_be_allocated_is_named_where_it_is_known() -> None:
    assert allocation_failure(MEMORY[2]) == "cannot allocate 2.00 GiB"
    assert allocation_failure(MEMORY[5]) == "an allocation failed"


def test_what_lies_beyond_the_limit_leaves_room_for_the_rest() -> None:
    device, large = torch.device("cpu"), 2 << 30  # more than the free memory that malloc may keep from earlier tests; never touched
    with memory_limit(large // 2, device):
        with pytest.raises(RuntimeError) as raised:
            torch.empty(large, dtype=torch.uint8)
        assert ran_out_of_memory(raised.value)
        with beyond_the_limit(device):
            kept = torch.empty(large, dtype=torch.uint8)
        torch.empty(large // 4, dtype=torch.uint8)
        with pytest.raises(RuntimeError):
            torch.empty(large, dtype=torch.uint8)
    assert kept.nbytes == large


def test_what_another_thread_releases_last_no_longer_counts() -> None:
    """A thread of gloo releases a collective's tensors after its work, where no profiler follows it."""
    peak, size, held = PeakMemory(torch.device("cpu")), 1 << 20, list[torch.Tensor]()
    with peak.watch():
        for _ in range(3):
            held.append(torch.empty(size, dtype=torch.uint8))
            releases = threading.Thread(target=held.clear)
            releases.start()
            releases.join()
    assert size <= peak.bytes() < 1.1 * size
