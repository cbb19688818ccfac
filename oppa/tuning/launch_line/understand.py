"""Understand a launch line: read its syntax, recognise its framework, and let the framework's module read its meaning."""

import dataclasses
import functools
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from oppa.errors import InputError
from oppa.problem.detect import Machine
from oppa.problem.launch_line.framework_commands import line_of_command
from oppa.problem.launch_line.line import LaunchLine, read_line
from oppa.problem.launch_line.words import texts
from oppa.problem.stated_words import is_profiler
from oppa.tuning.formats.stated import table
from oppa.tuning.launch_line import (
    accelerate,
    deepspeed,
    keyed,
    lightning,
    megatron,
    megatron_bridge,
    megatron_deepspeed,
    plain,
    torchtitan,
    trainer,
)
from oppa.tuning.launch_line.devices_of import devices_of, gpus_in_header
from oppa.tuning.launch_line.expanded_file import require_options, variables_of, written_out
from oppa.tuning.launch_line.keyed_programs import keyed_programs
from oppa.tuning.launch_line.meaning import LineDevices, Meaning
from oppa.tuning.launch_line.recognise import recognised, trainer_options
from oppa.tuning.launch_line.sources import LineSources

_RANKS = ("num_processes", "nproc_per_node")
"""Options of accelerate and torchrun that commands such as `trl` and `axolotl` pass on."""


class Reader(Protocol):
    """Reads the meaning of a line for one framework."""

    def __call__(self, sources: LineSources, *, evidence: str) -> Meaning:
        """Return the meaning."""


READERS: Mapping[str, Reader] = {
    "megatron": megatron.understand,
    "megatron-bridge": megatron_bridge.understand,
    "megatron-deepspeed": megatron_deepspeed.understand,
    "torchtitan": torchtitan.understand,
    "deepspeed": deepspeed.understand,
    "accelerate": accelerate.understand,
    "transformers": trainer.understand,
    "lightning": lightning.understand,
    "plain": plain.understand,
    **{name: functools.partial(keyed.understand, name=name) for name in keyed_programs()},
}


def understand(
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    machine: Machine,
    settings: Mapping[str, Any] | None = None,
) -> tuple[LaunchLine, Meaning]:
    """Return the parts of a launch line, and their meaning.

    Args:
        words: The words that the user typed after `--`.
        environment: Variables that scripts and schedulers set.
        machine: What this machine offers.
        settings: Tables that the user changes with `--set`; those of `[cluster]` replace what the line states.

    Raises:
        InputError: the line cannot be understood; see `read_line`, `recognised` and the framework's module.
    """
    given = settings or {}
    line = read_line(words, environment=environment, gpus=gpus_of_host(given, machine))
    hosts, per_host = _stated_devices(given)
    devices = devices_of(line, machine, environment, stated_hosts=hosts, stated_per_host=per_host)
    device = str(table(given, "cluster").get("device", ""))
    sources = LineSources(line=line, machine=machine, devices=devices, environment=environment, device=device)
    require_options(sources)
    framework, evidence = recognised(sources)
    sources = dataclasses.replace(sources, devices=_devices(sources, framework, given))
    return line, READERS[framework](sources, evidence=evidence)


def gpus_of_host(settings: Mapping[str, Any], machine: Machine) -> int | None:
    """Return the GPUs that a script of the line counts: as the user states them, else those of this machine."""
    _, stated = _stated_devices(settings)
    return machine.gpus or None if stated is None else stated


def _stated_devices(settings: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the hosts and the devices of a host that the user states; None for what is not stated."""
    hosts, per_host = (table(settings, "cluster").get(name) for name in ("hosts", "devices_per_host"))
    return hosts if isinstance(hosts, int) else None, per_host if isinstance(per_host, int) else None


def _devices(sources: LineSources, framework: str, settings: Mapping[str, Any]) -> LineDevices:
    """Return the devices, as the launcher's or the framework's own files state them, with the user's changes."""
    devices, launcher = sources.devices, sources.line.stage("launcher")
    if launcher is not None and launcher.name == "accelerate":
        devices = dataclasses.replace(accelerate.devices_of_launcher(launcher, sources), gpu=devices.gpu, starts_step=devices.starts_step)
    elif launcher is not None and launcher.name == "deepspeed":
        devices = dataclasses.replace(deepspeed.devices_of_launcher(launcher, sources), gpu=devices.gpu)
    elif framework == "lightning":
        devices = lightning.devices_of_trainer(sources)
    elif framework in keyed_programs():
        devices = keyed.devices_of_program(sources, framework)
    if devices.per_host is None and (gpus := gpus_in_header(sources.line.header)):
        devices = dataclasses.replace(devices, per_host=gpus, origin="header")
    hosts, per_host = _stated_devices(settings)
    if hosts is not None:
        devices = dataclasses.replace(devices, hosts=hosts)
    if per_host is not None:
        return dataclasses.replace(devices, per_host=per_host, origin="--set")
    if devices.per_host is None and launcher is None and not sources.line.stage("step"):
        raise _unknown_devices(sources, framework)
    return devices


def _unknown_devices(sources: LineSources, framework: str) -> InputError:
    """Return the error for a program that may start ranks of its own, with the line that starts the same ranks."""
    line = sources.line
    name = line.program_name
    if is_profiler(line.program.text):
        return InputError(f"`{name}` profiles the program, and would slow down each trial", hint="give the line without it and its options")
    words = [line.program.text, *texts(line.arguments)]
    same = line_of_command(words, count=_stated_ranks(sources), variables=_stated_variables(sources))
    such = f", such as `{written_out(sources, same)}`" if same else ""
    of = "" if same.startswith("python") else " of torchrun or accelerate"
    hint = f"give the launch line{of} that `{name}` starts{such}, or state them: `--set cluster.devices_per_host=8`"
    keyed_program = keyed_programs().get(framework)
    if keyed_program is not None and keyed_program.devices:
        hint = f"state `{' '.join(keyed_program.words(keyed_program.devices, 8))}` in the line; or {hint}"
    if not (same or line.is_python or shutil.which(line.program.text, path=sources.environment.get("PATH"))):
        hint = f"`{name}` is no program here, check its spelling; or {hint}"
    return InputError(f"`{name}` may start ranks of its own, so the number of devices is not known", hint=hint)


def _stated_ranks(sources: LineSources) -> str:
    """Return the ranks of a host that an option or a usual variable states, else the GPUs here, else a number that stands for them."""
    options, variables = trainer_options(sources), _stated_variables(sources)
    stated = next((text for option in _RANKS if (text := options.value(option)).isdigit()), "")
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    return stated or variables.get("NPROC_PER_NODE") or str(visible.count(",") + 1 if visible else sources.machine.gpus or 8)


def _stated_variables(sources: LineSources) -> dict[str, str]:
    """Return the variables of the environment, of the file of a command, and of the line, each before those in front of it."""
    return {**sources.environment, **variables_of(sources), **sources.line.variables}
