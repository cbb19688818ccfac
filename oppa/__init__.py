"""oppa finds the fastest way to run a distributed training job, verifies it by measurement, and adapts it while the job runs.

The functions and classes below are the Python interface. Each is imported when it is first used, so that `import oppa` loads nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppa.api import load_job, load_line, predict, profile, train, tune, verify
    from oppa.errors import OppaError
    from oppa.problem.configuration import Configuration
    from oppa.problem.problem import Problem
    from oppa.problem.space import SearchSpace
    from oppa.study import Study, Trial
    from oppa.table import Table
    from oppa.tuning.trial_executor import SearchCallback

__version__ = "0.1.0"
_MODULES = {
    "load_job": "api",
    "load_line": "api",
    "predict": "api",
    "profile": "api",
    "train": "api",
    "tune": "api",
    "verify": "api",
    "OppaError": "errors",
    "Configuration": "problem.configuration",
    "Problem": "problem.problem",
    "SearchSpace": "problem.space",
    "Study": "study",
    "Trial": "study",
    "Table": "table",
    "SearchCallback": "tuning.trial_executor",
}
"""The module of each name."""
__all__ = [
    "Configuration",
    "OppaError",
    "Problem",
    "SearchCallback",
    "SearchSpace",
    "Study",
    "Table",
    "Trial",
    "load_job",
    "load_line",
    "predict",
    "profile",
    "train",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a name of the interface when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
