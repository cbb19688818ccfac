"""Launch lines of configurations, as trials start them."""

from pathlib import Path

from oppa.problem.trial_values import values_of
from oppa.trials.trial_folder import TrialSpec


def line(problem, configuration):
    """The launch line of a configuration."""
    spec = TrialSpec.of(problem, configuration, study="s", trial=1, steps=3)
    values = values_of(configuration, problem.stated_model, problem.cluster, problem.training, steps=3, folder=Path())
    return spec.command.words(values, {})
