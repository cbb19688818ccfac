"""A run whose profile we wrote."""

import json
from pathlib import Path

from oppa import catalog
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.space import SearchSpace
from oppa.problem.training import Limits, Training
from oppa.training.run.run_folder import RunSpec
from tests.pipeline.profiles import profile
from tests.training.conftest import TINY

PRESENT = Configuration(dp=1, pp=2, global_batch=8, micro_batch=1)


def written(folder: Path, configuration: Configuration = PRESENT) -> Path:
    """A run of eight layers on two stages, on devices with room for 500 bytes."""
    problem = Problem(
        name="test",
        stated_model=TINY,
        global_batch=8,
        cluster=Cluster(devices_per_host=2, memory_limit_bytes=500),
        runner=catalog.root() / "runners" / "torch",
        training=Training(),
        space=SearchSpace(name="torch", parameters=(), constraints=(), facts={}),
        limits=Limits(),
    )
    RunSpec(uuid="a-run", problem=problem, configuration=configuration).write(folder)
    (folder / "profile.json").write_text(json.dumps(profile().to_dict()))
    return folder
