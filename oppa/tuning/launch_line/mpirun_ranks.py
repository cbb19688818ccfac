"""Find out how many ranks `mpirun` starts, on how many hosts, from its own options.

Options: those of Open MPI (`-N` is `--npernode`, `--map-by ppr:8:node`, `-H a:8,b:8`), and of MPICH and Intel MPI (`-ppn`, `-hosts`).
"""

import re
from collections.abc import Mapping

from oppa.errors import InputError
from oppa.problem.bounded_text import whole_number
from oppa.problem.launch_line.line import Stage
from oppa.problem.launch_line.words import Word
from oppa.tuning.launch_line.meaning import LineDevices
from oppa.tuning.launch_line.options import require_number

_RANKS = ("np", "n", "c")
_PER_HOST = ("N", "npernode", "ppn", "perhost")
_HOSTS = ("H", "host", "hosts")
_FILES = ("hostfile", "machinefile", "f", "default-hostfile")
_HINT = "state it: `--set cluster.hosts=2`"


def ranks_of(step: Stage, hosts: int | None) -> LineDevices:
    """Return the devices of `mpirun`, one for each rank; their number is not known if no option states it.

    Args:
        hosts: Hosts that the user or a scheduler states, where the options state none; None if neither does.

    Raises:
        InputError: the ranks do not divide over the hosts, or nothing states the hosts of a file.
    """
    ranks, (per_host, origin) = step.value(*_RANKS), _per_host(step)
    total = _number(ranks) if ranks is not None else None
    slots = _slots(step)
    if len(set(slots.values())) > 1:
        raise InputError("`mpirun` starts different numbers of ranks on its hosts", hint="give each host equally many slots")
    if slots:
        hosts = len(slots)
    elif per_host and total:
        hosts = -(-total // per_host)
    elif hosts is None and step.has(*_FILES):
        raise InputError("the number of hosts of `mpirun` is not known: a file names them", hint=_HINT)
    hosts = hosts or 1
    if per_host is None and (total is None or max(slots.values(), default=1) > 1):
        per_host = next(iter(slots.values()), None)
    if total is None:
        return LineDevices(hosts=hosts, per_host=per_host, origin=origin or ("line" if per_host else ""))
    if total % hosts or (per_host and total != hosts * per_host):
        each = f" of {per_host}" if per_host else ""
        raise InputError(f"{total} ranks do not fill {hosts} hosts{each}", hint="start equally many on each, as `-N 8` does")
    return LineDevices(hosts=hosts, per_host=total // hosts, origin=ranks.origin if ranks is not None else origin)


def _per_host(step: Stage) -> tuple[int | None, str]:
    """Return the ranks on each host, and the origin of the option that states them; None if none does."""
    if (given := step.value(*_PER_HOST)) is not None:
        return _number(given), given.origin
    if step.has("pernode"):
        return 1, "line"
    mapped = step.value("map-by")
    by_host = re.fullmatch(r"ppr:(\d+):node(?:[:,].*)?", mapped.text) if mapped is not None else None
    return (int(by_host[1]), mapped.origin) if mapped is not None and by_host else (None, "")


def _slots(step: Stage) -> Mapping[str, int]:
    """Return the slots of each host that the options list; a host without a number has one slot for each time that it is listed."""
    found: dict[str, int] = {}
    given = step.value(*_HOSTS)
    for each in given.text.split(",") if given is not None and not given.missing else ():
        name, _, slots = each.partition(":")
        found[name] = found.get(name, 0) + (whole_number(slots) or 1)
    return found


def _number(word: Word) -> int:
    return require_number(word, f"mpirun: {word.text}", word.origin)
