"""The simulator obeys the laws of the hardware, and runs its jobs."""

import numpy as np
import pytest

from oppa.errors import InputError
from oppa.problem.job import load_job
from oppa.simulator.pipelines import PipelineSettings
from oppa.simulator.simulator import Simulator
from oppa.simulator.step import StepSimulator
from oppa.simulator.topology import Topology
from oppa.trials.runner import load_runner
from tests.simulator.conftest import JOBS, plan


@pytest.fixture(params=JOBS, ids=lambda path: path.stem)
def problem(request):
    return load_job(request.param)


def test_every_job_has_candidates_that_run_and_a_runner_without_a_program(problem):
    simulator, candidates = Simulator.of(problem), problem.candidates()
    assert len(candidates) <= 4000
    assert load_runner(problem.runner).in_process
    some = [candidates.configuration(index) for index in range(0, len(candidates), len(candidates) // 20)]
    rates = [simulator.steps_per_s(configuration) for configuration in some]
    assert any(rates) and all(rate is None or rate > 0 for rate in rates)


def test_a_trial_is_as_long_as_it_is_asked_to_be_and_as_fast_as_it_truly_is(make_simulator):
    simulator, configuration = make_simulator(), plan(dp=8, micro_batch=2)
    trial = simulator.simulate_trial(configuration, steps=20, seed=3)
    assert trial.outcome == "completed" and len(trial.step_times_s) == 20 and trial.setup_s > 0
    assert np.median(trial.step_times_s) == pytest.approx(1 / simulator.steps_per_s(configuration), rel=0.1)
    assert trial.memory_bytes == simulator.memory_bytes(configuration)
    assert trial == simulator.simulate_trial(configuration, steps=20, seed=3) != simulator.simulate_trial(configuration, steps=20, seed=4)


def test_what_does_not_fit_runs_out_of_memory(make_simulator):
    simulator, configuration = make_simulator(model="llama-2-7b"), plan(dp=8)
    trial = simulator.simulate_trial(configuration, steps=20, seed=0)
    assert simulator.steps_per_s(configuration) is None
    assert trial.outcome == "out_of_memory" and trial.step_times_s == () and trial.memory_bytes is None
    assert "GiB allocated of" in trial.cause


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ({"dp": 8}, {"dp": 4}),
        ({"dp": 8, "micro_batch": 8}, {"dp": 8, "micro_batch": 8, "recompute": "full"}),
        ({"tp": 4, "dp": 2}, {"tp": 8}),  # across hosts
        ({"pp": 4, "dp": 2, "micro_batch": 1}, {"pp": 4, "dp": 2, "micro_batch": 32}),  # a bubble
        (
            {"pp": 8, "schedule": "interleaved", "model_chunks": 2, "overlap_p2p": True},
            {"pp": 8, "schedule": "interleaved", "model_chunks": 2},
        ),
        ({"dp": 8, "micro_batch": 8, "zero_stage": 1, "overlap_zero_comm": True}, {"dp": 8, "micro_batch": 8, "zero_stage": 1}),
    ],
)
def test_it_is_faster(make_simulator, faster, slower):
    simulator = make_simulator()
    assert simulator.step_time_s(plan(**{"dp": 1, **faster})) < simulator.step_time_s(plan(**{"dp": 1, **slower}))


@pytest.mark.parametrize("link", [0, 1, "network"])
@pytest.mark.parametrize("values", [{"dp": 16}, {"dp": 2, "tp": 8}, {"dp": 1, "tp": 16}, {"dp": 2, "pp": 8}, {"dp": 16, "zero_stage": 2}])
def test_a_faster_link_never_slows_a_step(make_simulator, link, values):
    steps = make_simulator(device="A5000").steps
    hardware = steps.kernels.hardware
    faster = {"bandwidth_bytes_per_s": 1e12, "latency_s": 1e-9}
    links = [each.model_copy(update=faster) if i == link else each for i, each in enumerate(hardware.link)]
    network = hardware.network.model_copy(update=faster if link == "network" else {})
    topology = Topology(hardware.model_copy(update={"link": tuple(links), "network": network}), hosts=2)
    changed = StepSimulator(steps.model, steps.kernels, topology, steps.framework)
    assert changed.seconds(plan(**values)) <= steps.seconds(plan(**values))


def test_small_micro_batches_wait_for_the_host(make_simulator):
    """Half the work per micro-batch takes the same time once the host is the slower one."""
    simulator = make_simulator(model="bert-base")
    one, two = (simulator.step_time_s(plan(micro_batch=size)) for size in (1, 2))
    assert one == pytest.approx(2 * two, rel=0.1)


def test_a_step_is_never_faster_than_its_operations(make_simulator):
    simulator = make_simulator()
    flops = 3 * 64 * simulator.steps.model.forward_flops_per_sequence
    for values in ({"dp": 8, "micro_batch": 8}, {"tp": 4, "dp": 2, "micro_batch": 8}, {"pp": 8, "micro_batch": 2}):
        assert simulator.step_time_s(plan(**{"dp": 1, **values})) > flops / (8 * 312e12)


def test_moe_spread_over_ranks_need_less_memory(make_simulator):
    simulator = make_simulator(model="moe-32e")
    alone, spread = (simulator.memory_bytes(plan(dp=8, ep=ep)) for ep in (1, 8))
    assert spread < alone / 2


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "interleaved-zb", "zb-v"])
def test_every_schedule_runs(make_simulator, schedule):
    simulator = make_simulator(framework="torch")
    configuration = plan(pp=4, dp=2, schedule=schedule, model_chunks=1 if schedule in ("gpipe", "1f1b", "zb-h1") else 2)
    executed = simulator.steps.pipelines.execution(PipelineSettings.of(configuration, simulator.framework))
    assert 0 < executed.bubble_rate < 0.5
    assert simulator.step_time_s(configuration) > executed.makespan_s


def test_more_hosts_start_later(make_simulator):
    few, many = (make_simulator(hosts=hosts).simulate_trial(plan(dp=8), steps=3, seed=0).setup_s for hosts in (2, 64))
    assert many > few


def test_a_framework_that_is_not_simulated_is_named(make_simulator):
    with pytest.raises(InputError, match="`jax` is not simulated"):
        make_simulator(framework="jax")
