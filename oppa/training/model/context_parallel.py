"""Split sequences over the ranks of a group: around attention, each rank exchanges its part of all heads for whole sequences of some heads.

Attention then runs on whole sequences by the same kernel as on one rank (DeepSpeed-Ulysses, Jacobs et al. 2023, section 3.1). So causal
masks need no special case, and all ranks do equal work. All other layers work token by token.

Notation (c ranks, b sequences, s tokens of a whole sequence, n heads, d width of a head):
    part    a rank's tokens of all heads        (b, s / c, n, d)
    whole   all tokens of a rank's heads        (b, s, n / c, d)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from oppa.training.model.all_to_all import exchange
from oppa.training.model.tensor_parallel import Slice


def whole_sequences(parts: Sequence[Tensor], cp: Slice) -> Sequence[Tensor]:
    """Return the whole sequences of this rank's heads of each tensor, from its part of all heads; one all-to-all serves all tensors."""
    if cp.size == 1:
        return parts
    by_rank = [part.unflatten(2, (cp.size, -1)) for part in parts]
    sent = torch.cat(by_rank, dim=3).movedim(2, 0)
    wholes = _swapped(sent, cp).movedim(0, 1).flatten(1, 2)
    return torch.split(wholes, [part.shape[3] for part in by_rank], dim=2)


def sequence_parts(whole: Tensor, cp: Slice) -> Tensor:
    """Return this rank's part of all heads, from whole sequences of its heads."""
    if cp.size == 1:
        return whole
    return _swapped(whole.unflatten(1, (cp.size, -1)).movedim(1, 0), cp).movedim(0, 2).flatten(2, 3)


def _swapped(rows: Tensor, cp: Slice) -> Tensor:
    """Send row r to rank r, and return the rows that the ranks have sent, in their order."""
    one_each = [1] * cp.size
    return exchange(rows, one_each, one_each, cp)
