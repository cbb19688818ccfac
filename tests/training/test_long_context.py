"""The example of long sequences: its job offers to share sequences, and the core runs every configuration of it."""

from pathlib import Path

from oppa.problem.job import load_job
from oppa.training.parallel.supported_layouts import require_buildable, require_measurable, require_runnable

EXAMPLE = Path(__file__).parents[2] / "examples" / "long_context.toml"


def test_every_configuration_of_the_example_can_be_built_and_trained() -> None:
    problem = load_job(EXAMPLE)
    configurations = list(problem.candidates())
    for configuration in configurations:
        require_buildable(problem.model, configuration)
        require_runnable(problem.model, configuration)
        require_measurable(configuration, problem.run_options.statistics_every)
    assert {configuration["cp"] for configuration in configurations} == {1, 2, 4}
    assert {configuration["sequence_parallel"] for configuration in configurations} == {False, True}
    assert len({configuration.id for configuration in configurations}) == len(configurations)
