"""What trials tell the two processes of `oppa`: log throughput, and log(memory / limit)."""

import math
from collections.abc import Sequence

import torch

from oppa.tuning.designer import Observation
from oppa.tuning.surrogate.belief import column
from oppa.tuning.surrogate.process import Data


def rates(observations: Sequence[Observation]) -> Data:
    """The throughputs that were measured, as logarithms."""
    seen = [o for o in observations if o.measured]
    return Data(
        rows=torch.tensor([o.candidate for o in seen], dtype=torch.long),
        target=column([o.log_steps_per_s or 0.0 for o in seen]),
        noise=column([o.log_variance or 0.0 for o in seen]),
        censored=torch.zeros(len(seen), dtype=torch.bool),
    )


def slacks(observations: Sequence[Observation], log_limit: float) -> Data:
    """log(memory / limit): at least 0 where a trial ran out of memory."""
    seen = [o for o in observations if tells_memory(o)]
    over = [o.outcome == "out_of_memory" for o in seen]
    known = [0.0 if out else math.log(o.memory_bytes or 1) - log_limit for o, out in zip(seen, over, strict=True)]
    return Data(
        rows=torch.tensor([o.candidate for o in seen], dtype=torch.long),
        target=column(known),
        noise=column([0.0] * len(seen)),
        censored=torch.tensor(over),
    )


def tells_memory(observation: Observation) -> bool:
    """It ran out of memory, or was measured: a failure of another cause may have reported a peak before it had one."""
    return observation.outcome == "out_of_memory" or bool(observation.memory_bytes and observation.measured)
