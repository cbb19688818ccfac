"""Make studies by hand: a proven one, and the unusual ones that a page must bear."""

import pytest

from oppa.problem.configuration import Configuration
from oppa.study import Prediction, Study
from oppa.trials.throughput import ThroughputEstimate
from oppa.trials.trial import TrialResult
from tests.jobs import problem_of

JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
runner = {name = "torch"}
limits = {q_min = 2, q_max = 8, repeats = 3}
[space.parameters]
zero_stage = 0
dp_bucket_mb = 25
recompute = "none"
"""
DEFAULT, SECOND, BEST, FULL, SLOW = (
    Configuration(dp=2, global_batch=16, micro_batch=1),
    Configuration(dp=2, global_batch=16, micro_batch=2),
    Configuration(dp=2, global_batch=16, micro_batch=4),
    Configuration(dp=2, global_batch=16, micro_batch=8),
    Configuration(dp=1, tp=2, global_batch=16, micro_batch=4),
)
EVIL = """</pre></td></script><script>alert(1)</script><img src="http://e/x" onerror='alert(1)'> & {{ 7 * 7 }} {% raw %} \x1b[31m \x00"""


class Clock:
    """Moves a second at every look."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def ran(steps_per_s, outcome="completed", steps=8) -> TrialResult:
    """A measured trial."""
    estimate = ThroughputEstimate(steps_per_s=steps_per_s, variance=(0.01 * steps_per_s) ** 2, kept=steps - 1)
    return TrialResult(
        outcome=outcome, step_times_s=(1 / steps_per_s,) * steps, estimate=estimate, memory_bytes=2**26, seconds=2.0, setup_s=0.1
    )


def lost(outcome, cause="", traceback="", rank=None) -> TrialResult:
    """A trial that measured nothing."""
    return TrialResult(outcome=outcome, cause=cause, traceback=traceback, rank=rank, seconds=1.0)


def predicted(steps_per_s, memory_bytes=2**26) -> Prediction:
    return Prediction(steps_per_s=steps_per_s, log_stddev=0.2, memory_bytes=memory_bytes, memory_log_stddev=0.1)


def fill_proven(study) -> None:
    """Five trials of the search, and three repeats of each contender: the winner is twice as fast as the default."""
    for configuration, expected, result in (
        (DEFAULT, 40.0, ran(50)),
        (SECOND, 70.0, ran(70)),
        (BEST, 300.0, ran(100)),
        (FULL, 150.0, lost("out_of_memory", "cannot allocate 3 MiB", "Traceback: here", 1)),
        (SLOW, 52.0, ran(50, "terminated_early", steps=4)),
    ):
        study.finish(study.claim(configuration, prediction=predicted(expected)), result)
    for factor in (0.98, 1.0, 1.02):
        for configuration, steps_per_s in ((DEFAULT, 50), (SECOND, 70), (BEST, 100)):
            study.finish(study.claim(configuration, pairing="|".join(sorted((DEFAULT.id, SECOND.id, BEST.id)))), ran(factor * steps_per_s))


def fill_infeasible(study) -> None:
    for configuration in (DEFAULT, SECOND):
        study.finish(study.claim(configuration), lost("out_of_memory", "cannot allocate"))


def fill_single(study) -> None:
    study.finish(study.claim(SLOW), ran(3.0))


def fill_running(study) -> None:
    study.finish(study.claim(DEFAULT), ran(3.0))
    study.claim(BEST)


def fill_unpredicted(study) -> None:
    for number, configuration in enumerate((BEST, SECOND, SLOW), start=1):
        study.finish(study.claim(configuration), ran(number))


def fill_hostile(study) -> None:
    study.open_session({"command": EVIL, EVIL: EVIL})
    study.finish(study.claim(DEFAULT, prediction=predicted(1.0)), ran(3.0))
    for configuration, outcome in ((SECOND, "failed"), (BEST, "timed_out"), (FULL, "interrupted")):
        study.finish(study.claim(configuration), lost(outcome, EVIL, EVIL, 1))
    (study.folder / "best").mkdir()
    (study.folder / "best" / "run.sh").write_text(EVIL)
    (study.folder / "best" / "configuration.json").write_text("[1]")


FILLS = {
    "empty": lambda study: None,
    "infeasible": fill_infeasible,
    "single": fill_single,
    "running": fill_running,
    "unpredicted": fill_unpredicted,
    "hostile": fill_hostile,
    "proven": fill_proven,
}


@pytest.fixture(scope="session")
def problem(tmp_path_factory):
    return problem_of(JOB, tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="session")
def make_study(problem, tmp_path_factory):
    """A study by the name of what it holds."""

    def make(name: str) -> Study:
        study = Study.create(tmp_path_factory.mktemp("studies") / name, problem.to_dict(), problem.fingerprint, clock=Clock())
        FILLS[name](study)
        return study

    return make


@pytest.fixture(scope="session", params=list(FILLS))
def study(request, make_study):
    with make_study(request.param) as made:
        yield made
