"""Read what a framework's files state about the job: its model, batch and devices, and the framework's runner and search space."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import Value
from oppa.problem.file_keys import at
from oppa.problem.model import Model, key_of
from oppa.tuning.formats import accelerate, deepspeed, lightning, megatron, stated, transformers
from oppa.tuning.formats.format import Files
from oppa.tuning.formats.megatron_command import CONTEXT, command_table, model_facts, states_architecture

SPACES = {
    "deepspeed": ("deepspeed", "deepspeed-llama"),
    "megatron": megatron.SPACES,
    "megatron-bridge": ("megatron",),
    "colossalai": ("colossalai", "colossalai-llama"),
}
"""The catalog's search spaces that have a framework's parameters."""
ANY = "command"
"""The search space that has no framework's rules, and therefore fits all of them."""
NEEDED = ("layers", "hidden", "heads", "seq_len", "vocab")
"""The dimensions without which a job has no model."""


class CommandOf(Protocol):
    """Writes the tables `[command]` for a job of a model and a precision."""

    def __call__(self, *, model: Model, precision: str) -> str:
        """Return the text."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Holds the facts that files state, by the keys of a job file; facts that they do not state are empty or None."""

    model: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Dimensions of the model."""
    kind: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    """Further keys of `[model]`, which describe the kind of model."""
    global_batch: int | None = None
    devices: int | None = None
    """Total number of devices."""
    hosts: int | None = None
    precision: str = ""
    runner: str = ""
    """The runner for the framework; empty if there is none."""
    space: str = ""
    """The search space, if it is not the runner's own."""
    launch_space: str = ""
    """The search space for the user's launch line; empty if the framework has none."""
    command: CommandOf | None = None
    """Writes the launch line, if the runner starts one."""
    degrees: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Degrees above 1 that a job must name as parameters of its search space."""
    unread: tuple[str, ...] = ()
    """Options that state a fact in an unreadable way."""

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the dimensions that a job's model needs and that the files do not state."""
        return tuple(name for name in NEEDED if name not in self.model)

    @property
    def model_table(self) -> dict[str, Value]:
        """Return `[model]` for a job without one: the dimensions, and the keys of its kind that differ from the default."""
        usual = {field.name: field.default for field in dataclasses.fields(Model)}
        return {**self.model, **{key_of(name): value for name, value in self.kind.items() if value != usual[name]}}


def facts_of(origin: str, files: Files) -> JobFacts:
    """Return what files of a format state about the job; raises InputError for files that cannot be read."""
    return _READERS[origin](files) if origin in _READERS else JobFacts()


def fits(origin: str, space: str, known: tuple[str, ...]) -> bool:
    """Return whether a search space can hold the format's parameters; one outside the catalog (`known`) is the user's own choice."""
    return origin not in SPACES or space not in known or space in (*SPACES[origin], ANY)


def _deepspeed(files: Files) -> JobFacts:
    values = deepspeed.values_of(files)
    total, micro, steps = deepspeed.batch_of(values)
    tp, pp = deepspeed.degrees_of(values)
    sp = stated.count(values, deepspeed.key_of("sp"), 1)
    ranks, rest = divmod(total, micro * steps) if total and micro and steps else (0, 0)
    return JobFacts(
        global_batch=total,
        devices=ranks * tp * pp * sp if ranks and not rest else None,
        precision=_precision(values.get("bf16")),
        runner="deepspeed",
        launch_space="deepspeed",
    )


def _precision(bf16: Any) -> str:
    given = bf16.get("enabled") if isinstance(bf16, Mapping) else None
    return {True: "bf16", False: "fp32"}.get(given, "") if isinstance(given, bool) else ""


def _accelerate(files: Files) -> JobFacts:
    values = accelerate.values_of(files)
    inner = _deepspeed(files) if deepspeed.CONFIG in files else JobFacts()
    devices, hosts = stated.count(values, "num_processes"), stated.count(values, "num_machines")
    sharded_by_deepspeed = str(values.get("distributed_type")) == "DEEPSPEED"
    return dataclasses.replace(
        inner,
        devices=devices or inner.devices,
        hosts=hosts,
        precision=inner.precision or {"bf16": "bf16", "no": "fp32"}.get(str(values.get("mixed_precision")), ""),
        runner="deepspeed" if sharded_by_deepspeed else "torch",
        launch_space="deepspeed" if sharded_by_deepspeed else "",
    )


def _transformers(files: Files) -> JobFacts:
    values = transformers.values_of(files)
    if values.get("deepspeed"):
        return JobFacts(launch_space="deepspeed")
    precision = "bf16" if stated.switch(values, "bf16", usual=False) else "" if values.get("fp16") else "fp32"
    return JobFacts(precision=precision, launch_space="transformers")


def _lightning(files: Files) -> JobFacts:
    values = lightning.values_of(files)
    hosts, devices = (at(values, key) for key in (lightning.HOSTS, lightning.DEVICES))
    hosts = hosts if type(hosts) is int else 1
    precision = str(at(values, lightning.PRECISION) or "32")
    known = next((ours for text, ours in lightning.PRECISIONS.items() if precision.startswith(text)), "")
    return JobFacts(
        devices=devices * hosts if type(devices) is int and devices > 0 else None,
        hosts=hosts,
        precision="" if known == "fp16" else known,
        launch_space="lightning",
    )


def _megatron(files: Files) -> JobFacts:
    options, program = megatron.options_of(files), megatron.program_of(files)
    model, kind, unread = model_facts(options, program)
    hosts = _first(options, "--nnodes") or 1
    ranks = _first(options, "--nproc_per_node", "--nproc-per-node")
    context = _first(options, CONTEXT) or 1
    return JobFacts(
        model=model,
        kind=kind,
        global_batch=_first(options, "--global-batch-size"),
        devices=ranks * hosts if ranks else None,
        hosts=_first(options, "--nnodes"),
        precision=_megatron_precision(options, usual="fp32" if states_architecture(model) else ""),
        runner="command",
        space="megatron",
        launch_space="megatron",
        command=functools.partial(command_table, options, program),
        degrees={"cp": context} if context > 1 else {},
        unread=unread,
    )


def _megatron_precision(options: Mapping[str, list[str]], *, usual: str) -> str:
    """Return the precision that options state; none for fp16, which no job has."""
    return "bf16" if "--bf16" in options else "" if "--fp16" in options else usual


def _first(options: Mapping[str, list[str]], *names: str) -> int | None:
    """Return the number that the first given option of `names` has; None if there is none."""
    words = [options[name][0] for name in names if options.get(name)]
    return whole_number(words[0]) or None if words else None


_READERS: dict[str, Callable[[Files], JobFacts]] = {
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
    "megatron": _megatron,
    "transformers": _transformers,
    "lightning": _lightning,
    "colossalai": lambda _: JobFacts(runner="colossalai", launch_space="colossalai"),
}
