"""Search for a run's schedule in a separate process of low priority, while the run trains.

    python -P -m oppa.training.run.schedule_search_process FOLDER CONFIGURATION

The process reads the run's profile. It writes the schedule to `order.csv`, then its predicted step time and peak memory to `order.json`.
The latter also has the predicted step time of one micro-batch at a time, the schedule that a run starts with.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from oppa.cost.memory_limits import memory_limits
from oppa.errors import OppaError
from oppa.pipeline.from_configuration import shape_of, stages_of
from oppa.pipeline.prediction import predict
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.replication import Replication
from oppa.pipeline.schedules import one_by_one
from oppa.pipeline.search.profiled import choose
from oppa.pipeline.torch_csv import to_csv
from oppa.problem.configuration import Configuration
from oppa.training.parallel.extra_parameters import replicas_of, shards_of
from oppa.training.run.run_folder import RunSpec
from oppa.trials.trial_folder import write_json

PROFILE, ORDER, FOUND, LOG = "profile.json", "order.csv", "order.json", "search.log"
NICE = 19


class ScheduleSearch:
    """Runs a search in a process of its own; `close` ends it.

    Args:
        folder: Folder of the run, with its profile.
        configuration: Configuration to search a schedule for.
    """

    def __init__(self, folder: Path, configuration: Configuration) -> None:
        self._folder = folder
        for name in (ORDER, FOUND):
            (folder / name).unlink(missing_ok=True)
        command = [
            sys.executable,
            "-P",
            "-m",
            "oppa.training.run.schedule_search_process",
            str(folder),
            json.dumps(configuration.to_dict()),
        ]
        with (folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def found(self) -> dict[str, Any] | None:
        """Return the result: the values of `order.json` and, as `order`, the text of `order.csv`; None while the search runs.

        Raises:
            OppaError: if the search has failed.
        """
        code = self._process.poll()
        if code is None:
            return None
        if code:
            output = (self._folder / LOG).read_text(errors="replace").strip().splitlines()
            raise OppaError(f"the schedule search failed: {output[-1] if output else f'exit code {code}'}")
        return {**json.loads((self._folder / FOUND).read_text()), "order": (self._folder / ORDER).read_text()}

    def close(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()


def main(folder: Path, configuration: Configuration) -> None:
    """Search for a schedule, and write the result."""
    os.nice(NICE)
    problem = RunSpec.read(folder).problem
    profile = PipelineProfile.from_dict(json.loads((folder / PROFILE).read_text()))
    replication = Replication(dp=replicas_of(configuration), dp_shard=shards_of(configuration), zero_stage=configuration.zero_stage)
    shape, stages, limit_bytes = shape_of(configuration), stages_of(configuration, problem.model), memory_limits(problem).reported
    chosen = choose(profile, shape, replication, limit_bytes=limit_bytes, stages=stages)
    initial = predict(profile, one_by_one(shape, split=False), replication, stages=stages)
    (folder / ORDER).write_text(to_csv(chosen.schedule))
    facts = {"name": chosen.name, "step_s": chosen.prediction.step_s, "peak_bytes": round(chosen.prediction.peak_bytes)}
    write_json(folder / FOUND, {**facts, "from_step_s": initial.step_s})


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Configuration.from_dict(json.loads(sys.argv[2])))
    except OppaError as error:
        sys.exit(error.message)
