"""A failed allocation is recognised in a user's program, whichever library raises it."""

import errno
import os

import oppa_client
import pytest

LACK = [
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    *map(
        RuntimeError,
        (
            *("HIP error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            *("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "cuFFT error: CUFFT_ALLOC_FAILED"),
            *("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "Last error:\nFailed to CUDA calloc async 4 bytes"),
        ),
    ),
]


@pytest.mark.parametrize("error", LACK, ids=repr)
def test_a_library_of_any_vendor_may_lack_memory(error: Exception) -> None:
    assert oppa_client.ran_out_of_memory(error)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "disk"), RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")], ids=repr)
def test_another_failure_of_a_library_is_no_lack_of_memory(error: Exception) -> None:
    assert not oppa_client.ran_out_of_memory(error)
