"""Define the tables of `job.toml`, and convert each to its record. Defaults are in the records."""

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from oppa.errors import JobError, nearest
from oppa.plain_text import clipped
from oppa.problem.allocation import ALLOCATION, read_allocation
from oppa.problem.bounds import (
    LARGEST_BATCH,
    LONGEST_NAME,
    MOST_DEVICES_PER_HOST,
    MOST_HOSTS,
    MOST_LAYERS,
)
from oppa.problem.cluster import Cluster, HardwareFile, Link
from oppa.problem.command import StepFormat
from oppa.problem.command_table import CommandTable
from oppa.problem.declaration import (
    Bandwidth,
    Bytes,
    DeclaredTable,
    JobCount,
    JobNatural,
    Latency,
    Name,
    Option,
    Positive,
    listing,
    spell,
)
from oppa.problem.detect import physical_memory
from oppa.problem.devices import CPU, memory_in, memory_of, read_hardware_file
from oppa.problem.limits_table import LimitsTable
from oppa.problem.model import HEAD_DIM, OF_EXPERTS, OF_LATENTS, Model
from oppa.problem.presets import PRESETS
from oppa.problem.proxy_table import ProxyTable
from oppa.problem.space_file import divisors
from oppa.problem.tracking_table import TrackingTable
from oppa.problem.training import LauncherChoice, SearchOptions
from oppa.problem.training_table import TrainingTable, TrainTable
from oppa.problem.transformers_config import with_config


class ModelTable(DeclaredTable):
    """Validates `[model]`: a preset, dimensions, a preset with some dimensions changed, or a configuration of Transformers."""

    preset: Name | None = None
    """Name of a known model: one of the presets."""
    layers: int | None = Field(default=None, ge=1, le=MOST_LAYERS)
    """Transformer layers."""
    hidden: JobCount | None = None
    """Width of the hidden state."""
    heads: JobCount | None = None
    """Attention heads. It divides `hidden` unless `head_dim` is stated."""
    kv_heads: JobCount | None = None
    """Heads of keys and values, a divisor of `heads`."""
    ffn: JobCount | None = None
    """Inner width of the feed-forward network."""
    vocab: JobCount | None = None
    """Size of the vocabulary; with `patch`, the number of classes."""
    seq_len: JobCount | None = None
    """Tokens of a training sequence."""
    gated: bool | None = None
    """The feed-forward network is gated (SwiGLU): three matrices instead of two."""
    biases: bool | None = None
    """All linear layers have biases."""
    qkv_bias: bool | None = None
    """Only the query, key and value projections have biases."""
    tied: bool | None = None
    """The output projection uses the weights of the embedding."""
    norm: Literal["rms", "layer"] | None = None
    """Kind of norm."""
    learned_positions: JobNatural | None = None
    """Rows of a learned position embedding, at least `seq_len`. 0: rotary embedding."""
    token_types: JobNatural | None = None
    """Rows of a token-type embedding, as in BERT. 0: none."""
    patch: JobNatural | None = None
    """Side of an image patch in pixels, for a ViT. `seq_len` is then a square number plus 1. 0: not a ViT."""
    causal: bool | None = None
    """A token attends to itself and earlier tokens. `false`: to all tokens, as in an encoder."""
    sliding_window: JobCount | None = None
    """Tokens that a token attends to at most, itself included, as in sliding-window attention."""
    full_attention_layers: JobNatural | None = None
    """Layers that attend to all tokens. It requires `sliding_window`."""
    experts: JobCount | None = None
    """Experts of a layer. 1: a dense model."""
    experts_per_token: JobCount | None = None
    """Experts that each token passes through, at most `experts`."""
    head_dim: JobCount | None = None
    """Width of one attention head."""
    expert_ffn: JobCount | None = None
    """Inner width of one expert."""
    shared_expert_ffn: JobCount | None = None
    """Inner width of all shared experts together, through which every token passes."""
    dense_layers: JobNatural | None = None
    """Layers with one network of width `ffn` in place of experts. They count as the first ones."""
    q_lora_rank: JobCount | None = None
    """The same for queries."""
    kv_lora_rank: JobCount | None = None
    """Width of the latent from which a token's keys and values are computed."""
    qk_rope_head_dim: JobCount | None = None
    """Rotated part of `head_dim`, less than `head_dim`. All heads share its key."""
    v_head_dim: JobCount | None = None
    """Width of one head's values."""
    norm_eps: Positive | None = None
    """Number that norms add to the variance."""
    rope_theta: Positive | None = None
    """Base of the angles of the rotary embedding."""
    activation: Literal["gelu", "gelu_tanh"] | None = None
    """Activation without a gate. `"gelu_tanh"` is the approximation of GPT-2."""
    entry_point: Name | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """Your own module as `module:name`, which the dimensions describe."""
    config: Name | None = None
    """`config.json` of Hugging Face Transformers, which states the dimensions. It excludes `preset` and requires `seq_len`."""

    def record(self, folder: Path = Path()) -> Model:
        """Return the model.

        Args:
            folder: Folder that is searched first for the module of an entry point, and to which `config` is relative.

        Raises:
            JobError: the preset is unknown, `config` cannot be read, or dimensions are missing or inconsistent.
        """
        given = self.model_dump(exclude_none=True, exclude={"preset", HEAD_DIM})
        given |= {"head_width": self.head_dim} if self.head_dim else {}
        if self.entry_point is not None:
            given["entry_point"] = f"{folder.resolve()}:{self.entry_point}"
        if self.config is not None:
            given = with_config(given, Path(os.path.realpath(folder / self.config)), preset=self.preset)
        if self.preset is None:
            model = Model(**_complete(given))
        elif self.preset in PRESETS:
            model = dataclasses.replace(PRESETS[self.preset], **given)
        else:
            raise JobError(f'`preset = "{self.preset}"` is not a known model', hint=nearest(self.preset, PRESETS))
        _check_dimensions(model)
        return model


class BatchTable(DeclaredTable):
    """Validates `[batch]`."""

    global_batch: int = Field(ge=1, le=LARGEST_BATCH)
    """Sequences, or images, of an optimizer step."""


class LinkTable(DeclaredTable):
    """Validates `[cluster.intra_host]` and `[cluster.inter_host]`."""

    bandwidth: Bandwidth
    """Bandwidth in one direction: between two devices, or of the whole network of a host, of which each device has its share."""
    latency: Latency
    """Time of one hop, in one direction."""

    def record(self) -> Link:
        """Return the link."""
        return Link(bandwidth_bytes_per_s=self.bandwidth, latency_s=self.latency)


class ClusterTable(DeclaredTable):
    """Validates `[cluster]`."""

    hosts: Annotated[int, Field(ge=1, le=MOST_HOSTS)] | Literal["allocation"] = 1
    """Hosts of one trial. `"allocation"`: those of the allocation that oppa runs in."""
    devices_per_host: Annotated[int, Field(ge=1, le=MOST_DEVICES_PER_HOST)] | Literal["allocation"]
    """Devices of each host, one rank each."""
    device: Name = "CPU"
    """Device, by its id in the catalogue or by another name."""
    memory_limit: Bytes | None = None
    """Memory that one rank may allocate. A job with `[model]` on CPUs requires it."""
    cpus_per_device: Positive | list[Positive] | None = None
    """CPU quota of each rank, in cores, where cgroups are writable. A list has one quota for each device of a host. For CPUs only."""
    intra_host: LinkTable | None = None
    """Link between two devices of a host."""
    inter_host: LinkTable | None = None
    """Link between hosts. Under `oppa emulate`, `"allocation"` makes it the emulated link."""
    hardware: Name | None = None
    """Hardware file, or an id of the catalogue, for predictions in place of that of `device`."""

    def record(self, folder: Path = Path(), *, program: bool = False) -> Cluster:
        """Return the cluster.

        Args:
            folder: Folder to which the path of a hardware file is relative.
            program: Whether the job is a program without a stated model. On CPUs, the machine's memory is then its limit.

        Raises:
            JobError: GPUs have a CPU quota, or the number of quotas is wrong; there is no allocation to use; or no memory limit is given
                and the size of the device is unknown.
            InputError: the hardware file is missing or wrong.
        """
        hardware = read_hardware_file(self.hardware, folder) if self.hardware else None
        device = CPU if self.device.upper() == CPU else self.device
        if device != CPU and self.cpus_per_device is not None:
            raise JobError(f'`cpus_per_device` has no effect with `device = "{device}"`', hint="remove it")
        given = read_allocation(on_cuda=device != CPU) if ALLOCATION in (self.hosts, self.devices_per_host) else None
        count = given.devices_per_host if given and self.devices_per_host == ALLOCATION else int(self.devices_per_host)
        own = self.cpus_per_device
        if isinstance(own, list) and len(own) != count:
            raise JobError(
                f"`cpus_per_device` has {len(own)} quotas for {count} devices of a host",
                hint="give one quota for each device, or one for all",
            )
        return Cluster(
            hosts=given.hosts if given and self.hosts == ALLOCATION else int(self.hosts),
            devices_per_host=count,
            device=device,
            memory_limit_bytes=self.memory_limit or _memory(device, hardware, count, program=program),
            memory_limit_stated=self.memory_limit is not None,
            cpus_per_device=tuple(own) if isinstance(own, list) else own or (given.cpus_per_device if given else None),
            intra_host=self.intra_host.record() if self.intra_host else None,
            inter_host=self.inter_host.record() if self.inter_host else given.link if given else None,
            hardware=hardware,
        )


def _memory(device: str, hardware: HardwareFile | None, devices_per_host: int, *, program: bool) -> int:
    """Return the memory of a device whose limit the job does not state, in bytes; raises JobError if it is unknown."""
    if device == CPU and program:
        return physical_memory() // devices_per_host
    return memory_in(hardware) if hardware and device != CPU else memory_of(device)


class RunnerTable(DeclaredTable):
    """Validates `[runner]`."""

    name: Name = "torch"
    """`torch`, `colossalai`, `deepspeed`, `simulated`, or a folder of your own. A launch line has `command`."""


class SearchSpaceTable(DeclaredTable):
    """Validates `[space]`; without a name, the runner's own space is used."""

    name: Name | None = None
    """Search space file, or a name of the catalogue."""
    framework: Name | None = None
    """Framework whose memory and communication the prior predicts."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Choices of parameters."""


class LauncherTable(DeclaredTable):
    """Validates `[launcher]` and `[launcher.options]`; the launcher itself checks which options it takes."""

    name: Name = "auto"
    """`auto`, `local`, `slurm`, `srun`, `ray`, or one of an installed package. `auto`: the allocation that oppa runs in, else this host."""
    options: dict[str, Option] = Field(default_factory=dict)
    """Options of the launcher: those of `sbatch` for `slurm`, or those of `ray`."""
    parallel: JobCount | None = None
    """Trials that run at the same time."""

    def record(self) -> LauncherChoice:
        """Return the choice of a launcher."""
        return LauncherChoice(name=self.name, options=self.options, parallel=self.parallel)


class DesignerTable(DeclaredTable):
    """Validates `[designer]`."""

    stopping: Literal["precise", "sure", "paper", "paper-bound", "never"] | None = None
    """Rule of early termination."""
    acquisition: Literal["improvement", "ucb"] | None = None
    """Acquisition function: expected improvement per second, or the upper confidence bound of OPPA (eq. 4)."""
    beta: Positive | Literal["bound"] | None = None
    """Weight of uncertainty in `"ucb"`, which it implies. `"bound"`: the schedule of OPPA (eq. 32). An error with `"improvement"`."""
    transfer: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    """Studies whose coefficients the search starts from, also as patterns."""

    def record(self, folder: Path = Path()) -> SearchOptions:
        """Return the strategy; `beta` implies `ucb`, and folders of `transfer` are relative to `folder`, the job file's.

        Raises:
            JobError: `beta` is given with another acquisition.
        """
        if self.beta is not None and self.acquisition == "improvement":
            raise JobError(
                f'`beta = {spell(self.beta)}` has no effect with `acquisition = "improvement"`', hint='use `acquisition = "ucb"`'
            )
        given = {**({"acquisition": "ucb"} if self.beta is not None else {}), **self.model_dump(exclude_none=True)}
        if self.transfer is not None:
            names = [self.transfer] if isinstance(self.transfer, str) else self.transfer
            given["transfer"] = tuple(os.path.realpath(folder / name) for name in names)
        return SearchOptions(**{**given, **({"beta": None} if self.beta == "bound" else {})})


class ObjectiveTable(DeclaredTable):
    """Validates `[objective]`: a number in a program's output that takes the place of throughput."""

    pattern: str
    """Regular expression of a line with the number, in the group `value`. It may also have `step`, `loss` and `memory_gib`."""
    unit: str = Field(default="", max_length=40, pattern=r"^\P{Cc}*$")
    """Unit for display, at most 40 characters."""
    better: Literal["higher", "lower"] = "higher"
    """Which numbers are better."""

    def record(self) -> StepFormat:
        """Return how lines state the objective; raises JobError for a pattern without the group `value`, or with one that states a time."""
        try:
            groups = re.compile(self.pattern).groupindex
        except (re.error, OverflowError, RecursionError) as error:
            message = f"`[objective]`: `pattern = '{clipped(self.pattern)}'` is not a regular expression: {error}"
            raise JobError(message, hint=_OBJECTIVE) from None
        if "value" not in groups:
            raise JobError(f"`[objective]`: `pattern = '{clipped(self.pattern)}'` has no group `value`", hint=_OBJECTIVE)
        if times := sorted(groups.keys() & {"s", "ms", "per_s", "tokens_per_s", "done"}):
            message = f"`[objective]`: `pattern = '{clipped(self.pattern)}'` has the group `{times[0]}`, which states progress or a time"
            raise JobError(message, hint=_OBJECTIVE)
        return StepFormat(pattern=self.pattern, better=self.better, unit=self.unit)


_OBJECTIVE = "write `pattern = 'images/s: (?P<value>[0-9.]+)'`; of the other groups, it may have `step`, `loss` and `memory_gib`"


class JobFile(DeclaredTable):
    """Validates a whole `job.toml`."""

    name: str | None = Field(default=None, pattern=r"^\w[\w.-]*$", max_length=LONGEST_NAME)
    """Name of the job. It has letters, digits, `_`, `.` and `-`, and begins with none of the last two."""
    model: ModelTable | None = None
    """The model. Required without a launch line."""
    batch: BatchTable | None = None
    """The global batch. Required without a launch line."""
    cluster: ClusterTable
    """Hosts and devices."""
    runner: RunnerTable = RunnerTable()
    """Runner that starts a trial."""
    command: CommandTable | None = None
    """Launch line of your own program."""
    objective: ObjectiveTable | None = None
    """A number that takes the place of throughput."""
    space: SearchSpaceTable = SearchSpaceTable()
    """Parameters that may vary."""
    training: TrainingTable = TrainingTable()
    """Optimizer, precision and data."""
    limits: LimitsTable = LimitsTable()
    """Trials, time and money."""
    train: TrainTable = TrainTable()
    """Options of `oppa train`."""
    launcher: LauncherTable = LauncherTable()
    """Launcher of the trials."""
    designer: DesignerTable = DesignerTable()
    """How to search."""
    proxy: ProxyTable | None = None
    """A smaller size to search first."""
    tracking: TrackingTable | None = None
    """Trackers that record studies and runs."""
    baseline: dict[str, Any] | None = None
    """The configuration that you run at present."""


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """Return the dimensions of a model without a preset; raises JobError if some are missing."""
    lacking = [name for name in ("layers", "hidden", "heads", "ffn", "vocab", "seq_len") if name not in given]
    if lacking:
        hint = f"add them, or `preset = ...`: {', '.join(PRESETS)}"
        raise JobError(f"`[model]` lacks {', '.join(f'`{name}`' for name in lacking)}", hint=hint)
    return {"kv_heads": given["heads"], **given}


def _check_dimensions(model: Model) -> None:
    """Raise JobError for dimensions that no transformer can have."""
    for part, whole in (("kv_heads", "heads"),) if model.head_width else (("heads", "hidden"), ("kv_heads", "heads")):
        divisor, number = getattr(model, part), getattr(model, whole)
        if number % divisor:
            raise JobError(f"`{part} = {divisor}` does not divide `{whole} = {number}`", hint=f"use one of {listing(divisors(number))}")
    if model.experts_per_token > model.experts:
        message = f"`experts_per_token = {model.experts_per_token}` is more than `experts = {model.experts}`"
        raise JobError(message, hint=f"use at most {model.experts}")
    if model.dense_layers > model.layers:
        raise JobError(f"`dense_layers = {model.dense_layers}` is more than `layers = {model.layers}`", hint=f"use at most {model.layers}")
    if model.full_attention_layers > (model.layers if model.sliding_window else 0):
        message = f"`full_attention_layers = {model.full_attention_layers}` is more than the layers of a model with a window"
        raise JobError(message, hint=f"use at most {model.layers}" if model.sliding_window else "add `sliding_window`, or remove it")
    if model.experts == 1 and (alone := [name for name in OF_EXPERTS if getattr(model, name)]):
        raise JobError(f"`{alone[0]} = {getattr(model, alone[0])}` is of a mixture of experts, and `experts = 1`", hint="add `experts`")
    if not model.kv_lora_rank and (alone := [name for name in OF_LATENTS[:3] if getattr(model, name)]):
        message = f"`{alone[0]} = {getattr(model, alone[0])}` is of multi-head latent attention, and there is no `kv_lora_rank`"
        raise JobError(message, hint="add `kv_lora_rank`")
    if model.qk_rope_head_dim >= model.head_dim:
        message = f"`qk_rope_head_dim = {model.qk_rope_head_dim}` is not less than `head_dim = {model.head_dim}`, of which it is a part"
        raise JobError(message, hint="set `head_dim` to the width of a query, `qk_nope_head_dim + qk_rope_head_dim`")
    if model.patch and math.isqrt(model.seq_len - 1) ** 2 != model.seq_len - 1:
        fitting = math.isqrt(model.seq_len - 1) ** 2 + 1
        message = f"`seq_len = {model.seq_len}` is not a square number of patches plus a class token"
        raise JobError(message, hint=f"use {fitting}, or another square number plus 1")
    if model.learned_positions and model.seq_len > model.learned_positions:
        message = f"`seq_len = {model.seq_len}` is more than `learned_positions = {model.learned_positions}`"
        raise JobError(message, hint=f"use at most {model.learned_positions}")
