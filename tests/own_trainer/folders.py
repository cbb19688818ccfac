"""Prepare the folders of attempts as oppa does, and the ranks of a program in one process."""

import json
from pathlib import Path
from typing import Any

from oppa_client import run_files
from oppa_client.plan import Rate, Terms
from oppa_client.run import Run
from oppa_client.trial import Trial

TOTAL, REFERENCE = 96, 8
"""Samples of a training, and the batch for which its learning rate was chosen."""
LAYOUT = {"dp": 1, "tp": 1, "pp": 1, "global_batch": 8, "micro_batch": 2}


def terms(batch: int = 8, micro_batch: int = 2, replicas: int = 1, **rate: Any) -> Terms:
    given = Rate(**{"reference_batch": 8, "exponent": 0.5, "damping": 0, "batch": batch, **rate})
    return Terms(1, 0, batch, micro_batch, batch // (micro_batch * replicas), given)


def attempt(folder: Path, **changed: Any) -> dict[str, Any]:
    """Write the files that oppa writes before a start."""
    values = {"protocol": 1, "oldest": 1, "oppa": "9", "configuration": LAYOUT, "total_samples": 1000, "samples": 0, "step": 0}
    values["leave_timeout_s"] = 60.0
    values |= {"checkpoint": None, "plan": terms().to_dict(), **changed}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / run_files.ATTEMPT).write_text(json.dumps(values))
    (folder / "trial.json").write_text(json.dumps({"configuration": LAYOUT, "steps": 0}))
    return values


def prepare(folder: Path, *, ranks: int = 1, before: Path | None = None, **changed: Any) -> Path:
    """Write what oppa writes before an attempt, which resumes with what an attempt before it left."""
    left = json.loads((before / run_files.LEFT).read_text()) if before else None
    values: dict[str, Any] = {"total_samples": TOTAL, "leave_timeout_s": 60.0, "plan": terms(REFERENCE, 2, ranks).to_dict()}
    if left:
        values |= {"checkpoint": left["checkpoint"], "step": left["step"], "samples": left["samples"]}
        values["plan"] = {**left["plan"], "from_step": left["step"]}
    attempt(folder, **{**values, **changed})
    (folder / "trial.json").write_text(json.dumps({"configuration": {**LAYOUT, "dp": ranks}, "steps": 3}))
    return folder


def ranks(folder: Path, world: int, **options: Any) -> list[Run]:
    """Return the ranks of an attempt."""
    values = json.loads((folder / run_files.ATTEMPT).read_text())
    return [Run(Trial(folder, rank=rank, world=world), values, **options) for rank in range(world)]


def ask(folder: Path, number: int, batch: int, micro_batch: int = 2, **limits: int) -> None:
    run_files.write(
        folder,
        run_files.ASKED.format(number),
        {"number": number, "global_batch": batch, "micro_batch": micro_batch, "accumulation": batch // micro_batch, **limits},
    )


def ask_to_leave(folder: Path, reason: str = "layout", **limits: int) -> None:
    run_files.write(folder, run_files.LEAVE, {"reason": reason, "deadline_s": 60.0, **limits})


def reported(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / run_files.MEASUREMENTS).read_text().splitlines()]
