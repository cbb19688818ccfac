"""Run training ranks for a benchmark: requests go to a process that has imported torch, under a guard that ends all its processes."""

import dataclasses
import json
import os
import select
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.trials import logs
from oppa.trials.guarded_process import GuardedProcess
from oppa.trials.trial_folder import TrialSpec, write_json

PATIENCE_S, GRACE_S = 600.0, 2.0
REQUEST, BEGIN = "request.json", "begin"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """Specifies what ranks run: a program of `pool_ranks`, the layouts that it runs through, and its other parameters."""

    program: Literal["alternate", "rebatch", "change", "restart", "share", "pipeline", "stretch"]
    model: Model
    layouts: tuple[Configuration, ...]
    pairs: int = 0
    """Number of pairs of steps; number of steps for `pipeline` and `stretch`."""
    groups: tuple[str, ...] = ()
    """Control group of each rank."""
    local_batches: tuple[int, ...] = ()
    """Local batch of each worker, if they differ."""
    checkpoint: str = ""
    saved: str = ""
    """Path of the checkpoint that is saved at the end."""
    cold: bool = False
    """Ranks start as new interpreters instead of forks."""
    device: str = "CPU"
    """`CPU`, or the name of a CUDA device."""

    @property
    def ranks(self) -> int:
        """Return the number of ranks, which is the same for all layouts."""
        return self.layouts[0].devices

    def spec(self, layout: int) -> TrialSpec:
        """Return the trial of this model under one of the layouts.

        Args:
            layout: Index in `layouts`.
        """
        return TrialSpec(
            study="bench",
            trial=0,
            configuration=self.layouts[layout],
            stated_model=self.model,
            cluster=Cluster(devices_per_host=self.ranks, device=self.device, memory_limit_bytes=1 << 40),
            training=Training(),
            steps=1,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the request from a folder."""
        values = json.loads((folder / REQUEST).read_text())
        layouts = tuple(Configuration.from_dict(layout) for layout in values["layouts"])
        return cls(**{**values, "model": Model(**values["model"]), "layouts": layouts})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswers:
    """Holds the answer of each rank to a request, the start of the ranks, and the end of the last one.

    All times are on the same monotonic clock, in seconds.
    """

    started_s: float
    ended_s: float
    answers: tuple[Any, ...]


class RankPool:
    """Runs requests on ranks within a `with` block; at its end all processes and files are gone."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self._log = Path(self._folder.name) / "ranks.log"
        command = [sys.executable, "-P", "-m", "experiments.lib.pool_ranks"]
        path = os.pathsep.join(filter(None, (str(catalog.root()), os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self._guard, self._requests, replies = GuardedProcess.with_pipes(
            "the benchmark's ranks", command, environment=environment, grace_s=GRACE_S, log=self._log
        )
        self._replies = os.fdopen(replies)
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()
        os.close(self._requests)
        self._replies.close()
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """Return a folder for the files of ranks, which is removed at the end."""
        return Path(self._folder.name)

    def run(self, request: PoolRequest) -> PoolAnswers:
        """Run the request on its ranks.

        Raises:
            EnvironmentLackingError: the ranks failed or took too long.
        """
        self._count += 1
        folder = self.folder / f"request-{self._count}"
        folder.mkdir()
        layouts = [layout.to_dict() for layout in request.layouts]
        write_json(folder / REQUEST, {**dataclasses.asdict(request), "layouts": layouts})
        os.write(self._requests, f"{folder}\n".encode())
        reply = self._reply(request)
        answers = tuple(json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.ranks))
        return PoolAnswers(started_s=reply["started_s"], ended_s=reply["ended_s"], answers=answers)

    def _reply(self, request: PoolRequest) -> Any:
        ready, _, _ = select.select([self._replies], [], [], PATIENCE_S)
        line = self._replies.readline() if ready else ""
        reply = json.loads(line) if line else {"codes": [None]}
        if any(code != 0 for code in reply["codes"]):
            how = self._guard.ended() or (f"exited with codes {reply['codes']}" if line else f"took over {PATIENCE_S:g} s")
            raise EnvironmentLackingError(
                f"{request.ranks} ranks cannot run `{request.program}` on this machine: they {how}", hint=logs.last_words(self._log)
            )
        return reply


def phases_of(marks: Sequence[Mapping[str, float]], begin_s: float) -> dict[str, float]:
    """Return the seconds of each phase, in order, from the common start `begin_s`; a phase ends when the last rank has ended it."""
    ends = {name: max(rank[name] for rank in marks) for name in marks[0] if name != BEGIN}
    return {name: end_s - last_s for (name, end_s), last_s in zip(ends.items(), [begin_s, *ends.values()], strict=False)}


def words_of(layout: Configuration) -> str:
    """Return the degrees of a layout that are not 1, and its ZeRO stage, such as `dp2 pp2` or `dp4 zero3`."""
    degrees = [f"{name}{size}" for name in ("dp", "tp", "pp") if (size := getattr(layout, name)) > 1]
    return " ".join([*degrees, *([f"zero{layout.zero_stage}"] if layout.zero_stage else [])])
