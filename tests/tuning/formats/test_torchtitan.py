"""The knobs of torchtitan's space in its recipe: each is written and read back, or refused by its name."""

import numpy as np
import pytest

from oppa.errors import InputError
from oppa.tuning.formats import export, torchtitan
from tests.tuning.formats.conftest import ask, at, read_back
from tests.tuning.formats.torchtitan_knobs import EVERY_KNOB

KNOBS = ", ".join(EVERY_KNOB.strip().splitlines())
PARSED = """
import json, os, sys
from torchtitan.config import ConfigManager
os.environ["BASE"], found = "torchtitan.models.llama3.config_registry:llama3_debugmodel", []
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    sys.modules.pop("oppa_recipe", None)
    config = ConfigManager().parse_args(["--module", "oppa_recipe", "--config", "fastest"])
    p, ac = config.parallelism, config.activation_checkpoint
    found.append([p.context_parallel_degree, p.context_parallel_load_balancer, p.data_parallel_replicate_degree,
        p.data_parallel_shard_degree, config.compile.enable, not config.training.disable_cuda_graphs,
        getattr(ac, "memory_budget", None), config.optimizer.implementation])
print(json.dumps(found))
"""


def chosen(problem, number):
    """Configurations all over the space."""
    candidates = problem.candidates()
    return [candidates.configuration(int(index)) for index in np.linspace(0, len(candidates) - 1, number, dtype=int)]


@pytest.mark.slow
@pytest.mark.parametrize("knobs", ["", KNOBS], ids=["plain", "every knob"])
def test_every_configuration_of_torchtitans_own_space_reads_back(knobs, problem_of) -> None:
    problem = problem_of("torchtitan", knobs=knobs)
    for configuration in chosen(problem, 500):
        assert read_back("torchtitan", problem, export("torchtitan", problem, configuration)) == configuration


def test_float8_is_refused_by_its_name(problem_of) -> None:
    problem = problem_of("torchtitan", knobs='float8 = ["none", "llama3_8b_float8"]')
    quantised = next(each for each in problem.candidates() if each["float8"] != "none")
    with pytest.raises(InputError, match='torchtitan cannot express `float8 = "llama3_8b_float8"`') as raised:
        export("torchtitan", problem, quantised)
    assert 'float8 = "none"' in raised.value.hint


def test_settings_without_a_parameter_are_listed(problem_of) -> None:
    recipe = "config.parallelism.context_parallel_degree = 2\nconfig.compile.enable = True\nconfig.training.enable_cpu_offload = False\n"
    reading = torchtitan.parse(problem_of("torch"), {"recipe.py": recipe})
    assert reading.ignored == ("parallelism.context_parallel_degree = 2", "compile.enable = true")


@pytest.mark.parametrize(("stages", "stated", "stage"), [(1, "default", 3), (2, "default", 2), (2, "always", 3), (1, "never", 2)])
def test_a_pipeline_keeps_gathered_weights_unless_the_recipe_states_otherwise(problem_of, stages, stated, stage) -> None:
    key = "config.parallelism."
    recipe = (
        f'{key}pipeline_parallel_degree = {stages}\n{key}data_parallel_shard_degree = 2\n{key}fsdp_reshard_after_forward = "{stated}"\n'
    )
    assert torchtitan.parse(problem_of("torch"), {"recipe.py": recipe}).settings["zero_stage"] == stage


@pytest.mark.environment
@pytest.mark.slow
def test_torchtitan_itself_takes_the_knobs(problem_of, tmp_path) -> None:
    problem = problem_of("torchtitan", knobs=KNOBS)
    configurations = chosen(problem, 24)
    for index, configuration in enumerate(configurations):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / torchtitan.RECIPE).write_text(export("torchtitan", problem, configuration)[torchtitan.RECIPE])
    found = ask("torchtitan", PARSED, *(tmp_path / str(index) for index in range(len(configurations))))
    for c, (cp, balancer, replicas, shards, compiled, graphs, budget, optimizer) in zip(configurations, found, strict=True):
        assert (cp, replicas * shards, compiled, graphs) == (c["cp"], c.dp, c["compile"], c["cuda_graphs"])
        assert replicas == (c["dp_replicate"] if c.zero_stage >= 2 else c.dp) and optimizer == c["optimizer_implementation"]
        assert (str(balancer) == c["cp_load_balancer"] or cp == 1) and (budget or 1.0) == c["memory_budget"]


def test_a_job_without_the_knobs_is_written_as_before(problem_of) -> None:
    text = export("torchtitan", problem_of("torch"), at(zero_stage=3))[torchtitan.RECIPE]
    assert "context_parallel_degree = 1" in text and "compile" not in text and "MemoryBudgetAC.Config" not in text
