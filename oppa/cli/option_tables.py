"""Validate the options that `--set` takes on commands without a job file.

Commands import this module inside their functions, because pydantic is slow to import.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from pydantic import Field

from oppa.cluster.scaling import Settings
from oppa.control.rl.reward import Form, Reward
from oppa.errors import InputError
from oppa.problem.declaration import Count, DeclaredTable, Delay, Seconds
from oppa.problem.settings import validate_with

T = TypeVar("T", bound=DeclaredTable)


class ScalingTable(DeclaredTable):
    """Validates `scaling`: the settings of a scaling controller."""

    threshold: float = Field(default=0.6, ge=0, le=1)
    window: Seconds = 8 * 3600.0
    counted: Count | None = None
    max_scale: float = Field(default=4.0, ge=1)
    growth_order: str = "smallest"

    def record(self, *, counted: int, unit: str = "GPUs") -> Settings:
        """Return the settings.

        Args:
            counted: Default of the smallest job that counts as an arrival.
            unit: Name of what is counted, for messages.
        """
        return Settings(
            threshold=self.threshold,
            window_s=self.window,
            counted_gpus=self.counted or counted,
            max_scale=self.max_scale,
            growth_order=self.growth_order,
            unit=unit,
        )


class SimulatedClusterTable(DeclaredTable):
    """Validates `cluster`: the simulated cluster."""

    gpus_per_node: Count = 8
    backfill: bool = False
    failure_interval: Seconds | None = None


class ElasticTable(DeclaredTable):
    """Validates `elastic`: how elastic jobs scale."""

    replicas: bool = False
    start: Delay = 60.0


class ScalingOptions(DeclaredTable):
    """Validates the options of `oppa cluster run` that are not the scheduler's."""

    scaling: ScalingTable = ScalingTable()


class SimulationOptions(ScalingOptions):
    """Validates the options of `oppa cluster simulate`."""

    cluster: SimulatedClusterTable = SimulatedClusterTable()
    elastic: ElasticTable = ElasticTable()


class TimesTable(DeclaredTable):
    """Validates `times`: the model of the file, and the memory of weight gradients."""

    model: str = ""
    weight_memory: float = Field(default=0.5, ge=0, le=1)


class SearchTable(DeclaredTable):
    """Validates `search`: the schedules among which the search chooses."""

    chunks: list[Count] = Field(default_factory=lambda: [1], min_length=1)
    recompute: bool = True


class PipelineOptions(DeclaredTable):
    """Validates the options of `oppa pipeline-schedule`."""

    times: TimesTable = TimesTable()
    search: SearchTable = SearchTable()


class RewardTable(DeclaredTable):
    """Validates `reward`: the form of the reward, and its constants."""

    form: Form = "goodput"
    alpha: float | None = None
    beta: float | None = None
    delta: float | None = None
    eta: float | None = None

    def record(self, *, adaptive: bool) -> Reward:
        """Return the reward.

        Args:
            adaptive: The optimizer adapts its steps to gradients.
        """
        constants = self.model_dump(exclude_none=True, exclude={"form"})
        return dataclasses.replace(Reward.usual(self.form, **constants), adaptive=adaptive)


class LearningTable(DeclaredTable):
    """Validates `learning`: the simulated runs that a policy learns from."""

    curve: str = "digits"
    window: Count = 20


class LearningOptions(DeclaredTable):
    """Validates the options of `oppa train-policy` that are not the job file's."""

    reward: RewardTable = RewardTable()
    learning: LearningTable = LearningTable()


def read_options(kind: type[T], words: Sequence[str]) -> T:
    """Return the options that settings state; raises InputError, which names the setting, if one is wrong."""
    return validate_with(kind, {}, words, error=InputError)
