"""What a training framework adds to the mathematics: what it keeps, how it talks, how long its host takes.

Facts are from the frameworks' sources; `host_operations` count the eager operations of a layer (a matrix product, a norm, a view) and are
chosen so that nanotron's host-bound runs come out (the Ultra-Scale Playbook), for the others by counting a layer's modules.
"""

import dataclasses

from oppa.errors import InputError, nearest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """The traits that differ."""

    sequence_parallel: bool = False
    """Tensor-parallel ranks share what lies between the products too: all-gather and reduce-scatter instead of all-reduce."""
    gathers_again: bool = False
    """What was gathered for a product is gathered once more for the gradient of its weights, instead of being kept."""
    fused_attention: bool = True
    """No scores in memory (FlashAttention)."""
    fused_norms: bool = False
    """Norms, residuals and activations in one kernel each, without copies in fp32."""
    fp32_gradients: bool = False
    """Gradients are accumulated, and communicated, in fp32."""
    both_gradients: bool = False
    """Those of the weights' precision are kept beside them."""
    ddp_copy: bool = False
    """torch's DistributedDataParallel, which keeps the gradients in buckets once more."""
    pipelines_overlap_gradients: bool = False
    """They are communicated during the last micro-batch's backward pass also where there is a pipeline."""
    reduces_every_micro_batch: bool = False
    """ZeRO 2 reduces the gradients of every micro-batch."""
    scattered_gradients: bool = True
    """ZeRO 1 reduces gradients to the rank that needs them; else to all."""
    whole_gradients: bool = False
    """ZeRO reduces all gradients in one collective after the backward pass."""
    waiting_transfers: bool | None = None
    """Pipeline transfers stop their sender; None: unless the schedule is interleaved, and the configuration overlaps them."""
    contended_step_s: float = 0.0
    """More for a step of a tensor-parallel collective while the device waits for a transfer from another host."""
    host_operations: tuple[int, int] = (45, 60)
    """Of a layer's forward and backward pass."""
    collective_operations: int = 1
    """What it does around a collective, counted in eager operations."""
    start_s: float = 15.0
    """Imports, processes, communicators, on one host. Assumed."""


NANOTRON = Framework(
    sequence_parallel=True,
    fp32_gradients=True,
    both_gradients=True,
    pipelines_overlap_gradients=True,
    whole_gradients=True,
    waiting_transfers=True,
    # The Playbook's runs of pipelines over several hosts take 2 to 4 ms more for each layer and tensor-parallel rank, whatever the size of
    # micro-batches, which no bandwidth explains; eight collectives a layer make that of each of their steps. The cause is not known.
    contended_step_s=0.3e-3,
    host_operations=(90, 140),
    collective_operations=9,
)
# Today's Megatron-LM has a fused attention by its defaults: `--transformer-impl transformer_engine`, `--attention-backend auto`.
MEGATRON = Framework(sequence_parallel=True, gathers_again=True, fused_norms=True, fp32_gradients=True)
# Korthikanti et al. (2022) measured it before that: scores were kept in memory, and selective recomputation dropped them.
MEGATRON_2022 = dataclasses.replace(MEGATRON, fused_attention=False)
COLOSSALAI = Framework(ddp_copy=True, reduces_every_micro_batch=True, scattered_gradients=False)
TORCH = Framework(ddp_copy=True, waiting_transfers=False, host_operations=(40, 55))
DEEPSPEED = Framework(reduces_every_micro_batch=True)

FRAMEWORKS = {
    "nanotron": NANOTRON,
    "megatron": MEGATRON,
    "megatron-2022": MEGATRON_2022,
    "colossalai": COLOSSALAI,
    "torch": TORCH,
    "deepspeed": DEEPSPEED,
}
"""By the name of their search space; `megatron-2022` has none, and serves published measurements alone."""


def framework_of(space: str) -> Framework:
    """The framework whose search space has this name; raises InputError for one that is not simulated."""
    if space not in FRAMEWORKS:
        raise InputError(f"the search space `{space}` is not simulated", hint=nearest(space, FRAMEWORKS))
    return FRAMEWORKS[space]
