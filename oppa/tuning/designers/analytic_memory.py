"""Estimate the memory of the first pipeline stage in bytes, as analytic planners do, for `grid` and `planner`. Nothing is measured.

    memory  = parameters held * bytes per parameter
            + activations of the micro-batches in flight
            + logits, if there is one stage

States are sharded as in ZeRO (Rajbhandari et al. 2020, section 3.1), over context-parallel ranks as well, and gradients are accumulated
in fp32. That makes 18 bytes per parameter in mixed precision. Activations are those of Korthikanti et al. (2022, equation 4), without
stored attention scores. Framework buffers, the allocator's fragments and the device's context are left out. So the estimate errs on the
small side: little that fits is put off.

Notation (n candidates): all arrays (n,)
"""

import numpy as np
from numpy.typing import NDArray

from oppa.cost.beliefs import framework_of
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem

Column = NDArray[np.float64]

LAYER_BYTES = {"none": 34, "selective": 34, "full": 2}
"""Bytes that a layer keeps per token and hidden unit in 16-bit formats, by recomputation (Korthikanti et al. 2022, table 2)."""
FP32_LOGITS = 2
"""Number of fp32 copies of the logits: the loss takes them in fp32, and has a gradient for them."""


def element_bytes(problem: Problem) -> int:
    """Return the bytes of a weight, a gradient or an activation."""
    return 4 if problem.training.precision == "fp32" else 2


def memory_bytes(problem: Problem, candidates: Candidates) -> Column:
    """Return the estimate for every candidate."""
    model = problem.model
    dp, tp, pp, stage = (candidates.column(name) for name in ("dp", "tp", "pp", "zero_stage"))
    cp = context_ranks(problem, candidates)
    ends = model.embedding_parameter_count + np.where(pp == 1, model.head_parameter_count, 0)
    held = (model.layers / pp * model.layer_parameter_count + ends) / tp
    element = element_bytes(problem)
    optimizer = 8 if element == 4 else 12
    shards = dp * cp
    states = element / np.where(stage >= 3, shards, 1) + 4 / np.where(stage >= 2, shards, 1) + optimizer / np.where(stage >= 1, shards, 1)
    tokens = candidates.column("micro_batch") * model.seq_len / cp
    logits = np.where(pp == 1, tokens * model.vocab * (element + 4 * FP32_LOGITS) / tp, 0)
    return np.asarray(held * states + tokens * _activations(problem, candidates) * in_flight(candidates) + logits, dtype=np.float64)


def context_ranks(problem: Problem, candidates: Candidates) -> NDArray[np.int64]:
    """Return the number of ranks that share a sequence, shape (n,): 1 in a space without such a parameter."""
    columns = framework_of(problem).columns(candidates)
    return np.asarray(columns.get("cp", np.ones(len(candidates), dtype=np.int64)))


def in_flight(candidates: Candidates) -> NDArray[np.int64]:
    """Return the number of micro-batches whose activations the first stage keeps at once: at most one per stage; all under GPipe."""
    count = candidates.column("num_microbatches")
    return np.where(candidates.column("schedule") == "gpipe", count, np.minimum(count, candidates.column("pp")))


def _activations(problem: Problem, candidates: Candidates) -> Column:
    """Return the bytes per token that the layers of a stage keep."""
    recompute = candidates.column("recompute")
    kept = np.select([recompute == name for name in LAYER_BYTES], list(LAYER_BYTES.values())) * element_bytes(problem) / 2
    return np.asarray(kept * problem.model.hidden * problem.model.layers / (candidates.column("pp") * candidates.column("tp")))
