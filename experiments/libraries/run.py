"""Tune the line of a library, compare its canaries, and run every configuration by hand.

    FOLDER/LIBRARY.json    what was found of a library (`Found`)
    WORK/LIBRARY/          folder in which the line is typed, with the study

Everything is stored as soon as it is measured, so the same command continues an interrupted run.
"""

import contextlib
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.lib.guarded_run import run_guarded
from experiments.libraries.canaries import digest
from experiments.libraries.lines import LIBRARIES, Library
from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.configuration import Configuration
from oppa.report.record import hardware
from oppa.trials import logs
from oppa.trials.trial_folder import write_json
from oppa.tuning.launch_line.changed_line import changed_line
from oppa.tuning.launch_line.line_job import LineJob, load_line
from oppa.tuning.launch_line.winner_files import write_files

Tell = Callable[[str], None]
MOST = 12
"""Most configurations of a line."""
REPEATS = 5
"""Runs of each contender at the end of a search."""
WARM_UP = 20
"""First steps of a run by hand that do not count."""
EVERY_ROUNDS, CONTENDS = 2, 1.3
"""First rounds, in which every configuration runs by hand, and the ratio to the fastest up to which one runs in the others, too."""
LIMIT_S = 300.0
"""Longest run by hand, which takes a quarter of a minute."""
TIMES, CANARIES, STUDY = "times.json", "canaries.json", "study"


@dataclasses.dataclass(slots=True, kw_only=True)
class Found:
    """Holds what was found of one library."""

    name: str
    measured: str = ""
    """Day and machine of the search."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    trials: int = 0
    """Trials of all kinds: of the search, of the baseline, and of contenders at the end."""
    failed: int = 0
    changed: list[str] = dataclasses.field(default_factory=list)
    """Files of the user's own that the trials changed, made or removed."""
    winner: str = ""
    baseline: str = ""
    line: list[str] = dataclasses.field(default_factory=list)
    """The winner's line as it was printed, with `python` in place of the path of the interpreter."""
    line_runs: bool = False
    """True if that line ran to its end by hand."""
    step_times_s: dict[str, list[float | None]] = dataclasses.field(default_factory=dict)
    """Median seconds of a step in each run by hand, by configuration; None for a run that failed."""

    @property
    def medians_s(self) -> dict[str, float]:
        """Return the median of all runs of each configuration that never failed."""
        kept = {name: [each for each in times if each is not None] for name, times in self.step_times_s.items()}
        return {name: statistics.median(times) for name, times in kept.items() if times and len(times) == len(self.step_times_s[name])}

    def runs_in(self, number: int, name: str) -> bool:
        """Return whether a configuration runs in a round: any in the first rounds, later only those that may be the fastest."""
        if number < EVERY_ROUNDS or name in (self.winner, self.baseline):
            return True
        medians = self.medians_s
        return name in medians and medians[name] <= CONTENDS * medians[self.best]

    @property
    def best(self) -> str:
        """Return the fastest configuration of the runs without oppa; empty if none ran."""
        medians = self.medians_s
        return min(medians, key=medians.__getitem__, default="")

    @property
    def loss(self) -> float | None:
        """Return how much slower than the best configuration the winner is, as a fraction; None if it did not run."""
        medians = self.medians_s
        return medians[self.winner] / medians[self.best] - 1 if self.winner in medians else None

    @property
    def speed_up(self) -> float | None:
        """Return the winner's speed-up over the user's own line, both started without oppa; None if one of them did not run."""
        medians = self.medians_s
        return medians[self.baseline] / medians[self.winner] if {self.baseline, self.winner} <= medians.keys() else None


def measure(names: Sequence[str], *, trials: int, rounds: int, folder: Path, work: Path, tell: Tell) -> list[Found]:
    """Return what is found of each library; what the folder has is not measured again.

    Args:
        trials: Limit of a search.
        rounds: Runs of a configuration by hand, in turn. After the first ones, those that are far from the fastest stop.
        folder: Folder of the record.
        work: Folder of the programs and studies.

    Raises:
        EnvironmentLackingError: a search ended without a winner.
    """
    found = []
    for name in names:
        library, place = LIBRARIES[name], work / name
        known = read(folder, name)
        if not known.winner:
            tell(f"{name}: tuning its line")
            known = _tuned(name, library, place, trials)
            _store(folder, known)
        if not place.is_dir():  # the record is of another machine
            library.fill(place)
        with contextlib.chdir(place):
            job = load_line(library.words, settings=library.settings, environment=library.variables)
            everything = list(job.problem.candidates())
            if len(everything) > MOST:
                raise InputError(f"`{name}` has {len(everything)} configurations", hint=f"leave at most {MOST} in `{__name__}`")
            _run_all(known, library, job, everything, rounds=rounds, folder=folder, tell=tell)
        found.append(known)
    return found


def read(folder: Path, name: str) -> Found:
    """Return what the record has of a library."""
    path = folder / f"{name}.json"
    return Found(**json.loads(path.read_text())) if path.is_file() else Found(name=name)


def _store(folder: Path, found: Found) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{found.name}.json", dataclasses.asdict(found))


def _tuned(name: str, library: Library, place: Path, trials: int) -> Found:
    """Tune the line as a user would, in a folder with canaries; an interrupted search is continued."""
    if not (place / CANARIES).is_file():
        shutil.rmtree(place, ignore_errors=True)
        library.fill(place)
        write_json(place / CANARIES, digest(place))
    before = json.loads((place / CANARIES).read_text())
    settings = (f"limits.repeats={REPEATS}", *library.settings)
    words = ["tune", "--json", "--study", STUDY, "--trials", str(trials), *(word for each in settings for word in ("--set", each))]
    argv = [sys.executable, "-m", "oppa", *words, "--", *library.words]
    done = subprocess.run(argv, cwd=place, env=library.variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentLackingError(f"the search of {name} failed: {done.stderr[-2000:]}", hint=f"read {place / STUDY}")
    found, after = json.loads(done.stdout), digest(place)
    tried = [*found["trials"], *found["default_trials"], *found["verification"]]
    return Found(
        name=name,
        measured=f"{datetime.now(UTC):%Y-%m-%d}, {hardware()}",
        versions=library.versions,
        trials=len(tried),
        failed=sum(trial["outcome"] not in ("completed", "terminated_early") for trial in tried),
        changed=sorted(file for file in {*before, *after} if before.get(file) != after.get(file)),
        winner=Configuration.from_dict(found["best"]["configuration"]).id,
        baseline=Configuration.from_dict(found["baseline"]["configuration"]).id if found["baseline"] else "",
        line=_portable(library, found["launch_line"]["words"]),
    )


def _run_all(
    found: Found, library: Library, job: LineJob, everything: Sequence[Configuration], *, rounds: int, folder: Path, tell: Tell
) -> None:
    """Run configurations by hand, in rounds: every one in the first rounds, and then those that may be the fastest."""
    for number in range(rounds):
        for configuration in everything:
            times = found.step_times_s.setdefault(configuration.id, [])
            if len(times) > number or not found.runs_in(number, configuration.id):
                continue
            tell(f"{found.name}, round {number + 1} of {rounds}: {configuration.id}")
            line = changed_line(job, configuration).line
            times.append(_by_hand(library, job, configuration, line, tell))
            if configuration.id == found.winner:
                found.line_runs = times[-1] is not None and _portable(library, line) == found.line
            _store(folder, found)


def _portable(library: Library, line: Sequence[str]) -> list[str]:
    """Return the line without the path of its interpreter, which differs from machine to machine."""
    return ["python" if word == library.interpreter else word for word in line]


def _by_hand(library: Library, job: LineJob, configuration: Configuration, line: Sequence[str], tell: Tell) -> float | None:
    """Return the median seconds of a step of a line in a folder of its own; None if it fails."""
    place = Path("by-hand").absolute()
    shutil.rmtree(place, ignore_errors=True)
    library.fill(place)
    write_files(job, configuration, place)
    log, given = place.with_suffix(".log"), {**library.variables, "STEP_TIMES": str(place / TIMES)}
    if failed := run_guarded(line, place, environment=given, log=log, limit_s=LIMIT_S):
        tell(f"{configuration.id} failed: {failed}: {logs.last_words(log)}")
    times = json.loads((place / TIMES).read_text())[WARM_UP:] if (place / TIMES).is_file() else []
    shutil.rmtree(place)
    return statistics.median(times) if times and not failed else None


def to_json(found: Sequence[Found]) -> Mapping[str, Any]:
    """Return the figures of all libraries."""
    losses = [each.loss for each in found if each.loss is not None]
    return {
        "libraries": {
            each.name: {**dataclasses.asdict(each), "best": each.best, "loss": each.loss, "speed_up": each.speed_up} for each in found
        },
        "worst_loss": max(losses, default=None),
        "canaries_changed": sum(bool(each.changed) for each in found),
        "lines_that_run": sum(each.line_runs for each in found),
    }
