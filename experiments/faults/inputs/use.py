"""Use a job that was accepted as a search does, without starting a trial: whatever a reader accepts must be usable."""

import contextlib
import json
from pathlib import Path

from oppa import api
from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.selector import find
from oppa.problem.trial_values import values_of
from oppa.simulator.framework import FRAMEWORKS
from oppa.study.records import Lease
from oppa.trials.trial_folder import TrialSpec
from oppa.tuning import designers

PLANNED = 100_000
"""Most configurations of a search that is planned; the surrogate takes seconds for more."""


def use(problem: Problem, folder: Path) -> None:
    """Plan the search of a job, store its problem, and write what its first and last trial would be started with.

    Raises:
        OppaError: The job is refused.
        AssertionError: Something reads back as another value.
    """
    candidates = problem.candidates()
    simulated = problem.runner.name == "simulated"
    if len(candidates) <= PLANNED and simulated and problem.space.name in FRAMEWORKS:
        api.plan(problem)
    elif len(candidates) <= PLANNED and (simulated or problem.command):
        designers.make_designer(designers.DEFAULT, problem, candidates, seed=0).suggest(set())
    stored = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert stored.fingerprint == problem.fingerprint, "the stored problem is another one"
    for number in {0, len(candidates) - 1}:
        configuration = candidates.configuration(number)
        assert Configuration.checked(json.loads(json.dumps(configuration.to_dict()))) == configuration, "another configuration is read"
        assert _named(configuration.id, candidates) == [number], "an id names another configuration"
        _start(stored, configuration, number, folder)


def _named(id: str, candidates: Candidates) -> list[int]:
    """Return the candidates that an id names."""
    with contextlib.suppress(InputError):
        return [int(number) for number in find(id, candidates)[1]]
    return []


def _start(problem: Problem, configuration: Configuration, number: int, folder: Path) -> None:
    """Write a trial's folder, and fill in its launch line and its variables as an operating system takes them."""
    lease = Lease(trial=number, configuration=configuration, purpose="search", token=0)
    trial = folder / "trials" / lease.folder_name
    TrialSpec.of(problem, configuration, study="s", trial=number, steps=5).write(trial)
    spec = TrialSpec.read(trial)
    for name, value in spec.environment.items():
        assert "=" not in name and "\0" not in name + value, f"no variable is {name!r:.100} with the value {value!r:.100}"
    if spec.command:
        values = values_of(spec.configuration, spec.stated_model, spec.cluster, spec.training, steps=spec.steps, folder=trial)
        for word in spec.command.words(values, {file.name: trial for file in spec.command.files}):
            assert "\0" not in word and word.encode() is not None, f"no program gets {word!r:.100}"
        for file in spec.command.files:
            json.dumps(file.rewritten(values), allow_nan=False)
        assert spec.command.steps is None or spec.command.steps.batches(values) > 0, "no batch makes a step"
