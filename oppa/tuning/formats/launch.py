"""Writes the shell script that starts the ranks by torchrun, on one host or on several."""

from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem

SCRIPT = "run.sh"
RANK, ADDRESS, PORT = '"$rank"', '"$first"', '"${MASTER_PORT:-29500}"'
_WHERE = """\
rank=${NODE_RANK:-${SLURM_NODEID:-${GROUP_RANK:?or NODE_RANK: which host is this: 0, 1, ...}}}
test -n "${MASTER_ADDR:-${SLURM_JOB_NODELIST:?or MASTER_ADDR: the address of host 0}}"
first=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
test -n "${MASTER_ADDR:-}" || first=$(scontrol show node --oneliner "$first" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")
"""
SEVERAL = (
    "On Slurm: srun --nodes={hosts} --ntasks-per-node=1 sh {script}",
    "Elsewhere: on each host, with NODE_RANK (0, 1, ...) and MASTER_ADDR set.",
)

_HEAD = """\
#!/bin/sh
# Made by oppa: {name} with {id}, on {ranks} devices.
#
#   sh {script} {usage}
#
{notes}set -eu
here=$(cd "$(dirname "$0")" && pwd)
"""


def script(problem: Problem, configuration: Configuration, *, usage: str, body: str, notes: tuple[str, ...] = ()) -> str:
    """Return a script whose header states what it is and how it is used."""
    hosts = problem.cluster.hosts
    said = notes if hosts == 1 else (*notes, *(line.format(hosts=hosts, script=SCRIPT) for line in SEVERAL))
    lines = "".join(f"# {line}\n" for line in said)
    ranks = problem.cluster.devices
    head = _HEAD.format(name=problem.name, id=configuration.id, ranks=ranks, script=SCRIPT, usage=usage, notes=lines)
    return f"{head}{'' if hosts == 1 else _WHERE}{body}\n"


def torchrun(problem: Problem) -> str:
    """Return torchrun and its options, for a shell."""
    cluster = problem.cluster
    ranks = f"--nproc-per-node {cluster.devices_per_host}"
    if cluster.hosts == 1:
        return f"torchrun --standalone {ranks}"
    return f"torchrun --nnodes {cluster.hosts} {ranks} --node-rank {RANK} --master-addr {ADDRESS} --master-port {PORT}"
