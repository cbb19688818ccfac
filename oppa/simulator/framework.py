"""Describe what each training framework adds to the mathematics: its buffers, its communication, its host's time.

The facts come from the frameworks' sources. `host_operations` counts the eager operations of a layer (a matrix product, a norm, a view).
Nanotron's counts are chosen to reproduce its host-bound runs (the Ultra-Scale Playbook). Those of the others come from counting a layer's
modules.
"""

import dataclasses

from oppa.errors import require_known


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Lists the traits in which frameworks differ."""

    sequence_parallel: bool = False
    """Tensor-parallel ranks also shard the tensors between the products; all-gather and reduce-scatter replace all-reduce."""
    gathers_again: bool = False
    """The gathered input of a product is gathered again for the gradient of its weights, instead of being kept."""
    fused_attention: bool = True
    """Attention keeps no scores in memory (FlashAttention)."""
    ring_attention: bool = False
    """Context-parallel ranks pass keys and values around a ring; otherwise they exchange heads for tokens (DeepSpeed-Ulysses)."""
    fused_norms: bool = False
    """Norms, residuals and activations run in one kernel each, without copies in fp32."""
    fp32_gradients: bool = False
    """Gradients are accumulated and communicated in fp32."""
    both_gradients: bool = False
    """Gradients in the precision of the weights are kept in addition to the fp32 ones."""
    ddp_copy: bool = False
    """torch's DistributedDataParallel keeps a second copy of the gradients, in buckets."""
    pipelines_overlap_gradients: bool = False
    """Gradients are communicated during the last micro-batch's backward pass in a pipeline, too."""
    reduces_every_micro_batch: bool = False
    """ZeRO 2 reduces the gradients of every micro-batch."""
    scattered_gradients: bool = True
    """ZeRO 1 reduces each gradient only to the rank that updates its weight; otherwise to all ranks."""
    ddp_buckets: bool = False
    """ZeRO 1 reduces gradients in the buckets of `dp_bucket_mb`, as without ZeRO; otherwise in those of `zero_bucket_mb`."""
    fsdp: bool = False
    """ZeRO 2 and 3 gather layers and reduce their gradients behind the passes, and reduce them with the last micro-batch alone."""
    whole_gradients: bool = False
    """ZeRO reduces all gradients in one collective after the backward pass."""
    waiting_transfers: bool | None = None
    """Pipeline transfers block their sender. None: they do, unless the schedule is interleaved and `overlap_p2p` is set."""
    contended_step_s: float = 0.0
    """Extra seconds per step of a tensor-parallel collective while the device waits for a transfer from another host."""
    host_operations: tuple[int, int] = (45, 60)
    """Eager operations of a layer's forward pass and of its backward pass."""
    collective_operations: int = 1
    """Host work around each collective, in eager operations."""
    start_s: float = 15.0
    """Seconds on one host for imports, processes and communicators. Assumed."""

    def gradient_bytes(self, element_bytes: int) -> int:
        """Return the bytes of a gradient as it is accumulated and communicated, if weights have `element_bytes`."""
        return 4 if self.fp32_gradients else element_bytes


NANOTRON = Framework(
    sequence_parallel=True,
    fp32_gradients=True,
    both_gradients=True,
    pipelines_overlap_gradients=True,
    whole_gradients=True,
    waiting_transfers=True,
    # In the Playbook, pipelines over several hosts take 2 to 4 ms more for each layer and tensor-parallel rank. It does not depend on the
    # size of micro-batches, so no bandwidth explains it. Each layer has eight collectives, hence this value per step. The cause is unknown.
    contended_step_s=0.3e-3,
    host_operations=(90, 140),
    collective_operations=9,
)
# Current Megatron-LM uses fused attention by default: `--transformer-impl transformer_engine`, `--attention-backend auto`.
MEGATRON = Framework(
    sequence_parallel=True, gathers_again=True, ring_attention=True, fused_norms=True, fp32_gradients=True, ddp_buckets=True
)
# Korthikanti et al. (2022) measured an older version, which kept scores in memory; selective recomputation dropped them.
MEGATRON_2022 = dataclasses.replace(MEGATRON, fused_attention=False)
COLOSSALAI = Framework(ddp_copy=True, reduces_every_micro_batch=True, scattered_gradients=False)
# The built-in trainer trains fp32 weights under autocast. ZeRO 2 and 3 are FSDP2, which reduces in fp32
# (oppa/training/parallel/data_parallel.py).
TORCH = Framework(
    fp32_gradients=True,
    ddp_copy=True,
    ddp_buckets=True,
    fsdp=True,
    scattered_gradients=False,
    waiting_transfers=False,
    host_operations=(40, 55),
)
DEEPSPEED = Framework(reduces_every_micro_batch=True)

FRAMEWORKS = {
    "nanotron": NANOTRON,
    "megatron": MEGATRON,
    "megatron-local": dataclasses.replace(MEGATRON, sequence_parallel=False),
    "megatron-2022": MEGATRON_2022,
    "colossalai": COLOSSALAI,
    "torch": TORCH,
    "torch-long-context": TORCH,
    "deepspeed": DEEPSPEED,
}
"""Frameworks by the name of their search space. `megatron-2022` has none; it serves only to reproduce published measurements."""


def framework_of(space: str) -> Framework:
    """Return the framework whose search space has this name; raises InputError if it is not simulated."""
    require_known(space, FRAMEWORKS, f"the search space `{space}` is not simulated")
    return FRAMEWORKS[space]
