"""The training core: one optimizer step under any parallel layout, on gloo and CPUs or NCCL and CUDA devices alike."""
