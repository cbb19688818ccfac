"""Define the messages between a job and the control service: one JSON object each, fully validated by the receiver.

    job      -> service    hello, then a step after each optimizer step, and a change after each change of configuration
    service  -> job        welcome, an ack of accepted messages, a decision when one is due, or refused

A job numbers its messages, starting from 1. The service accepts each number once, so a job that reconnects can safely resend messages.
An ack contains the largest number that was accepted.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model, model_validator
from pydantic.functional_serializers import PlainSerializer
from pydantic.functional_validators import AfterValidator, PlainValidator

from oppa.errors import ProtocolError
from oppa.plain_text import plain_text
from oppa.problem.configuration import PARAMETERS, Configuration, kinds
from oppa.problem.training import Scaling
from oppa.protocol.worker import WorkerState

VERSION = 1
ROLL_BACK = "roll_back"
"""Command to restore weights from before a spike of the loss."""
MAX_BYTES = 64 * 1024
"""Maximum size of a message, in bytes."""
WORKERS = 128
"""Maximum number of workers in a message; this many fit into it."""
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""Regular expression of a job's name."""

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
LARGEST = 2**31
"""Upper bound of a configuration's numbers, of local batches and of integers in worker reports."""
LONGEST = 400
"""Maximum length of `stage_layout`, in characters."""
LEAST_S = 1e-9
"""Minimum seconds of an optimizer step."""
_fields: dict[str, Any] = {
    name: (
        Annotated[field, Field(ge=0, le=LARGEST)]
        if field in (int, float)
        else Annotated[field, Field(max_length=LONGEST if name == "stage_layout" else 40, pattern=r"^\P{Cc}*$")]
        if field is str
        else field,
        ...,
    )
    for name, field in kinds().items()
}
_Fields = create_model("_Fields", __config__=_STRICT, **_fields)
_worker_fields: dict[str, Any] = {
    field.name: (
        Annotated[field.type, Field(ge=-1e18 if field.name == "accuracy_gain" else 0, le=LARGEST if field.type is int else 1e18)],
        ... if field.default is dataclasses.MISSING else field.default,
    )
    for field in dataclasses.fields(WorkerState)
}
_WorkerFields = create_model("_WorkerFields", __config__=_STRICT, **_worker_fields)
MOST_EXTRAS = 100
"""Most parameters of a configuration that have no field."""


def _configuration(values: object) -> Configuration:
    """Build a configuration from JSON values; raise ValueError if no job can run in it.

    Numbers keep their type, because ids distinguish 25 from 25.0.
    """
    if isinstance(values, Configuration):
        return values
    if not isinstance(values, dict):
        raise ValueError("a configuration is a table")
    _Fields.model_validate({name: value for name, value in values.items() if name in PARAMETERS})
    if len(values) > len(PARAMETERS) + MOST_EXTRAS:
        raise ValueError(f"a configuration has at most {MOST_EXTRAS} further parameters")
    try:
        return Configuration.checked(values)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _even(values: object) -> Configuration:
    """Build a configuration whose batch is divided evenly; raise ValueError if no job can run in it."""
    return _shared_out(_configuration(values), [])


def _shared_out(configuration: Configuration, local_batches: Sequence[int]) -> Configuration:
    """Return the configuration; raise ValueError if its global batch does not match the workers' batches."""
    size, dp, micro_batch = configuration.global_batch, configuration.dp, configuration.micro_batch
    if not local_batches and size % (dp * micro_batch):
        raise ValueError(f"`dp * micro_batch = {dp * micro_batch}` does not divide `global_batch = {size}`")
    if local_batches and (len(local_batches) != dp or sum(local_batches) != size):
        raise ValueError(f"`local_batches` of {len(local_batches)} workers are {sum(local_batches)} samples, not {size} of {dp}")
    return configuration


def _worker(values: object) -> WorkerState:
    if isinstance(values, WorkerState):
        return values
    return WorkerState(**vars(_WorkerFields.model_validate(values)))


Setting = Annotated[Configuration, PlainValidator(_even), PlainSerializer(Configuration.to_dict)]
"""A configuration whose global batch is divided evenly among workers."""
AnySetting = Annotated[Configuration, PlainValidator(_configuration), PlainSerializer(Configuration.to_dict)]
"""A configuration whose workers may have local batches of their own."""
Worker = Annotated[WorkerState, PlainValidator(_worker), PlainSerializer(WorkerState.to_dict)]
LocalBatches = Annotated[list[Annotated[int, Field(ge=1, le=LARGEST)]], Field(max_length=WORKERS)]
"""Samples of each worker; empty if all have the same."""
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Number = Annotated[int, Field(ge=1, le=2**53)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=2000), AfterValidator(plain_text)]
"""Words for people, without a terminal's escapes."""


class _Message(BaseModel):
    """Implements what all messages share; unknown fields are refused."""

    model_config = _STRICT

    def to_json(self) -> str:
        """Return the JSON text to send."""
        return self.model_dump_json()


class Reach(BaseModel):
    """States which changes are open to a job: what its trainer can do, and the user's bounds of the global batch."""

    model_config = _STRICT

    batch: Literal["both", "up", "down", "none"] = "both"
    """Directions in which the batch can change between two steps."""
    micro_batch: bool = True
    """True if the micro-batch can change between two steps."""
    restart: bool = True
    """True if a checkpoint can be resumed in another layout."""
    elastic: bool = True
    """True if that layout can have another number of ranks."""
    least_batch: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    largest_batch: Annotated[int, Field(ge=1, le=LARGEST)] | None = None

    @property
    def text(self) -> str:
        """Return a description for errors."""
        return f"it declares batch = {self.batch!r}, micro_batch = {self.micro_batch}, restart = {self.restart}"


class Hello(_Message):
    """Opens a connection: identifies the job and describes its training."""

    type: Literal["hello"] = "hello"
    version: Literal[1] = 1
    job: Annotated[str, Field(pattern=f"^{NAME}$")]
    configuration: Setting
    total_samples: Count | None
    """Samples of the whole training; None if unknown."""
    warmup_samples: Count = 0
    """Samples over which the learning rate rises."""
    scaling: Scaling = "sqrt"
    """Rule by which the learning rate follows the global batch."""
    reconfiguration_s: Seconds = 0.0
    """Expected seconds of a change of layout, used until one was measured."""
    reach: Reach = Reach()
    """Changes that are open to the job; by default, all."""

    def to_json(self) -> str:
        """Return the JSON text to send, without a default `reach`, which older services refuse."""
        return self.model_dump_json(exclude={"reach"} if self.reach == Reach() else None)


class StepFacts(_Message):
    """Holds the facts of an optimizer step, as the run controller, the ledger and the message share them."""

    step: Count
    samples: Count
    """Samples from the start of the run to the end of this step."""
    configuration: AnySetting
    local_batches: LocalBatches = []
    step_time_s: Annotated[float, Field(ge=LEAST_S, le=1e9)]
    elapsed_s: Seconds
    noise_scale: Annotated[float, Field(ge=1e-18, le=1e18)] | None
    """Gradient noise scale, in sequences; None before the first estimate."""
    health: Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
    variance_ratio: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None
    """V / |g|^2 of the norm test, in sequences; None if the step was not measured or gives no value."""
    worker_variance_ratio: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None
    """V / |g|^2 where V is the variance between workers (eq. 5 of the norm test), in sequences."""
    loss: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None
    """Mean loss; None if it is not finite, and unset if the step reports none (`reports_loss`)."""
    learning_rate: Annotated[float, Field(ge=0, le=1e18)] | None = None
    """None if the trainer reports none."""
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    """Accuracy on held-out samples at the last validation; None before one, or if the model's outputs are not classes."""
    workers: Annotated[list[Worker], Field(max_length=WORKERS)] = []
    """Each worker's report on the window that ended with the previous step; empty if none ended there."""

    @property
    def reports_loss(self) -> bool:
        """Return True if the step reports its loss, be it one that is not finite."""
        return "loss" in self.model_fields_set

    def to_json(self) -> str:
        """Return the JSON text to send, in which the loss is missing if it is not reported, and null if it is not finite."""
        return self.model_dump_json(exclude=None if self.reports_loss else {"loss"})

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _shared_out(self.configuration, self.local_batches)
        return self


class StepTaken(StepFacts):
    """Reports an optimizer step."""

    type: Literal["step"] = "step"
    number: Number

    @property
    def tested(self) -> bool:
        """Return True if the gradient noise of the step was measured."""
        return self.variance_ratio is not None or self.worker_variance_ratio is not None

    @property
    def is_in_two(self) -> bool:
        """Return True if a single micro-batch was taken in two to be measured, which takes longer than the configuration does."""
        return self.tested and self.configuration.has_one_micro_batch

    @property
    def reliable_noise_scale(self) -> float | None:
        """Return the noise scale if it is reliable, else None."""
        return self.noise_scale if self.health == "healthy" else None


class ChangeFacts(_Message):
    """Holds the facts of an attempted change of configuration, as the run controller, the ledger and the message share them."""

    before: AnySetting
    after: AnySetting
    """Requested configuration."""
    local_batches: LocalBatches = []
    """Requested samples of each worker; empty if all have the same."""
    seconds: Seconds
    """Duration of the change."""
    failure: Text = ""
    """Reason why the change failed; empty if it succeeded."""


class Changed(ChangeFacts):
    """Reports the outcome of a change of configuration."""

    type: Literal["change"] = "change"
    number: Number


class Welcome(_Message):
    """Answers a hello: the service accepts the job."""

    type: Literal["welcome"] = "welcome"
    version: Literal[1] = 1
    number: Count
    """Largest number accepted before; the job sends the messages that follow it."""


class Ack(_Message):
    """Acknowledges all messages up to this number."""

    type: Literal["ack"] = "ack"
    number: Number


class Weighed(BaseModel):
    """Holds a configuration with its goodput."""

    model_config = _STRICT

    configuration: AnySetting
    id: Text
    """Id of the configuration."""
    samples_per_s: Annotated[float, Field(ge=0)]
    efficiency: float
    goodput: float


class Decided(_Message):
    """States a decision on what the job should do."""

    type: Literal["decision"] = "decision"
    number: Number
    """Number of the message that it answers."""
    command: Literal["no_op", "scale_bs", "reconfigure", "roll_back"]
    before: AnySetting
    """Configuration for which the decision was made; a job in another one ignores the decision (`is_for`)."""
    configuration: AnySetting
    local_batches: LocalBatches = []
    before_step: Count | None = None
    """Step before which `roll_back` restores the weights."""
    reason: Text
    limits: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=20)] = []
    """Limits that excluded a better candidate."""
    current: Weighed | None = None
    chosen: Weighed | None = None
    best: Annotated[list[Weighed], Field(max_length=3)] = []
    """Candidates with the largest goodput, including those that a limit excludes."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _shared_out(self.configuration, self.local_batches)
        return self

    def is_for(self, present: Configuration) -> bool:
        """Return True if the decision counts for a job in this configuration: weights are restored whatever change came in between."""
        return self.before == present or (self.command == ROLL_BACK and self.configuration.devices == present.devices)


class Refused(_Message):
    """Refuses a message or the whole connection."""

    type: Literal["refused"] = "refused"
    reason: Text


FromJob = Annotated[Hello | StepTaken | Changed, Field(discriminator="type")]
FromService = Annotated[Welcome | Ack | Decided | Refused, Field(discriminator="type")]
_Any = TypeVar("_Any")
_FROM_JOB: TypeAdapter[Hello | StepTaken | Changed] = TypeAdapter(FromJob)
_FROM_SERVICE: TypeAdapter[Welcome | Ack | Decided | Refused] = TypeAdapter(FromService)


def from_job(text: str | bytes) -> Hello | StepTaken | Changed:
    """Parse a message from a job; raise ProtocolError if it is not valid."""
    return _read(_FROM_JOB, text)


def from_service(text: str | bytes) -> Welcome | Ack | Decided | Refused:
    """Parse a message from the service; raise ProtocolError if it is not valid."""
    return _read(_FROM_SERVICE, text)


def _read(adapter: TypeAdapter[_Any], text: str | bytes) -> _Any:
    if isinstance(text, bytes):
        raise ProtocolError("the message is binary", hint="send JSON as text")
    if len(text) > MAX_BYTES:
        raise ProtocolError(f"the message has {len(text)} characters", hint=f"send at most {MAX_BYTES}")
    try:
        facts = json.loads(text, parse_constant=_refuse)
        _require_version(facts)
        return adapter.validate_python(facts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "message"
        raise ProtocolError(f"`{where}`: {first['msg']}", hint="docs/reference/control-service.md has the fields of a message") from None
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the message is not JSON: {error}", hint="send one JSON object") from None


def _require_version(facts: object) -> None:
    """Raise ProtocolError, which names both versions, if a message states another version of the protocol."""
    theirs = facts.get("version", VERSION) if isinstance(facts, dict) else VERSION
    if theirs != VERSION:
        message = f"the message has version {str(theirs)[:20]!r} of the protocol, and version {VERSION} is spoken here"
        raise ProtocolError(message, hint="install the same version of oppa on both sides")


def _refuse(constant: str) -> float:
    raise ValueError(f"`{constant}` is not a number")
