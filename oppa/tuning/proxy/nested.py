"""Find the study of the smaller size, which lies in the folder of the full-size study."""

import dataclasses
from pathlib import Path
from typing import Any

from oppa.problem.cluster import Cluster
from oppa.problem.problem import Problem
from oppa.study import Study
from oppa.study.database import FILE

FOLDER = "proxy"
"""Folder of the smaller study, in that of the full-size one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NestedStudy:
    """Describes the study of the smaller size."""

    folder: Path
    problem: Problem
    trials: int
    device_seconds: float
    """Seconds for which its devices were held, summed over the devices."""

    def seconds_on(self, cluster: Cluster) -> float:
        """Return the seconds of all devices of a cluster that cost as much."""
        return self.device_seconds / cluster.devices

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        problem = self.problem
        return {
            "study": str(self.folder),
            "hosts": problem.cluster.hosts,
            "layers": problem.model.layers,
            "global_batch": problem.global_batch,
            "trials": self.trials,
            "gpu_hours": self.device_seconds / 3600.0,
        }


def nested_study(folder: Path) -> NestedStudy | None:
    """Return the study of the smaller size in a full-size study's folder; None if there is none."""
    if not (folder / FOLDER / FILE).is_file():
        return None
    with Study(folder / FOLDER) as study:
        trials, problem = study.trials(), study.problem
        seconds = sum(trial.seconds for trial in trials) + study.idle_s()
    return NestedStudy(folder=folder / FOLDER, problem=problem, trials=len(trials), device_seconds=seconds * problem.cluster.devices)
