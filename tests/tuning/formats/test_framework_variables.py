"""Megatron-LM has as many connections to a device as it asserts, in trials, in runs and in scripts, unless the user has set a number."""

import pytest

from oppa.control.own_trainer.rank_launchers import spec_of
from oppa.problem.job import load_job
from oppa.training.run.run_folder import RunSpec
from oppa.tuning.formats import FORMATS
from oppa.tuning.formats.launch import SCRIPT

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
LINE, DEVICE, SPACE = 'argv = ["torchrun", "pretrain_gpt.py"]', 'device = "H100"', 'name = "megatron", '
KNOBS = 'moe_dispatcher = ["allgather", "alltoall"], moe_comm_overlap = [false, true]'
JOB = f"""
model = {{preset = "mixtral-8x7b"}}
batch = {{global_batch = 32}}
cluster = {{devices_per_host = 8, {DEVICE}, memory_limit = "76 GiB"}}
command = {{{LINE}}}
space = {{{SPACE}parameters = {{cp = [1, 2], {KNOBS}}}}}
"""
OVERLAPPED = {"ep": 2, "moe_dispatcher": "alltoall", "moe_comm_overlap": True}


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Return a job with pieces of its text replaced, one of its configurations, and the variables that a run sets."""
    monkeypatch.delenv(NAME, raising=False)

    def make(*replaced, **values):
        text = JOB
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "job.toml").write_text(text)
        problem = load_job(tmp_path / "job.toml")
        configuration = problem.space.configuration({"dp": 1, "global_batch": 32, "micro_batch": 1, **values})
        return problem, configuration, spec_of(RunSpec(uuid="r", problem=problem, configuration=configuration), 1).environment

    return make


@pytest.mark.parametrize(
    ("replaced", "values", "connections"),
    [
        ((), {"tp": 2}, "1"),
        ((), {"cp": 2}, "1"),
        ((), {}, None),
        ((), {"tp": 2, **OVERLAPPED}, "32"),
        ([(DEVICE, 'device = "GB200"')], {"tp": 2}, None),
        ([(LINE, LINE.replace("]", ', "--use-megatron-fsdp"]'))], {"tp": 2}, None),
        ([(SPACE, 'name = "torchtitan", '), (f", {KNOBS}", "")], {"tp": 2}, None),
    ],
)
def test_one_connection_is_set_where_megatron_requires_it(replaced, values, connections, started) -> None:
    problem, configuration, environment = started(*replaced, **values)
    assert environment.get(NAME) == connections
    script = FORMATS["torchrun"].export(problem, configuration)[SCRIPT]
    assert (f'export {NAME}="${{{NAME}:-{connections}}}"' in script) == (NAME in script) == (connections is not None)


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
def test_an_exported_program_on_megatron_core_has_as_many_as_in_trials(name, started) -> None:
    for values, connections in (({"tp": 2}, "1"), ({"tp": 2, **OVERLAPPED}, "32"), ({}, None)):
        problem, configuration, environment = started(**values, dp_bucket_mb=153)
        script = FORMATS[name].export(problem, configuration)[SCRIPT]
        assert environment.get(NAME) == connections and (f"export {NAME}=" in script) == (connections is not None)


def test_a_program_that_prints_steps_as_megatron_does_has_it_too(started) -> None:
    line = 'argv = ["torchrun", "t.py", "--tp", "{tp}", "--micro", "{micro_batch}"], steps = {format = "megatron"}'
    _, _, environment = started((LINE, line), (JOB[JOB.index("space") :], ""), tp=2)
    assert environment == {NAME: "1"}


def test_what_the_user_has_exported_stays(started, monkeypatch) -> None:
    problem, configuration, _ = started(tp=2)
    monkeypatch.setenv(NAME, "8")
    assert NAME not in spec_of(RunSpec(uuid="r", problem=problem, configuration=configuration), 1).environment
