"""Messages between a job and the control service: one JSON object each, checked in full by whoever gets it.

    job      -> service    hello, then a step behind each optimizer step, and a change behind each change of configuration
    service  -> job        welcome, an ack for all that was taken in, a decision now and then, or refused

A job numbers what it tells, from 1 on. The service takes in each number once: whoever connects again and sends what may have been lost
does no harm, and an ack names the largest number that was taken in.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model, model_validator
from pydantic.functional_serializers import PlainSerializer
from pydantic.functional_validators import PlainValidator

from oppa.errors import ProtocolError
from oppa.problem.configuration import Configuration
from oppa.problem.training import Scaling
from oppa.protocol.worker import WorkerState

VERSION = 1
MAX_BYTES = 64 * 1024
"""Of a message."""
WORKERS = 128
"""That a message may speak of: so many fit."""
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""Of a job."""

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
LARGEST = 2**31
"""Of a configuration's numbers."""
LONGEST = 400
"""Of a layout of stages, in characters."""
LEAST_S = 1e-9
"""Of an optimizer step."""
_fields: dict[str, Any] = {
    name: (
        Annotated[field, Field(ge=0, le=LARGEST)]
        if field in (int, float)
        else Annotated[field, Field(max_length=LONGEST if name == "stage_layout" else 40)]
        if field is str
        else field,
        ...,
    )
    for name, field in Configuration.__annotations__.items()
}
_Fields = create_model("_Fields", __config__=_STRICT, **_fields)
_worker_fields: dict[str, Any] = {
    name: (Annotated[field, Field(ge=0 if field is int or name != "accuracy_gain" else -1e18, le=LARGEST if field is int else 1e18)], ...)
    for name, field in WorkerState.__annotations__.items()
}
_WorkerFields = create_model("_WorkerFields", __config__=_STRICT, **_worker_fields)
_SIZES = ("dp", "tp", "pp", "ep", "global_batch", "micro_batch", "model_chunks")


def _configuration(values: object) -> Configuration:
    """Of plain values; raises ValueError for what no job can run in. Numbers stay as they were written: ids tell 25 from 25.0."""
    if isinstance(values, Configuration):
        return values
    _Fields.model_validate(values)
    assert isinstance(values, dict)
    found = Configuration(**values)
    if wrong := [name for name in _SIZES if getattr(found, name) < 1]:
        raise ValueError(f"`{wrong[0]} = {getattr(found, wrong[0])}` is not positive")
    return found


def _even(values: object) -> Configuration:
    """Of plain values; raises ValueError for what no job can run in unless workers have local batches of their own."""
    return _shared_out(_configuration(values), [])


def _shared_out(configuration: Configuration, local_batches: Sequence[int]) -> Configuration:
    """The same; raises ValueError if its global batch is not what workers take."""
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
"""Whose batch is shared out evenly."""
AnySetting = Annotated[Configuration, PlainValidator(_configuration), PlainSerializer(Configuration.to_dict)]
"""Whose workers may have local batches of their own."""
Worker = Annotated[WorkerState, PlainValidator(_worker), PlainSerializer(WorkerState.to_dict)]
LocalBatches = Annotated[list[Annotated[int, Field(ge=1, le=LARGEST)]], Field(max_length=WORKERS)]
"""Samples of each worker; none where all take as many."""
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Number = Annotated[int, Field(ge=1, le=2**53)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=2000)]


class _Message(BaseModel):
    """A message; its fields are all there, and nothing else is."""

    model_config = _STRICT

    def to_json(self) -> str:
        """As it is sent."""
        return self.model_dump_json()


class Hello(_Message):
    """The first message of a connection: which job this is, and what it will do."""

    type: Literal["hello"] = "hello"
    version: Literal[1] = 1
    job: Annotated[str, Field(pattern=f"^{NAME}$")]
    configuration: Setting
    total_samples: Count | None
    warmup_samples: Count = 0
    """Over which the learning rate rises."""
    scaling: Scaling = "sqrt"
    """How the learning rate follows the global batch."""
    reconfiguration_s: Seconds = 0.0
    """What a change of layout is expected to take, before there was one."""


class StepTaken(_Message):
    """An optimizer step."""

    type: Literal["step"] = "step"
    number: Number
    step: Count
    samples: Count
    """Seen when it ended, from the start of the run on."""
    configuration: AnySetting
    local_batches: LocalBatches = []
    step_time_s: Annotated[float, Field(ge=LEAST_S, le=1e9)]
    elapsed_s: Seconds
    noise_scale: Annotated[float, Field(ge=1e-18, le=1e18)] | None
    """In sequences."""
    health: Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]
    variance_ratio: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None
    """V / |g|^2 of the norm test, in sequences; None where the step was not measured, or does not tell."""
    worker_variance_ratio: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None
    """The same with eq. 5's V, where workers are compared."""
    loss: Annotated[float, Field(ge=-1e18, le=1e18)] | None
    learning_rate: Annotated[float, Field(ge=0, le=1e18)]
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    """Of held-out samples, when they were last looked at; None before that, or where outputs are no classes."""
    workers: Annotated[list[Worker], Field(max_length=WORKERS)] = []
    """What each says of the window of steps that ended with the step before; none where no window did."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _shared_out(self.configuration, self.local_batches)
        return self

    @property
    def tested(self) -> bool:
        """Whether it says how noisy its gradient was."""
        return self.variance_ratio is not None or self.worker_variance_ratio is not None

    @property
    def believed(self) -> float | None:
        """The noise scale, if it can be believed."""
        return self.noise_scale if self.health == "healthy" else None


class Changed(_Message):
    """What became of a change of configuration."""

    type: Literal["change"] = "change"
    number: Number
    before: AnySetting
    after: AnySetting
    """What was wanted."""
    local_batches: LocalBatches = []
    """The same."""
    seconds: Seconds
    failure: Text = ""


class Welcome(_Message):
    """The service knows the job."""

    type: Literal["welcome"] = "welcome"
    version: Literal[1] = 1
    number: Count
    """The largest that was taken in before: what is behind it is wanted."""


class Ack(_Message):
    """All up to this number is taken in."""

    type: Literal["ack"] = "ack"
    number: Number


class Weighed(BaseModel):
    """A configuration, and what it is worth."""

    model_config = _STRICT

    configuration: AnySetting
    id: Text
    """The configuration's."""
    samples_per_s: Annotated[float, Field(ge=0)]
    efficiency: float
    goodput: float


class Decided(_Message):
    """What the job should do."""

    type: Literal["decision"] = "decision"
    number: Number
    """Of the message that it answers."""
    command: Literal["no_op", "scale_bs", "reconfigure", "roll_back"]
    before: AnySetting
    """What the job was in: a job that is in something else by now does not do it."""
    configuration: AnySetting
    local_batches: LocalBatches = []
    before_step: Count | None = None
    """Under `roll_back`: the weights should be from before this step."""
    reason: Text
    limits: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=20)] = []
    """What kept the service from something else."""
    current: Weighed | None = None
    chosen: Weighed | None = None
    best: Annotated[list[Weighed], Field(max_length=3)] = []
    """The largest goodputs of the table, whether or not anything speaks against them."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _shared_out(self.configuration, self.local_batches)
        return self


class Refused(_Message):
    """A message, or the whole connection, was not accepted."""

    type: Literal["refused"] = "refused"
    reason: Text


FromJob = Annotated[Hello | StepTaken | Changed, Field(discriminator="type")]
FromService = Annotated[Welcome | Ack | Decided | Refused, Field(discriminator="type")]
_Any = TypeVar("_Any")
_FROM_JOB: TypeAdapter[Hello | StepTaken | Changed] = TypeAdapter(FromJob)
_FROM_SERVICE: TypeAdapter[Welcome | Ack | Decided | Refused] = TypeAdapter(FromService)


def from_job(text: str | bytes) -> Hello | StepTaken | Changed:
    """What a job has sent; raises ProtocolError for anything else."""
    return _read(_FROM_JOB, text)


def from_service(text: str | bytes) -> Welcome | Ack | Decided | Refused:
    """What the service has sent; raises ProtocolError for anything else."""
    return _read(_FROM_SERVICE, text)


def _read(adapter: TypeAdapter[_Any], text: str | bytes) -> _Any:
    if isinstance(text, bytes):
        raise ProtocolError("a binary message", hint="send JSON as text")
    if len(text) > MAX_BYTES:
        raise ProtocolError(f"a message of {len(text)} characters", hint=f"send at most {MAX_BYTES}")
    try:
        return adapter.validate_python(json.loads(text, parse_constant=_refuse))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "message"
        raise ProtocolError(f"`{where}`: {first['msg']}", hint="see docs/control.md for what a message holds") from None
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message that is not JSON: {error}", hint="send one JSON object") from None


def _refuse(constant: str) -> float:
    raise ValueError(f"`{constant}` is no number")
