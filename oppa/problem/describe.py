"""Summarise a problem: the model and the cluster, the number of candidates of each layout, and the parameters that vary."""

from collections.abc import Collection

import numpy as np

from oppa.problem.candidates import Candidates
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Value
from oppa.problem.model import MODEL_OPTION
from oppa.problem.presets import PRESETS
from oppa.problem.problem import Problem
from oppa.problem.templates import without_escapes
from oppa.units import format_bytes, format_count

Triple = tuple[int, int, int]


def job(problem: Problem, batches: Collection[int] = ()) -> str:
    """Return a line that describes the model, the batch and the cluster.

    Args:
        batches: Global batches of a run; the default is those that the job has to choose from.
    """
    model, cluster = problem.stated_model, problem.cluster
    hosts = f"{cluster.hosts} hosts × " if cluster.hosts > 1 else ""
    devices = f"{hosts}{cluster.devices_per_host} × {cluster.device}, {_memory(cluster)} each"
    if model is None:
        return devices
    known = PRESETS.get(model.name, model)
    changed = " with other dimensions" if model.parameter_count != known.parameter_count else ""
    parameters = format_count(problem.trace.parameter_count(model.layers) if problem.trace else model.parameter_count)
    batch = _range(batches or _batches(problem))
    return f"{model.name}{changed}, {parameters} parameters, batch {batch} × {model.seq_len} tokens, {devices}"


def trace(problem: Problem) -> str:
    """Return what the trace of the job's own module found, in words; empty if there is none."""
    found = problem.trace
    if found is None:
        return ""
    kept, flops = format_bytes(found.activation_bytes), format_count(found.layer_flops + found.attention_flops)
    return (
        f"traced {found.subject}: a layer has {format_count(found.layer_parameters)} parameters, keeps {kept} of each token, "
        f"and computes {flops} operations on it"
    )


def changes(problem: Problem) -> list[str]:
    """Return what trials change of the user's launch line, one text for each option; empty if they start it as it stands."""
    originals = problem.command.originals if problem.command else None
    return [_change(*change) for change in originals.changes] if originals else []


_QUOTED = "'-"
"""Begins an option that a shell quotes."""


def _change(name: str, original: str, trial: str, reason: str) -> str:
    """Return a change in words; braces are those of the program, not of a template."""
    before, after = without_escapes(original), without_escapes(trial)
    if not (original or trial):
        return f"{name}: {reason}"
    if not original:
        return f"{after if after.startswith(('-', _QUOTED, name)) else f'{name} = {after}'} is added: {reason}"
    shown = before if before.startswith(name.removeprefix("$")) else f"{name} = {before}"
    return f"{shown} -> {after}: {reason}" if trial else f"{shown}: {reason}"


def _memory(cluster: Cluster) -> str:
    """Return the memory limit as text, with the device's whole memory if the job states no limit."""
    whole = "" if cluster.memory_limit_stated else f" of {format_bytes(cluster.memory_limit_bytes)}"
    return f"{format_bytes(cluster.usable_bytes)}{whole}"


def _batches(problem: Problem) -> Collection[int]:
    """Return the global batches to choose from."""
    return list(map(int, problem.space["global_batch"].choices)) if "global_batch" in problem.space.names else [problem.global_batch]


def _range(batches: Collection[int]) -> str:
    """Return batches as text: `64`, or `16 to 1024` if there are several."""
    least, most = min(batches), max(batches)
    return f"{least} to {most}" if least < most else str(least)


def by_degrees(candidates: Candidates) -> dict[Triple, int]:
    """Return the number of candidates of each (dp, tp, pp), the largest dp first, then the smallest tp."""
    groups = candidates.triples()
    _, first = np.unique(groups, return_index=True)
    degrees = zip(*(candidates.column(name)[first].tolist() for name in ("dp", "tp", "pp")), strict=True)
    counts: dict[Triple, int] = dict(zip(degrees, np.bincount(groups).tolist(), strict=True))
    return dict(sorted(counts.items(), key=lambda entry: (-entry[0][0], *entry[0][1:])))


def unknown(problem: Problem, candidates: Candidates, known: Collection[str] = ()) -> str:
    """Return which parameters the cost model does not cover, as text; empty if it covers all.

    Args:
        known: Names of parameters of the space's own that the cost model reads.
    """
    if not problem.objective.is_throughput:
        return f"none, as the objective is in {problem.objective.unit}: trials alone decide"
    if problem.stated_model is None:
        return f"none, as no [model] is stated: trials alone decide; {MODEL_OPTION} states it"
    names = [name for name in varying(candidates) if candidates.space[name].is_extra and name not in known]
    return f"it does not cover {', '.join(names)}: trials alone decide on them" if names else ""


def varying(candidates: Candidates) -> dict[str, list[Value]]:
    """Return the parameters that take several values among the candidates, with these values."""
    taken = {
        parameter.name: [value for code, value in enumerate(parameter.values) if (candidates.codes[parameter.name] == code).any()]
        for parameter in candidates.space.parameters
    }
    return {name: values for name, values in taken.items() if len(values) > 1}
