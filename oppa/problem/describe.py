"""A problem at a glance: what is trained and on what, how many candidates for each layout, and what varies among them."""

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.problem.cluster import Cluster
from oppa.problem.problem import Problem
from oppa.problem.space import Value
from oppa.units import format_bytes, format_count

Triple = tuple[int, int, int]


def job(problem: Problem) -> str:
    """What is to be trained, and on what."""
    model, cluster = problem.model, problem.cluster
    hosts = f"{cluster.hosts} hosts × " if cluster.hosts > 1 else ""
    return (
        f"{model.name}, {format_count(model.parameter_count)} parameters, batch {_batches(problem)} × {model.seq_len} tokens, "
        f"{hosts}{cluster.devices_per_host} × {cluster.device}, {_memory(cluster)} each"
    )


def _memory(cluster: Cluster) -> str:
    """Return the limit, and what it is of where the job does not state one."""
    whole = "" if cluster.memory_limit_stated else f" of {format_bytes(cluster.memory_limit_bytes)}"
    return f"{format_bytes(cluster.usable_bytes)}{whole}"


def _batches(problem: Problem) -> str:
    """`64`, or where there are several to choose from `16 to 1024`."""
    if "global_batch" not in problem.space.names:
        return str(problem.global_batch)
    batches = problem.space["global_batch"].choices
    return f"{batches[0]} to {batches[-1]}" if len(batches) > 1 else str(batches[0])


def by_degrees(candidates: Candidates) -> dict[Triple, int]:
    """How many candidates there are for each (dp, tp, pp), the largest dp first, then the smallest tp."""
    groups = candidates.triples()
    _, first = np.unique(groups, return_index=True)
    degrees = zip(*(candidates.column(name)[first].tolist() for name in ("dp", "tp", "pp")), strict=True)
    counts: dict[Triple, int] = dict(zip(degrees, np.bincount(groups).tolist(), strict=True))
    return dict(sorted(counts.items(), key=lambda entry: (-entry[0][0], *entry[0][1:])))


def varying(candidates: Candidates) -> dict[str, list[Value]]:
    """The parameters that take several values among the candidates, with these values."""
    taken = {
        parameter.name: [value for code, value in enumerate(parameter.values) if (candidates.codes[parameter.name] == code).any()]
        for parameter in candidates.space.parameters
    }
    return {name: values for name, values in taken.items() if len(values) > 1}
