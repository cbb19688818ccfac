"""The study of a mixture of experts states whether its trials measured balanced routing."""

import shlex

import pytest

from oppa.problem.job import load_job
from oppa.tuning.formats import export
from oppa.tuning.routing import routing
from tests.tuning.conftest import trial_of

JOB = """
batch.global_batch = 8
cluster = {{ devices_per_host = 2, memory_limit = "1 GiB" }}
model = {{ layers = 2, hidden = 64, heads = 4, ffn = 128, vocab = 256, seq_len = 32, experts = {experts}, experts_per_token = 1 }}
"""
MEGATRON = 'space.name = "megatron"\ncommand = { framework = "megatron" }\n'
FORCED = "--moe-router-force-load-balancing"
BALANCED = {
    "megatron": ("torchrun pretrain_gpt.py --micro-batch-size {micro_batch}", FORCED),
    "megatron-bridge": (
        "torchrun pretrain.py train.micro_batch_size={micro_batch}",
        "model.moe_router_force_load_balancing=true",
    ),
    "torchtitan": ("torchrun -m torchtitan.train --training.local_batch_size {micro_batch}", "--debug.moe_force_load_balance"),
}
"""Launch line of each framework whose trials balance the routing, and the option that they add."""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write_and_load(more="", *, experts=4, line="torchrun pretrain_gpt.py"):
        (tmp_path / "job.toml").write_text(JOB.format(experts=experts) + more)
        return load_job(tmp_path / "job.toml", argv=shlex.split(line) if line else ())

    return write_and_load


@pytest.mark.parametrize(("framework", "line", "forced"), [(name, *words) for name, words in BALANCED.items()], ids=BALANCED)
def test_trials_are_balanced_and_the_winner_is_not(load, framework, line, forced):
    problem = load(f'command = {{ framework = "{framework}" }}\n', line=line)
    assert forced in problem.command.argv and routing(problem).startswith(f"balanced in trials by {forced};")
    script = export("torchrun", problem, problem.candidates().configuration(0))["run.sh"]
    assert line.split()[-1].replace("{micro_batch}", "1") in script and forced not in script


@pytest.mark.parametrize("line", ["torchrun train.py --mbs {micro_batch}", ""])
def test_a_program_that_cannot_be_balanced_measures_an_untrained_router(load, line):
    assert "untrained router" in routing(load(line=line)) and "--set limits.q_max=500" in routing(load(line=line))


def test_measured_steps_have_the_time_limit_of_the_advice(load):
    problem = load(line="torchrun train.py --mbs {micro_batch}")
    assert "--set limits.trial_time=TIME" in routing(problem)
    configuration = problem.candidates().configuration(0)
    slow = trial_of(1, configuration, 0.5, seconds=70.0, setup_s=10.0, step_times_s=(2.0,) * 30)
    assert routing(problem, [slow]).endswith("--set limits.q_max=500 --set limits.settle=300 --set limits.trial_time=26min"), (
        "1.5 times 1010 s"
    )


def test_trials_that_leave_out_the_first_steps_need_no_advice(load):
    problem = load("limits = { settle = 200, q_max = 300 }\n", line="torchrun train.py --mbs {micro_batch}")
    assert routing(problem).startswith("trials leave out their first 200 steps")


def test_a_dense_model_has_no_routing(load):
    problem = load(MEGATRON, experts=1)
    assert routing(problem) == "" and FORCED not in problem.command.argv


def test_simulated_trials_have_no_router(load):
    assert routing(load('runner.name = "simulated"\n', line="")) == ""
