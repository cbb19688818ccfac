"""What a surrogate believes of candidates."""

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Normal:
    """Independent normal beliefs: mean and stddev, each of shape (n,)."""

    mean: Tensor
    stddev: Tensor
