"""Account for advice that nobody followed: what the changes would have been worth, by the table and the noise scale of that time."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from oppa.control.own_trainer.run_book import ADVISED, WITHDRAWN
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.training.run import ledger
from oppa.training.run.ledger import Line
from oppa.training.run.run_folder import SPEC, RunSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Values the advice of a run.

    Each piece of advice counts from its step until the next one, until the policy advises to stay, or until the next attempt. The seconds
    that its change was expected to take are subtracted. Policies let a batch at most double at once, from the batch that the run stayed at.
    So a run that follows may gain more. It may also gain less, as the way back from advice that no longer stands is free here.
    """

    pieces: int
    """Number of decisions that differ from the one before."""
    gain: float | None
    """Relative gain of goodput over all steps; None if no advice states a goodput."""
    last: Configuration
    """Configuration that was advised last."""

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Self | None:
        """Return the account of a run's valid ledger lines; None if nothing was advised."""
        pieces, last, standing, ratio = 0, None, None, None
        seconds = worth = 0.0
        known = False
        for line in lines:
            if line["event"] == ADVISED:
                advised = Configuration.from_dict(line["after"])
                if advised != standing:
                    pieces, last, standing = pieces + 1, advised, advised
                    worth -= line["seconds"].get("expected", 0.0)
                ratio = _ratio(line)
                known = known or ratio is not None
            elif line["event"] in (WITHDRAWN, ledger.STARTED):
                standing = ratio = None
            elif line["event"] == ledger.STEP:
                seconds += line["step_time_s"]
                worth += line["step_time_s"] * (1.0 if ratio is None else ratio)
        if last is None:
            return None
        return cls(pieces=pieces, gain=worth / seconds - 1 if known and seconds else None, last=last)

    @property
    def worth(self) -> str:
        """Return the gain as text."""
        return "of unknown worth" if self.gain is None else f"{self.gain:+.1%} goodput, by the table"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        return {"pieces": self.pieces, "gain": self.gain, "last": self.last.to_dict(), "id": self.last.id}


def _ratio(line: Line) -> float | None:
    """Return the goodput of the advised configuration over that of the present one; None if it is unknown."""
    weighed = line["weighed"] or {}
    current, chosen = weighed.get("current"), weighed.get("chosen")
    return chosen["goodput"] / current["goodput"] if current and chosen and current["goodput"] else None


def is_first_run(folder: Path, problem: Problem) -> bool:
    """Return True if no other run of the folder has taken a step of this job and launch line under a policy."""
    return not any(_is_run_of(other, problem) for other in folder.absolute().parent.glob("*") if other.name != folder.name)


def _is_run_of(folder: Path, problem: Problem) -> bool:
    if not (folder / SPEC).is_file():
        return False
    try:
        run = RunSpec.read(folder)
        same = (run.problem.name, run.problem.command) == (problem.name, problem.command)
        decided = bool(run.policy) or run.problem.run_options.advise is not None  # a running service's policy has no name here
        return same and decided and ledger.first_step(folder, 0) is not None
    except InputError:  # a damaged run proves nothing
        return False
