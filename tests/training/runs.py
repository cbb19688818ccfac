"""Train runs as tests need them: a tiny model on four ranks, supervised as `oppa train` does it."""

import contextlib
import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from oppa import catalog
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.problem.space import SearchSpace
from oppa.problem.training import Limits, RunOptions, Training
from oppa.training.run import ledger
from oppa.training.run.attempt import Attempt
from oppa.training.run.ledger import Line
from oppa.training.run.run_controller import RunController
from oppa.training.run.run_folder import Planned, RunSpec
from oppa.training.run.step import TrainingStep
from oppa.training.run.supervision import Outcome, RunListener, supervise
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import TrialResult
from oppa.trials.trial_folder import TrialSpec
from tests.training.families import SHORT

MORTAL = Path(__file__).parent / "runners" / "mortal"


CLOSE = 2e-5
"""Losses of one model under two layouts differ by sums that are added up in another order; the largest seen is 3e-6."""


class Heard(RunListener):
    """Records the events of a run; it asks to stop after so many steps."""

    def __init__(self, stop_behind: float = float("inf")) -> None:
        self.steps, self.failures, self._stop_behind = 0, list[TrialResult](), stop_behind

    def stepped(self, measurement: object) -> None:
        self.steps += 1

    def failed(self, attempt: Path, result: TrialResult, *, goes_on: bool) -> None:
        self.failures.append(result)

    def stop_requested(self) -> bool:
        return self.steps >= self._stop_behind


class Runs:
    """Trains runs in folders of their own, with ranks that one fork server forks."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count, self._trained = folder, 0, dict[str, list[Line]]()
        self._launcher = LocalLauncher(load_runner(MORTAL).for_runs(), study=f"runs-{uuid.uuid4()}", grace_s=2.0)

    def close(self) -> None:
        self._launcher.close()

    def new(
        self,
        configuration: Configuration,
        *plan: tuple[int, Configuration],
        model: Model = SHORT,
        learning_rate: float = 3e-3,
        tokens: str = "",
        clipping: float = 0.0,
        spell: dict[str, Any] | None = None,
        **run_options: object,
    ) -> Path:
        """The folder of a run that is not begun."""
        folder = self._next()
        cluster = Cluster(devices_per_host=configuration.devices, memory_limit_bytes=4 << 30)
        problem = Problem(
            name="test",
            stated_model=model,
            global_batch=configuration.global_batch,
            cluster=cluster,
            runner=catalog.root() / "runners" / "torch",
            training=Training(learning_rate=learning_rate, tokens=tokens, gradient_clipping=clipping),
            space=SearchSpace(name="torch", parameters=(), constraints=(), facts={}),
            limits=Limits(grace_s=2.0),
            run_options=RunOptions(**{"samples": 96, "reference_batch": 8, "checkpoint_s": 1e9, **run_options}),  # type: ignore[arg-type]
        )
        planned = tuple(Planned(samples=samples, configuration=other) for samples, other in plan)
        RunSpec(uuid=str(uuid.uuid4()), problem=problem, configuration=configuration, plan=planned).write(folder)
        if spell:
            (folder / "spell").write_text(json.dumps(spell))
        return folder

    def train(self, folder: Path, listener: RunListener | None = None) -> Outcome:
        return supervise(self._launcher, folder, RunSpec.read(folder), listener or Heard())

    def trained(self, *arguments: Any, **options: Any) -> list[Line]:
        """Return the steps of a run that was trained to its end, once for all tests."""
        key = repr((arguments, sorted(options.items())))
        if key not in self._trained:
            folder = self.new(*arguments, **options)
            outcome = self.train(folder)
            assert outcome.ending.value == "finished", (outcome.last, (outcome.folder / "stderr.log").read_text())
            self._trained[key] = steps_of(folder)
        return self._trained[key]

    def copy(self, folder: Path) -> Path:
        """Return another folder with the same run."""
        return Path(shutil.copytree(folder, self._next()))

    def _next(self) -> Path:
        self._count += 1
        return self._folder / str(self._count)


def attempt(
    folder: Path,
    on_step: Callable[[TrainingStep], None] = lambda _: None,
    *,
    stop_behind: float = float("inf"),
    controller: RunController | None = None,
) -> None:
    """Run an attempt in this process, on one rank."""
    run, seen = RunSpec.read(folder), list[TrainingStep]()

    def stepped(step: TrainingStep) -> None:
        seen.append(step)
        on_step(step)

    trial = TrialSpec.of(run.problem, run.configuration, study=run.uuid, trial=1, steps=0)
    made = Attempt(folder, stop_requested=lambda: len(seen) >= stop_behind, on_step=stepped, controller=controller)
    made.make(trial, rank=0, world=1, rendezvous=f"file://{folder}/{uuid.uuid4()}")


@contextlib.contextmanager
def opened_runs(folder: Path) -> Iterator[Runs]:
    """Start what forks the ranks of runs, and end it."""
    runs = Runs(Path(tempfile.mkdtemp(dir=folder)))
    yield runs
    runs.close()


def steps_of(folder: Path) -> list[Line]:
    return events(folder, ledger.STEP)


def events(folder: Path, *names: str) -> list[Line]:
    return [line for line in ledger.standing(ledger.read(folder)) if line["event"] in names]


def losses(steps: Sequence[Line]) -> list[float]:
    return [step["loss"] for step in steps]
