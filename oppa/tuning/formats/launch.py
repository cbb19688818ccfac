"""The shell script that starts the ranks: torchrun on one host, and on several with what each host must be told."""

from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem

SCRIPT = "run.sh"
RANK, ADDRESS, PORT = '"${NODE_RANK:?which host is this: 0, 1, ...}"', '"${MASTER_ADDR:?the address of host 0}"', '"${MASTER_PORT:-29500}"'

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
    """A script with a head that says what it is, and how it is used."""
    said = notes if problem.cluster.hosts == 1 else (*notes, "On each host, with NODE_RANK (0, 1, ...) and MASTER_ADDR set.")
    lines = "".join(f"# {line}\n" for line in said)
    ranks = problem.cluster.devices
    head = _HEAD.format(name=problem.name, id=configuration.id, ranks=ranks, script=SCRIPT, usage=usage, notes=lines)
    return f"{head}{body}\n"


def torchrun(problem: Problem) -> str:
    """torchrun and its options, for a shell."""
    cluster = problem.cluster
    ranks = f"--nproc-per-node {cluster.devices_per_host}"
    if cluster.hosts == 1:
        return f"torchrun --standalone {ranks}"
    return f"torchrun --nnodes {cluster.hosts} {ranks} --node-rank {RANK} --master-addr {ADDRESS} --master-port {PORT}"
