"""The tests' side of the rank server: requests, and what ranks return."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.trials.trial_folder import TrialSpec
from tests.training.rank_exits import LIMIT_S
from tests.training.server_process import ServerProcess

ROOT = Path(__file__).parents[2]


class RankPool:
    """Runs programs on ranks to their end, one after the other."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self._server, self._folder, self._count = server, folder, 0
        server.start()
        self.threads_after_import: int = server.greeting

    def new_folder(self) -> Path:
        """Return an empty folder for one request."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        return folder

    def request(self, program: str, world: int, folder: Path, *, limit_s: float = LIMIT_S) -> list[int]:
        """Return the exit codes of all ranks, which are killed if they run after `limit_s`."""
        return self._server.request(program=program, world=world, folder=str(folder), limit_s=limit_s)

    def each(self, program: str, world: int, spec: TrialSpec | None = None, **files: object) -> list[Any]:
        """Return the result of each rank; `files` are written as JSON next to the spec."""
        folder = self.new_folder()
        for name, value in files.items():
            (folder / f"{name}.json").write_text(json.dumps(value))
        if spec is not None:
            spec.write(folder)
        assert self.request(program, world, folder) == [0] * world, (folder / "stderr.log").read_text()[-5000:]
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]

    def agreed(self, program: str, world: int, spec: TrialSpec | None = None, **files: object) -> Any:
        """Return the result of all ranks, which must be the same."""
        found = self.each(program, world, spec, **files)
        assert all(ranks == found[0] for ranks in found), "ranks disagree"
        return found[0]

    def chain(self, order: dict[str, Any]) -> list[Any]:
        """Return the losses of ranks that train through a chain of layouts (`chain`, `chain_ranks`)."""
        losses: list[Any] = self.agreed("chain", Configuration.from_dict(order["layouts"][0]).devices, order=order)
        return losses

    def losses(self, configuration: Configuration, model: Model, *, steps: int = 4, **training: object) -> list[float]:
        """Return the losses of the first steps in one layout."""
        return self.chain(chain(model, [configuration], [steps], training=training))


def chain(model: Model, layouts: Sequence[Configuration], steps: Sequence[int], **options: object) -> dict[str, Any]:
    """Return the order for ranks to go through these layouts, with so many steps in each, as `chain_ranks` describes it."""
    return {"model": dataclasses.asdict(model), "layouts": [layout.to_dict() for layout in layouts], "steps": list(steps), **options}


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[RankPool]:
    """Start a rank server, and end it."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "client", ROOT / "runners", ROOT / "runners" / "torch")))
    command = [sys.executable, "-P", str(Path(__file__).with_name("rank_server.py"))]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    server = ServerProcess(command, environment)
    try:
        yield RankPool(server, folder)
    finally:
        server.end()
