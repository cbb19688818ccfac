"""Understand a launch line of a program around LightningCLI: `fit --trainer.devices 8 --data.batch_size 16 --config run.yaml`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from oppa.errors import InputError
from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import Value
from oppa.problem.file_keys import at
from oppa.tuning.formats.lightning import ACCUMULATE, BATCHES, DEVICES, HOSTS, PRECISIONS, STRATEGY, strategy_of
from oppa.tuning.launch_line.meaning import LineDevices, Meaning
from oppa.tuning.launch_line.options import Options, require_consistent
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates

_ON_CPU: Mapping[str, Any] = {"strategy": ["ddp"], "zero_stage": [0]}
"""Values that run without a GPU, where Lightning refuses FSDP and DeepSpeed."""
_SHARDING = f"{STRATEGY}.sharding_strategy"
_NAMED_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")
_BAR = ("--trainer.callbacks+=lightning.pytorch.callbacks.TQDMProgressBar", "--trainer.callbacks.refresh_rate=1")
_WORKERS = ("data.num_workers", "data.init_args.num_workers")
_DEFAULT = "default of Lightning"
_UNKNOWN_BATCH = (
    "the data module's own batch argument is unknown: name it `{micro_batch}`, such as `--data.batch_size '{micro_batch=8:4,8,16}'`"
)
_ALL = (None, "auto", -1, "-1")
"""Values that stand for the devices of the machine."""
_OTHER_DEVICES = (
    f"trials keep the indices of `--{DEVICES}`, so the strategy does not vary: put `CUDA_VISIBLE_DEVICES=...` in front of the line, and "
    "state the number of devices"
)


class _Effective:
    """Holds what the line states, over the files of `--config`."""

    def __init__(self, sources: LineSources) -> None:
        self.options = Options(sources.line.arguments, spelled=lambda name: name.lstrip("-"))
        require_consistent(self.options, [*BATCHES, ACCUMULATE, DEVICES, HOSTS])
        self._values: Mapping[str, Any] = {}
        self._file = ""
        named = self.options.get("config", "c")
        if named is not None and named.values and sources.local_file(named.text):
            self._values, self._file = sources.contents(named.values[0]), PurePath(named.text).name

    def stated(self, *keys: str) -> tuple[Any, str]:
        """Return the value of the first key that is stated, and its origin; None and "" if none is."""
        for key in keys:
            if option := self.options.get(key):
                number = whole_number(option.text)
                return (number if number is not None else option.text), option.origin
        for key in keys:
            if (found := at(self._values, key)) is not None:
                return found, self._file
        return None, ""


def devices_of_trainer(sources: LineSources) -> LineDevices:
    """Return the devices that the Trainer uses: a launcher's, else those of its own options."""
    if sources.line.stage("launcher", "step") is not None:
        return sources.devices
    effective = _Effective(sources)
    indices = _indices(effective)
    stated, origin = effective.stated(DEVICES)
    if indices is None and stated not in _ALL:
        message = f"`{DEVICES} = {stated}` ({origin}) is neither a number of devices nor a list of their indices"
        raise InputError(message, hint=f"write the number itself: `--{DEVICES} 8`")
    per_host = len(indices) if indices is not None else sources.machine.gpus or 1
    hosts, hosts_origin = effective.stated(HOSTS)
    if hosts is not None and not (type(hosts) is int and hosts > 0):
        raise InputError(f"`{HOSTS} = {hosts}` ({hosts_origin}) is no number of hosts", hint="write the number itself in the line")
    return LineDevices(hosts=hosts or 1, per_host=per_host, origin=origin or _DEFAULT)


def _indices(effective: _Effective) -> Sequence[int] | None:
    """Return the indices of the devices of a host; None if nothing states them or their number.

    Source: lightning/fabric/utilities/device_parser.py (2.6).
    """
    stated, _ = effective.stated(DEVICES)
    if isinstance(stated, str) and re.fullmatch(r"\[[\d, ]+\]|[\d ]*,[\d, ]*", stated):
        stated = list(map(int, re.findall(r"\d{1,6}", stated)))
    if isinstance(stated, list) and stated and all(type(each) is int for each in stated):
        return stated
    return range(stated) if type(stated) is int and stated > 0 else None


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line of LightningCLI."""
    effective = _Effective(sources)
    count = sources.devices.count
    batch, batch_origin = effective.stated(*BATCHES)
    accumulated, _ = effective.stated(ACCUMULATE)
    steps = accumulated if type(accumulated) is int else 1
    micro = batch if type(batch) is int and batch > 0 else None
    strategy, strategy_origin = effective.stated(STRATEGY)
    sharding = effective.options.value(_SHARDING)
    named, stage = strategy_of({"class_path": strategy, "init_args": {"sharding_strategy": sharding}} if sharding else strategy)
    named = "" if isinstance(strategy, Mapping) else named  # an option in its place would drop the arguments of the class
    precision, precision_origin = effective.stated("trainer.precision")
    settings: dict[str, Value] = {"tp": 1, "pp": 1}
    settings |= {"dp": count} if count else {}
    settings |= {"micro_batch": micro} if micro else {}
    settings |= {"zero_stage": stage} if stage >= 0 else {}
    settings |= {"strategy": named} if named else {}
    workers, workers_origin = effective.stated(*_WORKERS)
    settings |= {"num_workers": workers} if type(workers) is int else {}
    settings |= {"trainer_precision": precision} if isinstance(precision, str) and precision in _NAMED_PRECISIONS else {}
    by_name = next((key for key in BATCHES if effective.stated(key)[1] == batch_origin and effective.stated(key)[0] == batch), BATCHES[0])
    indices = _indices(effective)
    is_from_first = indices is None or list(indices) == list(range(len(indices)))
    completes = bool(named and micro and count and by_name == BATCHES[0]) and is_from_first
    replaced = {DEVICES, HOSTS, BATCHES[0], ACCUMULATE, STRATEGY, _SHARDING} if completes else {ACCUMULATE, by_name} if micro else set()
    words = templates(effective.options.without(replaced))
    arguments: dict[str, list[str]] = {}
    if micro and not completes:
        arguments["micro_batch"] = [f"--{by_name}={{micro_batch}}", f"--{ACCUMULATE}={{num_microbatches}}"]
    known = next((ours for text, ours in PRECISIONS.items() if str(precision).startswith(text)), "")
    return Meaning(
        framework="lightning",
        evidence=evidence,
        devices=sources.devices,
        global_batch=micro * steps * count if micro and count else None,
        batch_origin=f"{micro} x {steps} x {count} ({batch_origin})",
        precision="fp32" if precision is None else known,
        settings=settings,
        origins={
            "micro_batch": batch_origin,
            "num_workers": workers_origin,
            **dict.fromkeys(("strategy", "zero_stage"), strategy_origin or _DEFAULT),
            **dict.fromkeys(("precision", "trainer_precision"), precision_origin or _DEFAULT),
        },
        space="lightning" if completes else "",
        completes=completes,
        words=tuple(words),
        arguments=arguments,
        choices=_choices(named, effective, sources) if completes else {},
        steps={"format": "lightning", "batches_per_step": "{num_microbatches}" if micro else str(steps)},
        added=() if completes else _BAR,
        hints=(*([] if micro else [_UNKNOWN_BATCH]), *([] if is_from_first else [_OTHER_DEVICES])),
        missing=sources.missing,
    )


def _choices(strategy: str, effective: _Effective, sources: LineSources) -> Mapping[str, Any]:
    """Return the values among which trials choose: DeepSpeed is one of them if the line has it, as it is another package."""
    if strategy == "deepspeed":
        return {"strategy": ["ddp", "fsdp", "fsdp-shard-grad-op", strategy]}
    return _ON_CPU if strategy == "ddp" and _is_on_cpu(effective, sources) else {}


def _is_on_cpu(effective: _Effective, sources: LineSources) -> bool:
    """Return whether ranks have no GPU: the line states CPUs, or leaves the choice to Lightning on this machine, which has none."""
    stated, _ = effective.stated("trainer.accelerator")
    is_here = sources.devices.hosts == 1 and not sources.devices.starts_step
    return stated == "cpu" or (stated in (None, "auto") and is_here and sources.on_cpus)
