"""Validate the value of an option of a launcher or a tracker, which checks the option itself."""

import math

from pydantic_core import PydanticCustomError

from oppa.extensions import OptionValue


def option_value(value: object) -> object:
    """Return a string, a finite number or a boolean; raises PydanticCustomError for anything else."""
    if not isinstance(value, OptionValue) or (isinstance(value, float) and not math.isfinite(value)):
        hint = "write a string in quotes, a number, or true or false"
        raise PydanticCustomError("quantity", "{message}", {"message": "an option is a string, a number or a boolean", "hint": hint})
    return value
