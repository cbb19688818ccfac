"""Choose the smaller size: what the job states, else the most layers and then the fewest hosts that show enough of what may win."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.coefficients import medians
from oppa.cost.facts import workload_of
from oppa.cost.memory import memory
from oppa.cost.memory_limits import memory_limits
from oppa.cost.step_time import stalled_probability, step_time, without_stalls
from oppa.cost.workload import Workload
from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.problem.space_file import divisors
from oppa.problem.training import ProxyChoice
from oppa.tuning.designers.processes import RATE_LAYOUT, RATE_RESIDUAL
from oppa.tuning.proxy.rung import Rung, require_cuttable, same_work_batch, uncut_layers
from oppa.tuning.proxy.stand_ins import Proxy, proxy_of

SHOWN, LEAST_SHOWN = 0.9, 0.5
"""Share of the promising candidates that a size must represent: the first to be chosen at once, the second if no size represents more."""
PROMISING = math.exp(2 * math.hypot(RATE_LAYOUT, RATE_RESIDUAL))
"""Ratio of predicted step times up to which a candidate may be the fastest: two standard deviations of the prior's own errors."""
SMALLER = 16
"""Least ratio of a job's hosts to those of a proposed size, if the job has so many. There, 30 trials cost as much as two at full size."""
LEAST_HOSTS = 2
"""Hosts of a proposed size, so that it shows the link between hosts."""


def choose(problem: Problem, candidates: Candidates) -> Proxy:
    """Return the job at the smaller size that it states, or at one that is proposed for it.

    Raises:
        InputError: the stated size is not smaller or not legal, or no smaller size shows enough.
    """
    stated = problem.proxy or ProxyChoice()
    _check(problem, stated)
    if stated.hosts is not None and (stated.layers is not None or uncut_layers(problem)):
        return proxy_of(problem, candidates, _rung(problem, stated, stated.hosts, stated.layers or problem.model.layers))
    wanted, seen, refused = promising(problem, candidates), list[tuple[float, Proxy]](), list[InputError]()
    for rung in _rungs(problem, stated):
        try:
            found = proxy_of(problem, candidates, rung)
        except InputError as error:  # no configuration is legal there, or the job cannot be cut to it
            refused.append(error)
            continue
        seen.append((shown(found, wanted), found))
        if seen[-1][0] >= SHOWN:
            return found
    if refused and not seen:
        raise refused[0]
    share, best = max(seen, key=lambda each: each[0], default=(0.0, None))
    if best is None or share < LEAST_SHOWN:
        hint = "state the hosts and the layers of [proxy], or remove it"
        raise InputError(f"no smaller size of `{problem.name}` shows more than {share:.0%} of what may be its best", hint=hint)
    return best


def shown(proxy: Proxy, wanted: NDArray[np.intp]) -> float:
    """Return the share of the candidates `wanted` that have a stand-in which is predicted to fit in memory."""
    _, size = beliefs_of_job(proxy.problem)
    needed = memory(workload_of(proxy.problem, proxy.candidates), medians(size)).numpy()
    stand_in = proxy.stand_in[wanted]
    return float(np.mean((stand_in >= 0) & (needed[stand_in] <= memory_limits(proxy.problem).predicted)))


def promising(problem: Problem, candidates: Candidates) -> NDArray[np.intp]:
    """Return the candidates that are predicted to fit and may be the fastest, with stalls or without; all if none is predicted to fit."""
    work, (time, size) = workload_of(problem, candidates), beliefs_of_job(problem)
    fits = memory(work, medians(size)).numpy() <= memory_limits(problem).predicted
    if not fits.any():
        return np.arange(len(candidates))
    close = np.zeros(len(candidates), dtype=bool)
    for each in hypotheses(work):
        seconds = step_time(each, medians(time)).numpy()
        close |= seconds <= PROMISING * seconds[fits].min()
    return np.flatnonzero(fits & close)


def hypotheses(work: Workload) -> list[Workload]:
    """Return the work on hosts that stall as recorded of the framework, and on hosts that do not; once if it has no stalls.

    The smaller size cannot show whether hosts of the full size stall.
    """
    return [work, without_stalls(work)] if stalled_probability(work).any() else [work]


def proposed_hosts(hosts: int) -> list[int]:
    """Return the numbers of hosts that are proposed for a job on so many, the fewest first."""
    least = min(LEAST_HOSTS, max(1, hosts // 2))
    return [each for each in divisors(hosts) if least <= each <= max(least, hosts // SMALLER)]


def _rungs(problem: Problem, stated: ProxyChoice) -> Iterator[Rung]:
    """Yield the smaller sizes that may be proposed: the most layers first, so that only replicas are lacking, and the fewest hosts."""
    hosts, layers = problem.cluster.hosts, problem.model.layers
    few = [stated.hosts] if stated.hosts else proposed_hosts(hosts)
    kept = [stated.layers] if stated.layers else [layers] if uncut_layers(problem) else divisors(layers)[::-1]
    for each in kept:
        for some in few:
            batch = stated.global_batch or same_work_batch(problem, hosts=some, layers=each)
            if (some < hosts or each < layers) and int(batch) == batch:
                yield Rung(hosts=some, layers=each, global_batch=int(batch))


def _rung(problem: Problem, stated: ProxyChoice, hosts: int, layers: int) -> Rung:
    """Return the stated size; raises InputError if no batch keeps the devices' work."""
    batch = stated.global_batch or same_work_batch(problem, hosts=hosts, layers=layers)
    if int(batch) != batch:
        hint = f"state one that micro-batches divide, such as `proxy.global_batch = {max(1, round(batch))}`"
        raise InputError(f"no whole global batch keeps the work of each device on {hosts} hosts with {layers} layers", hint=hint)
    return Rung(hosts=hosts, layers=layers, global_batch=int(batch))


def _check(problem: Problem, stated: ProxyChoice) -> None:
    """Raise InputError if a stated size is not smaller than the job, or the job cannot be cut."""
    full = Rung(hosts=problem.cluster.hosts, layers=problem.model.layers if problem.stated_model else 1, global_batch=problem.global_batch)
    require_cuttable(problem, full)
    for name, most in (("hosts", full.hosts), ("layers", full.layers)):
        if (value := getattr(stated, name)) is not None and value > most:
            raise InputError(f"`proxy.{name} = {value}` is above the job's {most}", hint=f"use at most {most}")
    if stated.hosts == full.hosts and (stated.layers == full.layers or uncut_layers(problem)):
        raise InputError("[proxy] states the size of the job itself", hint="state fewer hosts or fewer layers, or remove [proxy]")
    if stated.layers is not None:
        require_cuttable(problem, Rung(hosts=full.hosts, layers=stated.layers, global_batch=full.global_batch))
