"""Understand a launch line of a program that calls DeepSpeed itself, with its file of JSON."""

import itertools
import re
from collections.abc import Mapping
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import read_text, whole_number
from oppa.problem.configuration import Value
from oppa.problem.launch_line.line import Stage
from oppa.problem.launch_line.words import texts
from oppa.tuning.launch_line.batch_hint import batch_hints
from oppa.tuning.launch_line.deepspeed_file import DeepSpeedFile
from oppa.tuning.launch_line.meaning import LineDevices, Meaning
from oppa.tuning.launch_line.options import Options
from oppa.tuning.launch_line.recognise import trainer_options
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates, with_copy

_PRINTS = re.compile(r"\bprint\([^\n]*(?:step|iter|loss|batch)|\blog\w*\.\w+\(|\btqdm|\btrange|set_log_level|oppa_client", re.IGNORECASE)
"""Calls in a program's source that may print its steps, or let DeepSpeed print them."""
_NO_FILE = "the program builds its configuration from options of its own: name `{micro_batch}` and others in the line"
_SILENT = (
    "the program may print no steps, as DeepSpeed 0.19 prints its own only at log level `info`: print each step, or call "
    '`deepspeed.utils.logging.set_log_level_from_string("info")`'
)


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line of DeepSpeed.

    Raises:
        InputError: the file cannot be read, or a size of the batch in it is unreadable.
    """
    options = trainer_options(sources)
    option = options.get("deepspeed_config")
    words = templates(sources.line.arguments)
    if option is None or not option.values:
        hints = (next(batch_hints(sources), _NO_FILE),)
        devices, missing = sources.devices, sources.missing
        return Meaning(framework="deepspeed", evidence=evidence, devices=devices, words=tuple(words), hints=hints, missing=missing)
    has_pipeline = _own_pipeline(options)
    file = DeepSpeedFile.of(sources, option, has_pipeline=has_pipeline)
    degrees = {} if "pipeline" in file.values or has_pipeline else file.degrees(sources.devices.count)
    ranks = degrees.get("dp")
    global_batch, micro = file.batch(None if ranks is None else int(ranks))
    settings: dict[str, Value] = {**file.settings, **({"micro_batch": micro} if micro else {}), **degrees}
    loads = _takes_batch_from_file(sources, options)
    unknown = [] if loads else [next(batch_hints(sources), "the program's own batch argument is unknown: name it `{micro_batch}`")]
    silent = [_SILENT] if "deepspeed" in sources.script and not _PRINTS.search(sources.script) else []
    edited = file.edited(batch="all" if loads and micro and global_batch else "none", more={"steps_per_print": 1})
    return Meaning(
        framework="deepspeed",
        evidence=evidence,
        devices=sources.devices,
        global_batch=global_batch,
        batch_origin=file.shown,
        precision=file.precision or "fp32",
        settings=settings,
        origins=dict.fromkeys([*(name for name in settings if name != "dp"), *(["precision"] if file.precision else [])], file.shown),
        words=tuple(with_copy(words, file.text, "ds")),
        files=(edited,),
        choices=file.choices,
        hints=(*unknown, *silent),
        missing=sources.missing,
    )


def _own_pipeline(options: Options) -> bool:
    return any(name in options for name in ("p", "pipeline_parallel_size", "pipe_parallel_size"))


def _takes_batch_from_file(sources: LineSources, options: Options) -> bool:
    """Return whether DeepSpeed itself loads the data, by the file's micro-batch."""
    own = any(re.search(r"batch", option.name) for option in options.all)
    return not own and re.search(r"training_data\s*=|train_micro_batch_size_per_gpu", sources.script) is not None


def devices_of_launcher(launcher: Stage, sources: LineSources) -> LineDevices:
    """Return the devices that `deepspeed` starts.

    Raises:
        InputError: it starts the ranks of several hosts, which it does by ssh, or its hostfile is not on this machine.
    """
    named, hosts = launcher.value("hostfile", "H"), _included(launcher)
    hosts = hosts or (_hostfile(sources, named.text) if named is not None and named.text != "/dev/null" else {})
    count = launcher.value("num-nodes")
    most = whole_number(count.text) if count is not None else None
    hosts = dict(itertools.islice(hosts.items(), most or None))
    machines = len(hosts) or most or 1
    given = launcher.value("num-gpus")
    per_machine = whole_number(given.text) if given is not None else None
    slots = per_machine * machines if per_machine else sum(size for size in hosts.values() if size)
    if machines > 1:
        shown = f"{slots} slots on {machines} hosts" if slots else f"{machines} hosts"
        per_host = f" --nproc-per-node {slots // machines}" if slots and slots % machines == 0 else ""
        program = " ".join([sources.line.started, *texts(sources.line.arguments)])
        hint = f"run it in an allocation of {machines} hosts: `oppa tune -- torchrun --nnodes {machines}{per_host} {program}`"
        raise InputError(
            f"`deepspeed` starts the ranks of {shown} by ssh, and ranks that are started by ssh cannot be ended surely", hint=hint
        )
    if given is not None and per_machine:
        return LineDevices(per_host=per_machine, origin=given.origin)
    if slots:
        return LineDevices(per_host=slots, origin=launcher.name)
    return LineDevices(per_host=sources.machine.gpus or None, origin="this machine")


def _included(launcher: Stage) -> Mapping[str, int]:
    """Return the slots of each host in `--include a:0-7@b:0,1`; 0 for all slots of a host."""
    given = launcher.value("include", "i")
    found: dict[str, int] = {}
    for part in given.text.split("@") if given is not None else ():
        host, _, slots = part.partition(":")
        found[host] = sum(_size(each) for each in slots.split(",")) if slots else 0
    return found


def _size(slots: str) -> int:
    match = re.fullmatch(r"(\d{1,6})-(\d{1,6})", slots)
    return int(match[2]) - int(match[1]) + 1 if match else 1


def _hostfile(sources: LineSources, name: str) -> dict[str, int]:
    """Return the slots of each host of a hostfile; raises InputError if it is not on this machine."""
    path = sources.local_file(name)
    if path is None:
        hint = "run oppa in an allocation of its hosts: `oppa tune -- torchrun --nnodes HOSTS ...`"
        raise InputError(f"the hostfile `{name}` of `deepspeed` is not on this machine", hint=hint)
    lines = [line.split("#")[0].split() for line in read_text(path).splitlines()]
    found: dict[str, Any] = {}
    for words in lines:
        slots = next((whole_number(word.removeprefix("slots=")) for word in words if word.startswith("slots=")), 0)
        found |= {words[0]: slots or 0} if words else {}
    return found
