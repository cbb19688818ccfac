"""Describe the replicas of a pipeline, and what ZeRO shards over them."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """Holds the number of replicas of a pipeline, and over how many of them ZeRO shards their training state."""

    dp: int = 1
    dp_shard: int = 0
    """Replicas over which ZeRO shards, fewer than all under HSDP; 0 for all."""
    zero_stage: int = 0

    @property
    def optimizer_shards(self) -> int:
        """Return the number of ranks that share the optimizer's state of a stage, and its update."""
        return self._shards_from(1)

    @property
    def gradient_shards(self) -> int:
        """Return the number of ranks that share the gradients of a stage."""
        return self._shards_from(2)

    @property
    def weight_shards(self) -> int:
        """Return the number of ranks that share the weights of a stage."""
        return self._shards_from(3)

    def _shards_from(self, zero_stage: int) -> int:
        return (self.dp_shard or self.dp) if self.zero_stage >= zero_stage else 1


ALONE = Replication()
"""One replica."""
