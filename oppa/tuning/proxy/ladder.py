"""Run a search in two sizes: the designer searches the smaller one, and the best that it predicts are measured and verified at full size.

The study of the smaller size lies in the folder of the full-size one. Both resume where they ended, and share one budget of GPU-hours.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from oppa.cost.coefficients import Belief
from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.study import Study
from oppa.study.database import FILE
from oppa.study.records import VERIFICATION
from oppa.tuning import designers
from oppa.tuning.designer import Observation
from oppa.tuning.nothing_feasible import nothing_feasible
from oppa.tuning.outcomes import SearchResult
from oppa.tuning.proxy.budget import limited
from oppa.tuning.proxy.choice import choose
from oppa.tuning.proxy.nested import FOLDER, nested_study
from oppa.tuning.proxy.rung import Rung
from oppa.tuning.proxy.stand_ins import Proxy, proxy_of
from oppa.tuning.proxy.upward import Upward
from oppa.tuning.search import search
from oppa.tuning.session import SessionOptions, Setup, open_session
from oppa.tuning.spending import spending_on
from oppa.tuning.stopping import StopTest, make_rule
from oppa.tuning.winner import search_and_verify


def climb(setup: Setup, options: SessionOptions, designer: str, beliefs: Mapping[str, Belief] | None) -> SearchResult:
    """Search the smaller size of a job, then measure and verify at full size what it predicts to be the fastest.

    Args:
        designer: Name of the designer of the smaller search.
        beliefs: Coefficients learned elsewhere.

    Raises:
        InputError: the job has no smaller size.
        InfeasibleError: no configuration could run; the study keeps the trials.
    """
    problem, candidates = setup.problem, setup.candidates
    proxy = proxy_in(setup, options.folder)
    rule = make_rule(problem.search_options.stopping or designers.default_stopping(designer), problem.limits)
    observations = _search_smaller(setup, options, proxy, designer, beliefs, rule)
    made = Upward(problem, candidates, proxy, observations, beliefs=beliefs)
    below = nested_study(options.folder)
    elsewhere_s = below.seconds_on(problem.cluster) if below else 0.0
    with open_session(setup, dataclasses.replace(options, elsewhere_s=elsewhere_s)) as executor:
        ended, found = search_and_verify(executor, candidates, made, rule)
        if found is None:
            raise nothing_feasible(executor.study, problem)
        return SearchResult.of(executor, found, ended)


def proxy_in(setup: Setup, folder: Path | None) -> Proxy:
    """Return the smaller size of a search in a folder: that of an earlier session if there is one, else a stated or proposed one.

    Raises:
        InputError: the job has no smaller size.
    """
    problem, candidates = setup.problem, setup.candidates
    if setup.simulator is not None:
        raise InputError(f"`{problem.name}` is replayed, and a table has no smaller size", hint="remove [proxy]")
    return (folder and resumed(problem, candidates, folder)) or choose(problem, candidates)


def resumed(problem: Problem, candidates: Candidates, folder: Path) -> Proxy | None:
    """Return the smaller size that an earlier session of a study chose; None if there is none, or the job states another one."""
    if (below := nested_study(folder)) is None:
        return None
    rung, stated = Rung.of(below.problem), problem.proxy
    if stated and any(value not in (None, getattr(rung, name)) for name, value in dataclasses.asdict(stated).items()):
        return None
    return proxy_of(problem, candidates, rung)


def _search_smaller(
    setup: Setup, options: SessionOptions, proxy: Proxy, designer: str, beliefs: Mapping[str, Belief] | None, rule: StopTest
) -> Sequence[Observation]:
    """Search the smaller size, and return the observations of its trials.

    Raises:
        InfeasibleError: no configuration could run there.
    """
    problem = limited_in(setup, proxy, options.folder)
    request = setup.request if setup.runner.in_process else setup.request.resolve(problem.cluster)
    smaller = dataclasses.replace(setup, problem=problem, candidates=proxy.candidates, request=request)
    nested = dataclasses.replace(options, folder=options.folder / FOLDER, part_of=options.folder, expected=None)
    options.folder.mkdir(exist_ok=True, parents=True)
    with open_session(smaller, nested) as executor:
        made = designers.make_designer(designer, problem, proxy.candidates, seed=options.seed, beliefs=beliefs)
        search(executor, proxy.candidates, made, rule)
        trials = [trial for trial in executor.study.trials() if trial.counts and trial.purpose != VERIFICATION]
        if not any(trial.steps_per_s for trial in trials):
            raise nothing_feasible(executor.study, problem)
        return [Observation.of(trial, proxy.candidates) for trial in trials]


def limited_in(setup: Setup, proxy: Proxy, folder: Path) -> Problem:
    """Return the proxy's problem with its share of the limits, given what earlier sessions of the study in a folder spent at full size."""
    spent = 0.0
    if (folder / FILE).is_file():
        with Study(folder) as study:
            spent = spending_on(study.trials(), setup.problem, idle_s=study.idle_s()).gpu_hours
    return limited(proxy, setup.problem, setup.candidates, spent_at_full_size=spent)
