"""The tests' own Slurm does what real ones do, as far as the tests of oppa on Slurm rely on it."""

import re

import pytest

from tests.launchers.slurm_cluster import until

pytestmark = pytest.mark.slow

SHOW_TASK = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 sh -c 'echo $SLURM_PROCID $SLURM_NODEID $SLURMD_NODENAME'"


def test_nodes_are_idle_and_have_what_was_declared(slurm):
    slurm.wait_until_idle()
    for index, node in enumerate(slurm.nodes, start=1):
        shown = slurm.run("scontrol", "show", "node", "--oneliner", node).stdout
        for field in (f"NodeAddr=127.0.0.{index}", f"CPUTot={slurm.cpus}", f"RealMemory={slurm.memory_mib}", f"Gres=gpu:h100:{slurm.gpus}"):
            assert f" {field} " in shown


def test_every_node_has_its_task_in_the_order_of_the_nodes(slurm):
    job = slurm.submit(SHOW_TASK, "--nodes=2", "--ntasks-per-node=1")
    slurm.wait_for(job, "COMPLETED")
    assert sorted(slurm.output(job).splitlines()) == [f"{index} {index} {node}" for index, node in enumerate(slurm.nodes)]


def test_a_program_in_an_allocation_sees_it(slurm):
    with slurm.allocation("--cpus-per-task=3") as (job, environment):
        seen = {name: environment[f"SLURM_{name}"] for name in ("JOB_ID", "JOB_NUM_NODES", "CPUS_ON_NODE", "NTASKS_PER_NODE")}
        assert seen == {"JOB_ID": job, "JOB_NUM_NODES": "2", "CPUS_ON_NODE": "3", "NTASKS_PER_NODE": "1"}
        listed = slurm.run("scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]).stdout.split()
        assert listed == list(slurm.nodes)
    assert slurm.job(job)["JobState"] == "CANCELLED"


def test_gpus_are_allocated(slurm):
    with slurm.allocation("--gpus-per-node=2") as (job, environment):
        assert environment["SLURM_JOB_GPUS"] == environment["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert slurm.job(job)["TresPerNode"] == "gres:gpu:2"
        assert "GRES=gpu:h100:2(IDX:0-1)" in slurm.run("scontrol", "show", "job", "--details", "--oneliner", job).stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--nodes=3",), "PartitionNodeLimit"),
        (("--nodes=2", "--ntasks=17"), "PartitionConfig"),
        (("--partition=high", "--time=11"), "PartitionTimeLimit"),
    ],
)
def test_a_request_over_a_limit_waits_for_ever(slurm, options, reason):
    job = slurm.submit("true", *options)
    until(lambda: slurm.job(job)["Reason"] == reason)
    assert slurm.job(job)["JobState"] == "PENDING"


@pytest.mark.parametrize(
    "options", [("--gpus-per-node=5",), ("--gres=gpu:a100:1",), ("--mem=99G",), ("--test-only", "--nodes=99")], ids=" ".join
)
def test_a_request_that_no_node_can_serve_is_refused(slurm, options):
    answer = slurm.run("sbatch", *options, "--wrap=true", check=False)
    assert answer.returncode == 1
    assert "Requested node configuration is not available" in answer.stderr


def test_a_preempted_job_runs_again(slurm):
    script = "echo run ${SLURM_RESTART_COUNT:-0}; [ $SLURM_RESTART_COUNT ] || exec sleep 600"
    job = slurm.submit(script, "--nodes=2", "--ntasks-per-node=1")
    until(lambda: "run 0" in slurm.output(job))
    urgent = slurm.submit("sleep 1", "--partition=high", "--nodes=2", "--exclusive")
    slurm.wait_for(urgent, "COMPLETED")
    assert slurm.wait_for(job, "COMPLETED", timeout_s=60)["Restarts"] == "1"
    assert re.findall("^run .*$", slurm.output(job), re.MULTILINE) == ["run 0", "run 1"]
