"""Check the events that a ledger holds, for readers of a file that may be damaged."""

from collections.abc import Mapping
from typing import Any

from oppa.errors import CheckpointError
from oppa.problem.configuration import Configuration

STEP = "step"
MEND = "move this file away: the checkpoints in the folder are intact"
"""Hint of every error about a damaged ledger."""

Line = Mapping[str, Any]
_NUMBER = int | float
_KINDS: dict[str, Any] = {
    "event": str,
    "step": int,
    "time": _NUMBER,
    "elapsed_s": _NUMBER,
    "step_time_s": _NUMBER,
    "global_batch": int,
    "micro_batch": int,
    "loss": _NUMBER | None,
    "accuracy": _NUMBER | None,
    "noise_scale": _NUMBER | None,
    "learning_rate": _NUMBER | None,
    "variance_ratio": _NUMBER | None,
    "health": str,
    "samples": int | list,
    "shares": list,
    "local_batches": list,
    "hosts": list,
    "workers": list,
    "configuration": str | dict,
    "before": dict,
    "after": dict,
    "seconds": _NUMBER | dict,
    "received_bytes": int,
    "reason": str,
    "failure": str,
    "weighed": dict | None,
    "finished": bool,
}
"""Types of the fields that readers use."""
_BOUNDS: dict[str, tuple[float, float]] = {"step": (0, 1e18), "global_batch": (1, 1e18), "micro_batch": (1, 1e18)}
_BOUNDS |= {"step_time_s": (1e-9, 1e12), "elapsed_s": (0, 1e12), "time": (0, 1e12), "noise_scale": (1e-18, 1e18)}
"""Least and largest values of fields with which readers compute."""


class _Event(dict[str, Any]):
    """Holds the fields of an event. A field that is missing is damage, which only the reader of the field can notice."""

    def __missing__(self, name: str) -> Any:
        raise CheckpointError(f"the ledger is damaged: a line of the event `{self['event']}` has no `{name}`", hint=MEND)


def event_of(line: Any) -> Line:
    """Return a line of JSON as an event.

    Raises:
        AttributeError, TypeError, ValueError: it is no event, or a field has a value that no run writes.
    """
    if not isinstance(line, dict) or "event" not in line:
        raise ValueError(f"`{line!r:.100}` is not an event")
    for name, value in line.items():
        if not isinstance(value, _KINDS.get(name, object)) or not _is_bounded(value):
            raise TypeError(f"`{name} = {value!r:.100}`")
    for name, (least, most) in _BOUNDS.items():
        if line.get(name) is not None and not least <= line[name] <= most:
            raise ValueError(f"`{name} = {line[name]}` is not between {least:g} and {most:g}")
    if not all(isinstance(name, str) and name.isprintable() for name in line.get("hosts", ())):
        raise TypeError(f"`hosts = {line['hosts']!r:.100}`")
    for name in ("configuration", "before", "after"):
        if name in line and line["event"] != STEP:  # a step has the id alone
            Configuration.checked(line[name])
    if line["event"] == STEP:
        _require_step(line)
    elif "after" in line:
        _require_change(line)
    return _Event(line)


def _require_step(line: Line) -> None:
    """Raise TypeError unless the samples of a step and of its replicas are ranges, and the id of its configuration is plain text."""
    configuration = line.get("configuration", "")
    if not isinstance(configuration, str) or not configuration.isprintable():
        raise TypeError(f"`configuration = {configuration!r:.100}`")
    for numbers, length in [(line.get("samples", [0, 0]), 2), *((share, 3) for share in line.get("shares", ()))]:
        if not isinstance(numbers, list) or len(numbers) != length or any(type(each) is not int or each < 0 for each in numbers):
            raise TypeError(f"`{numbers!r:.100}` is not a range of samples")


def _require_change(line: Line) -> None:
    """Raise AttributeError or TypeError unless a change has a number of samples, durations by name, and a goodput of each option."""
    weighed = line.get("weighed") or {}
    options = [weighed.get("current"), weighed.get("chosen"), *(weighed.get("best") or ())]
    numbers = [line.get("samples", 0), *line.get("seconds", {}).values(), *(option.get("goodput") for option in options if option)]
    if not all(isinstance(number, _NUMBER) and abs(number) <= 1e18 for number in numbers):
        raise TypeError(f"`{numbers!r:.100}` are not finite numbers")


def _is_bounded(value: Any) -> bool:
    """Return False if a value has an integer that no column or float can hold."""
    if isinstance(value, dict | list):
        return all(map(_is_bounded, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or abs(value) < 1 << 63
