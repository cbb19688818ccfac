"""Implement the launcher `slurm`: the hosts of the allocation that oppa runs in, or of a job that oppa requests with sbatch."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping

from oppa.errors import EnvironmentLackingError
from oppa.extensions import OptionValue
from oppa.launchers import slurm
from oppa.launchers.provider import SLOT, Backend, HostRequest, WaitingTuner
from oppa.launchers.slurm_job import require_feasible, slurm_job
from oppa.problem.launch_line.batch_header import BINDING

_OPTIONS = """
account bb bbf begin cluster-constraint comment constraint container contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu
cpus-per-task deadline delay-boot dependency distribution exclude exclusive extra-node-info gpu-freq gpus gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint licenses mail-type mail-user mcs-label mem mem-per-cpu mem-per-gpu mincpus
network nice no-kill no-requeue nodelist nodes ntasks ntasks-per-core ntasks-per-node ntasks-per-socket oom-kill-step
overcommit oversubscribe partition power prefer priority profile propagate qos reboot requeue reservation segment signal sockets-per-node
spread-job switches thread-spec threads-per-core time time-min tmp tres-bind tres-per-task use-min-nodes wckey
"""
OPTIONS = frozenset([*_OPTIONS.split(), *BINDING])
"""Long options of sbatch that concern the resources and the queue of the job that holds the hosts: of Slurm 22.05, and some newer ones.

Those that bind tasks are options of the steps of trials.
"""

_log = logging.getLogger(__name__)


class SlurmProvider:
    """Provides hosts of Slurm; the launcher `slurm`.

    Inside an allocation `exclude` keeps trials off some of its hosts, and binding applies to the steps of trials. Other options have no
    effect, as the hosts have been granted.
    """

    options = OPTIONS

    def require(self, request: HostRequest) -> None:
        """Refuse a request that exceeds the allocation, or that Slurm would never grant."""
        if job := slurm.own_job():
            slurm.require_fitting(request.cluster, slurm.nodes(job, without=_excluded(request)), job)
        else:
            require_feasible(request.cluster, sbatch_words(request.options), slots=request.parallel or 1)

    @contextlib.contextmanager
    def open(self, request: HostRequest, tuner: WaitingTuner) -> Iterator[Backend]:
        """Yield the hosts of the allocation, or request some and wait for them."""
        if job := slurm.own_job():
            yield _within(job, request)
            return
        words, slots = sbatch_words(request.options), request.parallel or 1
        with slurm_job(
            request.cluster, words, slots=slots, name=tuner.name, folder=tuner.folder, grace_s=tuner.grace_s, on_tick=tuner.on_tick
        ) as job:
            yield dataclasses.replace(_within(job, request), has_more=True)


def sbatch_words(options: Mapping[str, OptionValue]) -> list[str]:
    """Return options in the form of sbatch, without those of steps: `--partition=gpu`; a bare `--exclusive` for true, nothing for false."""
    asked = {name: value for name, value in options.items() if value is not False and name not in BINDING}
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in asked.items()]


def _excluded(request: HostRequest) -> str:
    """Return the list of hosts that trials avoid, such as `n[1-3],n7`; empty if there is none."""
    return str(request.options.get("exclude", ""))


def _within(job: str, request: HostRequest) -> Backend:
    cluster, parallel, without = request.cluster, request.parallel, _excluded(request)
    allocated = slurm.nodes(job, without=without)
    slurm.require_fitting(cluster, allocated, job)
    if cluster.on_cuda and (cpus := min(node.cpus for node in allocated)) < cluster.devices_per_host:
        option = "`--cpus-per-gpu`" if slurm.own_job() else "`cpus-per-gpu` in [launcher.options]"
        _log.warning("Slurm's job %s has %d CPUs for %d ranks on a host; request more by %s", job, cpus, cluster.devices_per_host, option)
    groups = len(allocated) // cluster.hosts
    tuners = parallel or groups
    room = groups * slurm.room(cluster, allocated)
    if tuners > room:
        raise EnvironmentLackingError(
            f"`parallel = {tuners}`: Slurm's job {job} has hosts for {room}", hint=f"set {room} or less in [launcher]"
        )
    if tuners > groups and slurm.in_a_step():
        hint = f"start oppa without `srun`, in the script of the job or the shell of `salloc`, or set `parallel = {groups}` in [launcher]"
        message = f"`parallel = {tuners}`: oppa runs in a step of Slurm's job {job}, where parallel trials would get the same devices"
        raise EnvironmentLackingError(message, hint=hint)
    slot = int(os.environ.get(SLOT, "0"))
    binding = [f"--{name}={value}" for name, value in request.options.items() if name in BINDING]
    pool = slurm.SlurmHosts(job, cluster, allocated, slot=slot, slots=tuners, without=without, binding=binding)
    return Backend(pool=pool, tuners=tuners, environment={"SLURM_JOB_ID": job})
