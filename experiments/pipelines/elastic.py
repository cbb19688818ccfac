"""Train a job that gains devices and loses them again; measure its losses and its pauses (FlexTrain, figures 6 and 10).

Each change goes through a checkpoint and starts new interpreters as ranks, as on a cluster.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from experiments.lib.rank_pool import BEGIN, PoolRequest, RankPool, phases_of
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model

MODEL = Model(name="seven", layers=7, hidden=64, heads=4, kv_heads=4, ffn=192, vocab=256, seq_len=64)
STEPS = 20
"""Steps between two changes."""
NEVER, STAGES, REPLICAS = "never", "stages", "replicas"
CHAINS: Mapping[str, tuple[tuple[int, int], ...]] = {
    NEVER: ((1, 1),) * 5,
    STAGES: ((1, 1), (1, 2), (1, 4), (1, 3), (1, 1)),
    REPLICAS: ((1, 1), (2, 1), (4, 1), (2, 1), (1, 1)),
}
"""Sequence of (dp, pp) of each job."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Holds the losses and pauses of one job over its sequence of layouts."""

    losses: tuple[float, ...]
    standing_s: tuple[Mapping[str, float], ...]
    """Seconds of each phase, per change: checkpoint saved, ranks ended, new ranks started and connected, checkpoint loaded."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a chain from JSON values."""
        return cls(losses=tuple(values["losses"]), standing_s=tuple(values["standing_s"]))


def measure(tell: Callable[[str], None]) -> dict[str, Chain]:
    """Train along each chain; raises EnvironmentLackingError if ranks fail."""
    with RankPool() as pool:
        return {name: _along(name, chain, pool, tell) for name, chain in CHAINS.items()}


def differences(chain: Chain, other: Chain) -> list[float]:
    """Return the relative difference of each step's loss from the other chain's."""
    return [one / two - 1 for one, two in zip(chain.losses, other.losses, strict=True)]


def phases(chain: Chain) -> dict[str, float]:
    """Return the median seconds of each phase over the changes."""
    return {name: statistics.median(change[name] for change in chain.standing_s) for name in chain.standing_s[0]}


def _along(name: str, chain: Sequence[tuple[int, int]], pool: RankPool, tell: Callable[[str], None]) -> Chain:
    losses: list[float] = []
    standing_s: list[dict[str, float]] = []
    saved, saving_s, ended_s = "", 0.0, 0.0
    for number, (dp, pp) in enumerate(chain):
        tell(f"devices change {name}: dp {dp}, pp {pp}")
        before, saved = saved, str(Path(pool.folder) / f"{name}-{number}")
        layout = Configuration(dp=dp, pp=pp, global_batch=8, micro_batch=1)
        ran = pool.run(
            PoolRequest(program="stretch", model=MODEL, layouts=(layout,), pairs=STEPS, checkpoint=before, saved=saved, cold=True)
        )
        marks = [{BEGIN: 0.0, **answer["marks"]} for answer in ran.answers]
        took = phases_of(marks, ran.started_s)
        if number:
            end = {"save": saving_s, "end": ran.started_s - ended_s}
            standing_s.append({**end, "start and meet": took["start"], "load": took["load"]})
        saving_s, ended_s = took["save"], max(answer["marks"]["save"] for answer in ran.answers)
        losses += ran.answers[0]["losses"]
    return Chain(losses=tuple(losses), standing_s=tuple(standing_s))
