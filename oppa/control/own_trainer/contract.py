"""Define the files that a user's own trainer and oppa exchange in an attempt's folder, as oppa reads and writes them.

The trainer's side is `client/oppa_client/run_files.py`, which describes each file. The trainer is not trusted: every file that it writes is
bounded and validated.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oppa import __version__
from oppa.errors import MeasurementError
from oppa.plain_text import plain_text
from oppa.problem.configuration import Configuration
from oppa.problem.training import RunOptions
from oppa.protocol.messages import AnySetting, Reach
from oppa.regular_file import parse_json
from oppa.training.run.learning_rate import SCALINGS, Followed
from oppa.trials import trial_folder, untrusted_file
from oppa.trials.trial_folder import write_json
from oppa.trials.untrusted_file import insist

PROTOCOL, OLDEST = 1, 1
"""Version of the files that this oppa speaks, and the oldest one that it still speaks."""
HOLD, LEAVE, LEAVING, LEFT = "hold.json", "leave.json", "leaving.json", "left.json"
ASKED, PLAN, SAVED, WAITING = "asked-{}.json", "plan-{}.json", "saved-*.json", "waiting-*-of-*.json"
FILE_BYTES = 64 << 10
"""Most bytes of a file that the trainer writes."""

Count = Annotated[int, Field(ge=0, le=2**53)]
Positive = Annotated[int, Field(ge=1, le=2**53)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class _Record(BaseModel):
    """Validates a record strictly; keys that later versions add are left out."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class RateTerms(_Record):
    """Holds the rule by which the learning rate follows the batch."""

    reference_batch: Annotated[float, Field(gt=0, le=1e18)]
    exponent: Annotated[float, Field(ge=0, le=1)]
    damping: Count
    batch: Annotated[float, Field(gt=0, le=1e18)]
    """Batch that the learning rate followed when the batch last changed."""
    since: Count
    """Samples taken up to that change."""

    def followed(self, global_batch: int, seen: int) -> float:
        """Return the batch that the learning rate follows after `seen` samples."""
        return Followed(batch=self.batch, since=self.since).reached(global_batch, seen, self.damping)

    def factor(self, global_batch: int, seen: int) -> float:
        """Return the factor of the learning rate at the end of a step after `seen` samples."""
        return float((self.followed(global_batch, seen) / self.reference_batch) ** self.exponent)


class PlanTerms(_Record):
    """Holds a plan: the batch from a step on."""

    number: Positive
    from_step: Count
    global_batch: Positive
    micro_batch: Positive
    accumulation: Positive
    rate: RateTerms

    @classmethod
    def first(cls, configuration: Configuration, options: RunOptions) -> Self:
        """Return the plan in which a run begins."""
        batch = configuration.global_batch
        rate = RateTerms(
            reference_batch=options.reference_batch or batch,
            exponent=SCALINGS[options.scaling],
            damping=options.damping,
            batch=batch,
            since=0,
        )
        return cls(number=1, from_step=0, rate=rate, **_sizes(configuration))

    def resumed(self, configuration: Configuration, *, number: int, step: int, samples: int) -> "PlanTerms":
        """Return the plan of an attempt that resumes after `samples` samples in a configuration, which may have another batch."""
        rate = self.rate
        if configuration.global_batch != self.global_batch:
            rate = rate.model_copy(update={"batch": rate.followed(self.global_batch, samples), "since": samples})
        return PlanTerms(number=number, from_step=step, rate=rate, **_sizes(configuration))

    def under(self, options: RunOptions) -> "PlanTerms":
        """Return the plan under the rule of the learning rate that the options state; only what the rate has followed stays."""
        rule = {"exponent": SCALINGS[options.scaling], "damping": options.damping}
        reference = float(options.reference_batch or self.rate.reference_batch)
        return self.model_copy(update={"rate": self.rate.model_copy(update={"reference_batch": reference, **rule})})

    @property
    def text(self) -> str:
        """Return a description for errors."""
        return f"plan {self.number} has batches of {self.global_batch} from step {self.from_step} on"


def _sizes(configuration: Configuration) -> dict[str, int]:
    accumulation = max(1, configuration.num_microbatches)
    return {"global_batch": configuration.global_batch, "micro_batch": configuration.micro_batch, "accumulation": accumulation}


class Abilities(_Record):
    """Lists the abilities that a trainer declares."""

    batch: Literal["both", "up", "down", "none"]
    """Directions in which the batch can change between two steps."""
    micro_batch: bool
    """True if the micro-batch can change between two steps."""
    restart: bool
    """True if a checkpoint can be resumed in another layout."""
    elastic: bool
    """True if that layout can have another number of ranks."""
    early_start: bool = False
    """True if ranks may start while those of the layout before still hold the devices; an older client declares nothing."""
    whole_steps: bool = False
    """True if the training ends before a step that would be cut."""

    def reach(self, options: RunOptions) -> Reach:
        """Return the changes that are open to the trainer within the user's bounds."""
        declared = {name: getattr(self, name) for name in ("batch", "micro_batch", "restart", "elastic")}
        return Reach(**declared, least_batch=options.least_batch, largest_batch=options.largest_batch)


class _Spoken(_Record):
    """Holds the content of abilities.json."""

    protocol: Count
    oldest: Count
    client: Annotated[str, Field(max_length=40)]
    abilities: Abilities


class NoiseReport(_Record):
    """Holds statistics of a step's gradients, in samples, as `GradientStatistics.report` returns them."""

    noise_scale: float | None = None
    health: Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")] = "healthy"
    signal: float | None = None
    noise: float | None = None
    variance_ratio: float | None = None
    worker_variance_ratio: float | None = None


class StepReport(_Record):
    """Holds a line of `measurements.jsonl`: one optimizer step."""

    step: Count
    step_time_s: Annotated[float, Field(ge=1e-9, le=1e9)]
    samples: Count
    """Samples that all ranks took, as the trainer counts them."""
    plan: Positive
    """Number of the present plan."""
    loss: float | None = None
    tokens: Count | None = None
    skipped: bool = False
    learning_rate: float | None = None
    noise: NoiseReport | None = None
    paused_s: Seconds = 0.0
    resumed: bool = True
    """True if the trainer has read from which checkpoint to resume."""

    @property
    def reports_loss(self) -> bool:
        """Return True if the trainer stated a loss, be it one that is not finite."""
        return "loss" in self.model_fields_set


class SavedState(_Record):
    """States a complete checkpoint: the content of `saved-N.json`."""

    checkpoint: Annotated[str, Field(min_length=1, max_length=4000, pattern=r"^\P{Cc}*$")]
    step: Count
    """Steps taken up to the checkpoint."""
    samples: Count
    plan: PlanTerms

    @property
    def is_present(self) -> bool:
        """Return True unless the checkpoint is a path on which nothing is, or which the file system refuses for good."""
        try:
            return "://" in self.checkpoint or bool(insist(Path(self.checkpoint).stat))
        except OSError:  # a name that is too long, or a folder that may not be searched
            return False


class LeftState(SavedState):
    """States the checkpoint with which the trainer left: the content of left.json."""

    reason: Annotated[str, Field(max_length=40)]
    client_s: Seconds = 0.0
    """Seconds that rank 0 spent inside calls of the client, without the bodies of pauses."""
    errors: Count = 0
    """Reads and writes that the file system refused."""


_Kind = TypeVar("_Kind", bound=_Record)


def parse_record(kind: type[_Kind], text: bytes, name: str) -> _Kind:
    """Return a record from JSON; raises MeasurementError, which names the file and the first wrong field."""
    try:
        return kind.model_validate(parse_json(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise MeasurementError(plain_text(f"the trainer's `{name}` is wrong: `{where}`: {first['msg']}", limit=1000)) from None
    except ValueError as error:
        raise MeasurementError(plain_text(f"the trainer's `{name}` is not JSON: {error}", limit=1000)) from None


def read_record(kind: type[_Kind], folder: Path, name: str) -> _Kind | None:
    """Return the record in a file that the trainer writes; None if there is none. Raises MeasurementError if it is wrong."""
    text = untrusted_file.read(folder / name, limit_bytes=FILE_BYTES)
    return None if text is None else parse_record(kind, text, name)


def read_abilities(folder: Path) -> Abilities | None:
    """Return what the trainer can do; None before it has opened the run.

    Raises:
        MeasurementError: the file is wrong, or its client speaks no version that this oppa speaks.
    """
    spoken = read_record(_Spoken, folder, trial_folder.ABILITIES)
    if spoken is None:
        return None
    if spoken.oldest > PROTOCOL or spoken.protocol < OLDEST:
        theirs = plain_text(f"the trainer's oppa-client {spoken.client} speaks the protocol of runs in version {spoken.protocol}")
        message = f"{theirs}, but oppa {__version__} speaks versions {OLDEST} to {PROTOCOL}"
        raise MeasurementError(message, hint="install the client of this oppa, or keep the `PYTHONPATH` that oppa sets for the trainer")
    return spoken.abilities


class AttemptTerms(_Record):
    """Holds the content of attempt.json, which oppa writes before an attempt starts."""

    run: str
    configuration: AnySetting
    total_samples: Count | None
    step: Count
    samples: Count
    checkpoint: str | None
    saved_by: AnySetting | None
    """Configuration of the ranks that saved the checkpoint."""
    plan: PlanTerms
    statistics_every: Count | None = None
    """Interval of the steps whose gradients the trainer measures; None leaves it to the trainer."""
    leave_timeout_s: Annotated[float, Field(ge=0, allow_inf_nan=True)]

    def write(self, folder: Path) -> None:
        """Write the file; raises OSError."""
        versions = {"protocol": PROTOCOL, "oldest": OLDEST, "oppa": __version__, "attempt": int(folder.name)}
        write_json(folder / trial_folder.ATTEMPT, {**self.model_dump(), **versions})

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the terms of an earlier attempt; None if the folder has none. Raises MeasurementError if they are damaged."""
        return read_record(cls, folder, trial_folder.ATTEMPT)


def hold(folder: Path) -> None:
    """Have the ranks that start in a folder wait for `AttemptTerms`; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / HOLD, {})


def have_all_started(folder: Path) -> bool:
    """Return True if all ranks that start in a folder wait for their terms; rank 0 alone of a client that states no other."""
    waiting = [path.stem.rpartition("-of-")[2] for path in folder.glob(WAITING)]
    if not waiting:
        return (folder / trial_folder.ABILITIES).exists()
    return any(ranks.isdecimal() and waiting.count(ranks) >= int(ranks) for ranks in set(waiting))


def is_leaving(folder: Path) -> bool:
    """Return True if rank 0 has announced that all ranks leave; raises MeasurementError if that cannot be read."""
    return untrusted_file.read(folder / LEAVING, limit_bytes=FILE_BYTES) is not None


def ask_for(folder: Path, number: int, configuration: Configuration, *, before: int | None = None) -> None:
    """Ask the trainer for another batch, as plan number `number`; raises MeasurementError if that cannot be written.

    Args:
        before: Samples after which the plan may no longer begin: the trainer then ignores the request. None: it may always begin.
    """
    _request(folder / ASKED.format(number), {"number": number, **_sizes(configuration)}, before)


def ask_to_leave(folder: Path, reason: str, deadline_s: float, *, before: int | None = None) -> None:
    """Ask the trainer to save and leave within `deadline_s` seconds; raises MeasurementError if that cannot be written.

    Args:
        before: Samples after which it may no longer leave for this reason: the trainer then ignores the request. None: it always leaves.
    """
    _request(folder / LEAVE, {"reason": reason, "deadline_s": min(deadline_s, math.ldexp(1, 40))}, before)


def _request(path: Path, values: dict[str, Any], before: int | None) -> None:
    stated = values if before is None else {**values, "before": before}
    try:
        insist(lambda: write_json(path, stated))
    except OSError as error:
        raise MeasurementError(f"`{path.name}` cannot be written: {error.strerror}") from error


class _Asked(_Record):
    """Holds the content of asked-N.json, as far as oppa reads it again."""

    global_batch: Positive
    micro_batch: Positive


def read_asked(folder: Path, number: int) -> dict[str, int] | None:
    """Return the batch and micro-batch that were asked for as a plan; None if they were not. Raises MeasurementError."""
    asked = read_record(_Asked, folder, ASKED.format(number))
    return None if asked is None else asked.model_dump()
