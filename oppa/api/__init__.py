"""The Python interface: what the commands do, as functions that print nothing.

    import oppa
    result = oppa.tune("job.toml", trials=20)
    print(result.best.configuration, result.best.steps_per_s)

Trials run in processes of their own, so a script needs no `__main__` guard, and may be a notebook or standard input. Ctrl-C raises
KeyboardInterrupt once the running trial has ended; the same call with `study=` continues the search.
"""

from oppa.api.jobs import Resume, load_job, load_line
from oppa.api.prediction import predict
from oppa.api.profiling import plan_profile, profile, profile_scales
from oppa.api.search import plan, tune
from oppa.api.training import train
from oppa.api.verification import plan_verification, verify

__all__ = [
    "Resume",
    "load_job",
    "load_line",
    "plan",
    "plan_profile",
    "plan_verification",
    "predict",
    "profile",
    "profile_scales",
    "train",
    "tune",
    "verify",
]
