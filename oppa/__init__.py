"""oppa finds the fastest way to run a distributed training job, verifies it by measurement, and adapts it while the job runs.

The functions and classes below are the Python interface. Each is imported when it is first used, so that `import oppa` loads nothing.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppa.api import load_job, load_line, plan, plan_profile, plan_verification, predict, profile, profile_scales, train, tune, verify
    from oppa.api.rows import predict_rows
    from oppa.control.training_session.callback import RunCallback, TrainCallback
    from oppa.control.training_session.result import TrainResult
    from oppa.cost.ranking import PredictResult
    from oppa.errors import OppaError
    from oppa.problem.configuration import Configuration
    from oppa.problem.problem import Problem
    from oppa.problem.space import SearchSpace
    from oppa.simulator.benchmark_task import BenchmarkTask
    from oppa.study import Study, Trial
    from oppa.table import Table
    from oppa.tuning.comparison import Contender
    from oppa.tuning.launch_line.line_job import LineJob
    from oppa.tuning.outcomes import ProfileResult, SearchResult
    from oppa.tuning.plan import TunePlan
    from oppa.tuning.profile_plan import ProfilePlan
    from oppa.tuning.scale_profile import ScaleProfile
    from oppa.tuning.session import SessionCallback
    from oppa.tuning.trial_executor import SearchCallback
    from oppa.tuning.verification import Interval, SpeedUp
    from oppa.tuning.verify.plan import VerifyPlan
    from oppa.tuning.verify.result import VerifyResult

__version__ = "0.1.0"
_DEFINED = {
    "api": "load_job load_line plan plan_profile plan_verification predict profile profile_scales train tune verify",
    "api.rows": "predict_rows",
    "control.training_session.callback": "RunCallback TrainCallback",
    "control.training_session.result": "TrainResult",
    "cost.ranking": "PredictResult",
    "errors": "OppaError",
    "problem.configuration": "Configuration",
    "problem.problem": "Problem",
    "problem.space": "SearchSpace",
    "simulator.benchmark_task": "BenchmarkTask",
    "study": "Study Trial",
    "table": "Table",
    "tuning.comparison": "Contender",
    "tuning.launch_line.line_job": "LineJob",
    "tuning.outcomes": "ProfileResult SearchResult",
    "tuning.plan": "TunePlan",
    "tuning.profile_plan": "ProfilePlan",
    "tuning.scale_profile": "ScaleProfile",
    "tuning.session": "SessionCallback",
    "tuning.trial_executor": "SearchCallback",
    "tuning.verification": "Interval SpeedUp",
    "tuning.verify.plan": "VerifyPlan",
    "tuning.verify.result": "VerifyResult",
}
"""The names that each module defines for this interface."""
__all__ = [
    "BenchmarkTask",
    "Configuration",
    "Contender",
    "Interval",
    "LineJob",
    "OppaError",
    "PredictResult",
    "Problem",
    "ProfilePlan",
    "ProfileResult",
    "RunCallback",
    "ScaleProfile",
    "SearchCallback",
    "SearchResult",
    "SearchSpace",
    "SessionCallback",
    "SpeedUp",
    "Study",
    "Table",
    "TrainCallback",
    "TrainResult",
    "Trial",
    "TunePlan",
    "VerifyPlan",
    "VerifyResult",
    "load_job",
    "load_line",
    "plan",
    "plan_profile",
    "plan_verification",
    "predict",
    "predict_rows",
    "profile",
    "profile_scales",
    "train",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a name of the interface when it is first used; the program decides where its warnings go."""
    module = next((module for module, names in _DEFINED.items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _silence_by_default()
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def _silence_by_default() -> None:
    """Keep Python from printing warnings if the program has no handler; ranks and commands, which use no name of it, print theirs."""
    log = logging.getLogger(__name__)
    if not log.handlers:
        log.addHandler(logging.NullHandler())


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
