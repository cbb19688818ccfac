"""Find out which devices a launch line uses: from its step of Slurm, its launcher, a batch script's header, or this machine."""

import dataclasses
import re
from collections.abc import Mapping

from oppa.errors import InputError
from oppa.problem.bounded_text import whole_number
from oppa.problem.detect import Machine
from oppa.problem.launch_line.batch_header import SHORT, gpus_of, options_of
from oppa.problem.launch_line.line import LaunchLine, Stage
from oppa.problem.launch_line.words import Word
from oppa.tuning.launch_line.meaning import LineDevices
from oppa.tuning.launch_line.mpirun_ranks import ranks_of
from oppa.tuning.launch_line.options import Options, require_number
from oppa.tuning.launch_line.program_source import source_of

_EACH = ("auto", "gpu", "cuda")
_RANKS = re.compile(r"--(nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus|n?gpus|devices)")
"""Options by which a program starts several ranks itself."""
_RANK_KEYS = re.compile(r"(?:[\w-]+\.)*(?:n?_?gpus|n_gpus_per_node|num_gpus|nproc_per_node|devices|world_size|distributed_world_size)")
"""Keys in the style of Hydra with the same meaning, such as `trainer.n_gpus_per_node=8`."""
_STARTS_RANKS = re.compile(
    r"\b(?:deepspeed\.launcher|torch\.distributed\.(?:run|launcher)|mp\.spawn|multiprocessing\.spawn|notebook_launcher)\b"
)
"""Names in the source of a program that starts ranks itself."""
_STARTERS_OF_RANKS = ("deepy.py",)
"""Programs that start ranks, as GPT-NeoX's does by the launcher of DeepSpeed."""


def devices_of(
    line: LaunchLine,
    machine: Machine,
    environment: Mapping[str, str],
    *,
    stated_hosts: int | None,
    stated_per_host: int | None,
) -> LineDevices:
    """Return the devices of a line; a framework's own files may state more.

    Args:
        stated_hosts: The number of hosts that the user states besides the line; None if it is not stated.
        stated_per_host: The number of devices of a host that the user states besides the line; None if it is not stated.

    Raises:
        InputError: a number is unreadable or unknown, or the number of hosts is elastic.
    """
    step, launcher = line.stage("step"), line.stage("launcher")
    header = options_of(line.header)
    found = LineDevices(per_host=1, origin="one process") if _is_one_process(line) else LineDevices()
    hosts = _hosts(step, header, environment)
    if launcher is not None and launcher.name == "torchrun":
        found = _torchrun(launcher, machine, hosts=hosts or stated_hosts, stated=stated_per_host)
    elif launcher is not None and launcher.name == "composer":
        found = _composer(launcher, line, machine, environment)
    _compare_hosts(step, launcher, found)
    if step is not None and launcher is None:
        hosts = hosts or stated_hosts
        found = _ranks_of_step(step, header, hosts, environment) if step.name == "srun" else ranks_of(step, hosts)
    elif hosts is not None and found.hosts == 1 and not (launcher is not None and launcher.has("nnodes")):
        found = dataclasses.replace(found, hosts=hosts)
    return dataclasses.replace(found, gpu=_gpu(step, header))


def _is_one_process(line: LaunchLine) -> bool:
    """Return whether a line starts one rank: a program of Python without a launcher, which asks for no several ranks."""
    if line.stage("launcher") is not None or not line.is_python or line.program_name in _STARTERS_OF_RANKS:
        return False
    options = [*Options(line.arguments).all, *Options(line.arguments, bare=True).all]
    if any((_RANKS.fullmatch(each.name) or _RANK_KEYS.fullmatch(each.name)) and each.text not in ("", "0", "1") for each in options):
        return False
    return _STARTS_RANKS.search(source_of(line)) is None


def _compare_hosts(step: Stage | None, launcher: Stage | None, found: LineDevices) -> None:
    """Raise InputError if a step of Slurm has another number of hosts than the launcher in it."""
    given = _nodes(step)
    if given is None or given.missing or launcher is None or not launcher.has("nnodes"):
        return
    if (hosts := _number(given, "--nodes")) != found.hosts:
        message = f"the step has {hosts} hosts (`--nodes {given.text}`), but the launcher in it waits for {found.hosts} (`--nnodes`)"
        raise InputError(message, hint="give both the same number")


def _torchrun(launcher: Stage, machine: Machine, *, hosts: int | None, stated: int | None) -> LineDevices:
    """Return the devices of torchrun; `hosts` and `stated` take the place of numbers that nothing states."""
    given, nodes = launcher.value("nproc-per-node"), launcher.value("nnodes")
    per_host, origin = 1, "default of torchrun"
    if given is not None and given.text in _EACH:
        per_host, origin = machine.gpus or int(machine.cores), f"{given.text} on this machine"
    elif given is not None and given.missing and stated is not None:
        per_host, origin = stated, "--set"
    elif given is not None and given.missing:
        message = f"the number of processes of a host is not known, because nothing states `{given.missing[0]}` ({given.origin})"
        raise InputError(message, hint="state it: `--set cluster.devices_per_host=8`, or the variable in front of the line")
    elif given is not None:
        per_host, origin = _number(given, "--nproc-per-node"), given.origin
    if nodes is not None and (elastic := re.fullmatch(r"(\d+):(\d+)", nodes.text)):
        if elastic[1] != elastic[2]:
            raise InputError(f"`--nnodes {nodes.text}` is elastic, so its trials could not be compared", hint="give one number of hosts")
        return LineDevices(hosts=int(elastic[1]), per_host=per_host, origin=origin)
    if nodes is None or not nodes.missing:
        number = 1 if nodes is None else _number(nodes, "--nnodes")
    elif hosts is not None:
        number = hosts
    else:
        message = f"the number of hosts is not known, because nothing states `{nodes.missing[0]}`"
        raise InputError(message, hint="state it: `--set cluster.hosts=2`, or the variable in front of the line")
    return LineDevices(hosts=number, per_host=per_host, origin=origin)


def _composer(launcher: Stage, line: LaunchLine, machine: Machine, environment: Mapping[str, str]) -> LineDevices:
    """Return the devices of Composer's launcher; raises InputError for several hosts, whose rendezvous oppa does not set.

    Source: composer/cli/launcher.py (0.32).
    """
    variables = {**environment, **{name: word.text for name, word in line.environment}}
    given, total = launcher.value("n", "nproc"), launcher.value("world-size")
    count = _number(given, "--nproc") if given is not None else whole_number(variables.get("LOCAL_WORLD_SIZE", ""))
    per_host = count or machine.gpus or 1
    world = _number(total, "--world_size") if total is not None else whole_number(variables.get("WORLD_SIZE", "")) or per_host
    if world != per_host:
        ranks = f"--nnodes {max(world // per_host, 1)} --nproc-per-node {per_host}"
        hint = f"start them by torchrun: `torchrun {ranks} {line.started} ...`"
        raise InputError(f"`composer` starts {per_host} of {world} ranks, and trials need all of them", hint=hint)
    return LineDevices(per_host=per_host, origin=given.origin if given is not None else "this machine")


def _ranks_of_step(step: Stage, header: Mapping[str, str], hosts: int | None, environment: Mapping[str, str]) -> LineDevices:
    """Return the devices of a step of Slurm with one rank per task."""
    named = {SHORT.get(name, name): value for name, value in step.options if value is not None}
    per_node = named.get("ntasks-per-node")
    tasks = named.get("ntasks")
    if per_node is not None:
        count, origin = _number(per_node, "--ntasks-per-node"), per_node.origin
    elif tasks is not None and hosts:
        total = _number(tasks, "--ntasks")
        if total % hosts:
            raise InputError(f"{total} tasks do not divide over {hosts} hosts", hint="start equally many on each: `--ntasks-per-node`")
        count, origin = total // hosts, tasks.origin
    elif text := header.get("ntasks-per-node") or environment.get("SLURM_NTASKS_PER_NODE", ""):
        count, origin = whole_number(text) or 1, "header" if "ntasks-per-node" in header else "environment SLURM_NTASKS_PER_NODE"
    else:
        return LineDevices(hosts=hosts or 1, starts_step=True)
    return LineDevices(hosts=hosts or 1, per_host=count, origin=origin, starts_step=True)


def _hosts(step: Stage | None, header: Mapping[str, str], environment: Mapping[str, str]) -> int | None:
    """Return the number of hosts of a step; None if nothing states it."""
    given = _nodes(step)
    if given is not None and not given.missing:
        return _number(given, "--nodes")
    if step is None and "nodes" not in header:
        return None
    text = header.get("nodes") or environment.get("SLURM_JOB_NUM_NODES", "")
    least, dash, most = text.partition("-")
    if dash and least != most:
        raise InputError(f"`--nodes={text}` is a range, so its trials could not be compared", hint="give one number of hosts")
    return whole_number(least)


def _nodes(step: Stage | None) -> Word | None:
    """Return the value of `--nodes` of `srun`; None if it is not given."""
    return step.value("N", "nodes") if step is not None and step.name == "srun" else None


def _gpu(step: Stage | None, header: Mapping[str, str]) -> str:
    """Return the kind of GPU that options of Slurm name, as in `--gres=gpu:h100:8`; empty if none does."""
    stated = [value.text for name, value in (step.options if step else ()) if value is not None and ("gpus" in name or name == "gres")]
    stated += [value for name, value in header.items() if "gpus" in name or name == "gres"]
    kinds = [match[1] for text in stated if (match := re.search(r"(?:^|gpu:)([A-Za-z][\w-]*?):\d+(?:[,(]|$)", text)) and match[1] != "gpu"]
    return kinds[0] if kinds else ""


def gpus_in_header(words: tuple[str, ...]) -> int | None:
    """Return the GPUs of a host that a batch script's header requests; None if it requests none."""
    header = options_of(words)
    for name in ("gpus-per-node", "gres", "gpus-per-task"):
        if number := gpus_of(header.get(name, "")):
            return number
    return None


def _number(word: Word, option: str) -> int:
    return require_number(word, f"{option} {word.text}", word.origin)
