"""Ask a designer for a candidate or a prediction, and check its answer, since a designer may be the user's own.

Without the check, a wrong answer raises an unrelated error later. Or it stores a trial that no session can read, so that each session runs
it again.
"""

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

from oppa.errors import InputError, OppaError
from oppa.study import Prediction
from oppa.study.rows import prediction_fault
from oppa.tuning.designer import Designer

HINT = "mend the designer; the same command goes on with the study"


@contextlib.contextmanager
def asking(designer: Designer) -> Iterator[None]:
    """Run a call of a designer; raises InputError, which names the designer, if one that is not oppa's fails."""
    try:
        yield
    except OppaError:
        raise
    except Exception as error:
        if type(designer).__module__.startswith("oppa."):
            raise
        raise InputError(f"the designer `{name_of(designer)}` fails: {type(error).__name__}: {error}", hint=HINT) from error


def checked_candidate(designer: Designer, answer: Any, size: int) -> int | None:
    """Return the candidate that a designer suggests, or None; raises InputError unless it is one of `size` candidates, by number."""
    if answer is None:
        return None
    try:
        candidate = operator.index(answer)
    except TypeError:
        candidate = -1
    if not 0 <= candidate < size:
        raise InputError(f"the designer `{name_of(designer)}` suggests {answer!r}, which is no number from 0 to {size - 1}", hint=HINT)
    return candidate


def prediction_of(designer: Designer, candidate: int) -> Prediction | None:
    """Return the prediction for a trial of the candidate; raises InputError if it cannot be stored."""
    with asking(designer):
        prediction = designer.predict(candidate)
    if prediction is not None and (fault := prediction_fault(prediction)):
        raise InputError(f"the designer `{name_of(designer)}` predicts {fault}", hint=HINT)
    return prediction


def name_of(designer: Designer) -> str:
    """Return the module and the class of a designer, as a user names their own."""
    return f"{type(designer).__module__}:{type(designer).__qualname__}"
