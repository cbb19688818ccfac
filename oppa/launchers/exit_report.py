"""Read the report in which a host hands in how a trial's processes ended there (`exit0.json`); a trial can write that file too."""

import signal
from collections.abc import Mapping
from typing import Any

from oppa.plain_text import plain_text
from oppa.regular_file import parse_json
from oppa.trials.launcher import Exit, ProcessExit
from oppa.trials.trial_folder import CAUSE, TRACEBACK

EXIT_BYTES, LAST = 4 << 20, 1e11
"""Longest report, and latest time in it, in Unix seconds."""
_KINDS: dict[str, Any] = {"rank": int | None, "code": int | None, "signal": int | None, "time": int | float}


def parse_exit(body: bytes) -> Exit:
    """Return the ends of a host's processes.

    Only the pool decides whether hosts were withdrawn, so `revoked` is left out.

    Raises:
        KeyError, TypeError, ValueError: the body is not such a report.
    """
    values = parse_json(body)
    if not isinstance(values, dict) or not isinstance(values["processes"], list):
        raise TypeError("it is not a report of processes")
    for name in ("failure", "traceback"):
        if not isinstance(values[name], str):
            raise TypeError(f"`{name} = {values[name]!r:.100}`")
    return Exit(
        processes=tuple(map(_process, values["processes"])),
        failure=plain_text(values["failure"], limit=CAUSE),
        kernel_oom=values["kernel_oom"] is True,
        traceback=plain_text(values["traceback"], limit=TRACEBACK),
    )


def _process(values: Mapping[str, Any]) -> ProcessExit:
    for name, kind in _KINDS.items():
        if not isinstance(values[name], kind) or isinstance(values[name], bool):
            raise TypeError(f"`{name} = {values[name]!r:.100}`")
    if values["signal"] is not None and not 0 < values["signal"] < signal.NSIG:
        raise ValueError(f"`signal = {values['signal']}`")
    if not 0 <= values["time"] <= LAST:
        raise ValueError(f"`time = {values['time']}`")
    return ProcessExit(**{name: values[name] for name in _KINDS})
