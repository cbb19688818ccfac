"""Transfer the coefficients that studies learned of their device to the next study, as priors. Studies of like jobs count more."""

import dataclasses
import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.cost.beliefs import Beliefs, beliefs_of_job
from oppa.cost.coefficients import Belief
from oppa.errors import InputError, StudyError
from oppa.problem.devices import identify
from oppa.problem.problem import Problem
from oppa.study import Study
from oppa.study.database import FILE
from oppa.tuning.designers.oppa import Oppa, fitted
from oppa.tuning.likeness import Distance
from oppa.tuning.pooling import CoefficientEvidence, pooled
from oppa.tuning.surrogate_summary import posterior_beliefs

OTHERS = "name studies of the same device with completed trials, or remove `designer.transfer`"
ANOTHER = "remove it from `designer.transfer`, or name another study of the same device"
ALIKE = Distance(framework=False, precision=False, model_doublings=0.0, cluster_doublings=0.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudyLesson:
    """Holds the coefficients of a study before and after its trials, and its distance from the job."""

    name: str
    """Folder of the study."""
    uuid: str
    before: Beliefs
    after: Beliefs
    distance: Distance


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsedStudy:
    """Describes a study that the search starts from."""

    name: str
    distance: Distance
    weight: float
    """Share of the coefficients' precision that it gives, in the mean over all coefficients."""

    def describe(self) -> str:
        """Return likeness, weight and differences as one line."""
        differs = f" ({', '.join(self.distance.differences)})" if self.distance.differences else ""
        return f"{self.name}: weight {self.weight:.0%}, likeness {self.distance.likeness:.2f}{differs}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferredPrior:
    """Holds the coefficients that a search starts from, the studies that they are from, and why others were left out."""

    beliefs: Mapping[str, Belief]
    used: tuple[UsedStudy, ...]
    skipped: Mapping[str, str]
    """Reasons by folder."""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Return lines by name: each study with its weight, what the prior keeps, and the studies that were left out."""
        rest = f"the prior: weight {1 - sum(each.weight for each in self.used):.0%}"
        return [
            *(("from", each.describe()) for each in self.used),
            ("from", rest),
            *(("skips", f"{name}: {reason}") for name, reason in self.skipped.items()),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        used = [{"study": u.name, "weight": u.weight, "likeness": u.distance.likeness, **dataclasses.asdict(u.distance)} for u in self.used]
        return {"used": used, "skipped": dict(self.skipped)}


def transferred(problem: Problem, *, own: Path | None = None) -> TransferredPrior:
    """Return the coefficients that the studies under `[designer] transfer` learned, as the prior of the problem.

    Args:
        own: Folder of the problem's own study, which patterns may match and which does not count.

    Raises:
        StudyError: a folder that is named has no study, or a damaged one; or a pattern matches none.
        InputError: no study can be used; a study of another device, without measurements, or against the cost model cannot.
    """
    folders = study_folders(problem.search_options.transfer, own=own)
    if not folders:
        raise InputError("`designer.transfer` names no study but the search's own", hint=OTHERS)
    lessons: dict[str, StudyLesson] = {}
    skipped: dict[str, str] = {}
    for folder, is_named in folders.items():
        try:
            lesson = lesson_of(folder, problem)
        except InputError as error:
            if len(folders) == 1 or (is_named and isinstance(error, StudyError)):
                raise
            reason = error.message.removeprefix(f"the study in `{folder}` cannot be used: ")
            skipped[str(folder)] = reason.removeprefix(f"the study `{folder}` ").removeprefix("is ")
            continue
        if lesson.uuid in lessons:
            skipped[str(folder)] = f"it is a copy of `{lessons[lesson.uuid].name}`"
        else:
            lessons[lesson.uuid] = lesson
    if not lessons:
        reasons = "; ".join(f"`{name}`: {reason}" for name, reason in skipped.items())
        raise InputError(f"none of the {len(folders)} studies under `designer.transfer` can be used: {reasons}", hint=OTHERS)
    return combined(problem, list(lessons.values()), skipped)


def study_folders(names: Sequence[str], *, own: Path | None = None) -> dict[Path, bool]:
    """Return the folders that names and patterns select, without `own`, and whether each is named; raises StudyError for no match."""
    found: dict[str, bool] = {}
    for name in names:
        path = Path(name).absolute()
        if path.exists() or not glob.has_magic(name):
            found[os.path.realpath(path)] = True
            continue
        root = Path(path.anchor)
        matched = [folder for folder in sorted(root.glob(str(path.relative_to(root)))) if (folder / FILE).is_file()]
        if not matched:
            raise StudyError(f"`{name}` matches no study", hint="name folders that have a `study.db`, such as `studies/*`")
        found |= {folder: found.get(folder, False) for folder in map(os.path.realpath, matched)}
    if own is not None:
        found.pop(os.path.realpath(own), None)
    return {Path(folder): is_named for folder, is_named in found.items()}


def lesson_of(folder: Path, problem: Problem) -> StudyLesson:
    """Return what a study learned, for a problem on the same device.

    Raises:
        StudyError: there is no study, or a damaged one.
        InputError: it is of another device, has no model or another objective, has measured nothing, or contradicts the cost model.
    """
    try:
        with Study(folder) as study:
            theirs, trials, uuid = study.problem, study.trials(), study.uuid
    except StudyError as error:
        raise StudyError(error.message, hint=ANOTHER if (folder / FILE).is_file() else error.hint) from error
    if _device(theirs) != _device(problem):
        raise InputError(
            f"the study `{folder}` is for `{theirs.cluster.device}`, but the job is for `{problem.cluster.device}`",
            hint="name a study of the same device: coefficients belong to a device",
        )
    if not theirs.has_prior:
        lacks = "has an objective of its own" if theirs.stated_model else "is of a job without [model]"
        raise InputError(f"the study `{folder}` {lacks}, and so learned no coefficients", hint=OTHERS)
    if not any(trial.steps_per_s for trial in trials):
        raise InputError(f"the study `{folder}` has measured nothing yet", hint="name a study with completed trials")
    designer = fitted(theirs, theirs.candidates(), trials)
    if designer.averaged_rate.likeliest is not designer.log_rate:
        raise InputError(
            f"the trials of the study `{folder}` contradict the cost model, so its coefficients hold for no other job",
            hint="tune without `designer.transfer`",
        )
    distance = Distance.between(theirs, problem) if problem.stated_model else ALIKE  # a job without a model is refused later
    return lesson(designer, str(folder), uuid=uuid, distance=distance)


def _device(problem: Problem) -> str:
    """Return the catalogue's id, so that different names of one device agree; the job's own name if the catalogue lacks the device."""
    cluster = problem.cluster
    return identify(cluster.device, cluster.usable_bytes) or cluster.device


def lesson(designer: Oppa, name: str, *, uuid: str = "", distance: Distance = ALIKE) -> StudyLesson:
    """Return what a fitted designer learned."""
    processes = designer.log_rate, designer.log_slack
    before = {key: belief for process in processes for key, belief in process.cost.beliefs.items()}
    after = {key: belief for process in processes for key, belief in posterior_beliefs(process, name).items()}
    return StudyLesson(name=name, uuid=uuid, before=before, after=after, distance=distance)


def combined(problem: Problem, lessons: Sequence[StudyLesson], skipped: Mapping[str, str] | None = None) -> TransferredPrior:
    """Return the prior of a problem by what studies learned."""
    time, size = beliefs_of_job(problem)
    prior = {**time, **size}
    source = f"learned in `{lessons[0].name}`" if len(lessons) == 1 else f"learned in {len(lessons)} studies"
    found = {name: pooled(belief, [_evidence_of(each, name) for each in lessons], source) for name, belief in prior.items()}
    weights = (sum(each.shares[place] for each in found.values()) / len(found) for place in range(len(lessons)))
    return TransferredPrior(
        beliefs={name: each.belief for name, each in found.items()},
        used=tuple(UsedStudy(name=each.name, distance=each.distance, weight=w) for each, w in zip(lessons, weights, strict=True)),
        skipped=skipped or {},
    )


def _evidence_of(lesson: StudyLesson, name: str) -> CoefficientEvidence | None:
    if name not in lesson.before:
        return None
    return CoefficientEvidence.of(lesson.before[name], lesson.after[name], lesson.distance.variance)
