"""Read the rows of a study's file as records, and refuse a damaged row: a value of the wrong type, or outside its bounds.

A trial is a program of the user that can write any file of the user's, and disks fail. Damage to one row must not cost the others.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError

from oppa.errors import StudyError
from oppa.plain_text import plain_text
from oppa.problem.configuration import Configuration
from oppa.regular_file import parse_json
from oppa.study.records import BASELINE, DRIFT, SEARCH, VERIFICATION, Lease, Prediction, Trial
from oppa.trials.trial_folder import BOUNDS, Outcome

_LEAST_S, _MOST_S = BOUNDS["step_time_s"]
_Time = Annotated[float, Field(ge=0, le=BOUNDS["time"][1])]
_StepTime = Annotated[float, Field(ge=_LEAST_S, le=_MOST_S)]
_Rate = Annotated[float, Field(ge=1 / _MOST_S, le=1 / _LEAST_S)]
_Spread = Annotated[float, Field(ge=0, le=1 / _LEAST_S**2)]
_Bytes = Annotated[int, Field(ge=0, le=BOUNDS["memory_bytes"][1])]


class _Prediction(BaseModel):
    """Validates a prediction."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    steps_per_s: Annotated[float, Field(gt=0)]
    log_stddev: Annotated[float, Field(ge=0)]
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    memory_log_stddev: Annotated[float, Field(ge=0)] | None = None
    probability_fits: Annotated[float, Field(ge=0, le=1)] | None = None


class _Row(BaseModel):
    """Validates the row of a trial that ended; the fields are the columns."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    id: int
    configuration: str
    purpose: Literal["search", "baseline", "verification", "drift"]
    pairing: str | None
    outcome: Outcome
    cause: str | None
    rank: Annotated[int, Field(ge=BOUNDS["rank"][0], le=BOUNDS["rank"][1])] | None
    traceback: str | None
    step_times_s: Json[list[_StepTime]] | None
    steps_per_s: _Rate | None
    variance: _Spread | None
    memory_bytes: _Bytes | None
    prediction: Json[_Prediction] | None
    seconds: _Time | None
    setup_s: _Time | None
    started_at: _Time
    hosts: Json[list[str]] | None


COLUMNS = ", ".join(_Row.model_fields)
"""The columns of a trial that ended, as SQL lists them."""


def prediction_fault(prediction: Prediction) -> str:
    """Return why a trial with this prediction could not be read from the study; empty if it could."""
    try:
        _Prediction.model_validate({name: getattr(prediction, name, None) for name in _Prediction.model_fields})
    except ValidationError as error:
        return _first(error)
    return ""


def _first(error: ValidationError) -> str:
    """Return the first fault that a validation found, with the name of its value."""
    first = error.errors(include_url=False)[0]
    return f"`{'.'.join(map(str, first['loc']))} = {first['input']!r}`: {first['msg']}"


def read_trial(row: Mapping[str, Any]) -> Trial:
    """Return the trial in a row.

    Raises:
        StudyError: the row is damaged.
    """
    try:
        checked = _Row.model_validate(dict(row))
    except ValidationError as error:
        raise StudyError(_first(error)) from None
    given = dict(checked) | {
        "configuration": read_configuration(checked.configuration),
        "cause": plain_text(checked.cause or ""),
        "traceback": plain_text(checked.traceback or ""),
        "step_times_s": tuple(checked.step_times_s or ()),
        "prediction": Prediction(**dict(checked.prediction)) if checked.prediction else None,
        "seconds": checked.seconds or 0.0,
        "hosts": tuple(map(plain_text, checked.hosts or ())),
    }
    return Trial(**given)


def read_lease(row: Mapping[str, Any]) -> Lease:
    """Return the lease in the row of a trial that runs.

    Raises:
        StudyError: the row is damaged.
    """
    if row["purpose"] not in (SEARCH, BASELINE, VERIFICATION, DRIFT) or not isinstance(row["token"], int):
        raise StudyError(f"`purpose = {row['purpose']!r}`, `token = {row['token']!r}`")
    return Lease(
        trial=row["id"],
        configuration=read_configuration(row["configuration"]),
        purpose=row["purpose"],
        pairing=row["pairing"],
        token=row["token"],
    )


def read_configuration(text: str) -> Configuration:
    """Return the configuration that a row holds as JSON; raises StudyError if it is not one."""
    try:
        return Configuration.checked(parse_json(text))
    except (ValueError, TypeError) as error:
        raise StudyError(f"`configuration` is not a configuration: {error}") from None


def read_json(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return the JSON object of a column; raises StudyError if it holds anything else."""
    try:
        values = parse_json(row[column])
    except (ValueError, TypeError):
        values = None
    if not isinstance(values, dict):
        raise StudyError(f"`{column}` is no JSON object")
    return values
