"""CPU quotas: a rank runs in a group of its own, and the groups go with the trial."""

import os

import pytest

from oppa.problem.training import Limits
from oppa.trials import cgroups, processes
from oppa.trials.cgroups import CpuGroups, quotas_lacking
from oppa.trials.local import LocalLauncher
from oppa.trials.trial import run_trial

pytestmark = pytest.mark.skipif(bool(quotas_lacking()), reason=quotas_lacking())


def test_groups_hold_the_quota_and_are_removed():
    groups = CpuGroups("quota-test", [0.5, 0.25])
    try:
        limits = [
            [(group / name).read_text() for name in ("cpu.max", "cpu.cfs_quota_us") if (group / name).exists()] for group in groups.ranks
        ]
        assert [text.split()[0] for (text,) in limits] == [str(cgroups.PERIOD_US // 2), str(cgroups.PERIOD_US // 4)]
    finally:
        groups.close()
    assert not groups.folder.exists()


@pytest.mark.parametrize("cpus", [0.5, (0.5, 0.25)], ids=["alike", "each its own"])
@pytest.mark.parametrize("warm", [True, False])
def test_each_rank_is_placed_in_its_group(script_runner, make_spec, tmp_path, warm, cpus):
    spec = make_spec("groups\nsteps 4 0.01", cpus_per_device=cpus)
    with LocalLauncher(script_runner, study=spec.study, grace_s=1, warm=warm) as launcher:
        assert run_trial(launcher, tmp_path, spec, limits=Limits()).outcome == "completed"
    printed = (tmp_path / "stdout.log").read_text()
    assert "/rank0\n" in printed
    assert "/rank1\n" in printed


def test_what_a_dead_tuner_left_is_removed_and_a_living_ones_kept():
    groups = CpuGroups("quota-test", [1])
    this = processes.this_process()
    dead = groups.folder.with_name(groups.folder.name.replace(f"-{this.started}-", f"-{this.started - 1}-"))
    dead.mkdir()
    cgroups.remove_abandoned("quota-test")
    try:
        assert groups.folder.exists()
        assert not dead.exists()
    finally:
        groups.close()


def test_the_probe_leaves_nothing():
    assert quotas_lacking() == ""
    assert not list(cgroups._home().glob(f"oppa-probe-{os.getpid()}*"))
