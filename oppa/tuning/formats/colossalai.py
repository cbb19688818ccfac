"""ColossalAI (0.5.0): `plugin.py` makes the HybridParallelPlugin. Its data-parallel size follows from the ranks and the other sizes.

Arguments: `HybridParallelPlugin.__init__` in colossalai/booster/plugin/hybrid_parallel_plugin.py. A million elements are 2^20 there.
"""

from typing import Any

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.space import Value
from oppa.tuning.formats import launch, source
from oppa.tuning.formats.format import Files, Reading, element_bytes, inexpressible, is_chosen, is_knob, only

NAME = "ColossalAI"
PLUGIN = "plugin.py"
FILES = (PLUGIN, launch.SCRIPT)
EXPRESSES = [
    "pp",
    "ep",
    "zero_stage",
    "schedule",
    "model_chunks",
    "overlap_p2p",
    "recompute",
    "dp_bucket_mb",
    "zero_bucket_mb",
    "overlap_zero_comm",
    "overlap_zero_allgather",
]

DENSE, MIXTURE = "HybridParallelPlugin", "MoeHybridParallelPlugin"
_ARGUMENTS = {
    "tp_size": "tp",
    "pp_size": "pp",
    "ep_size": "ep",
    "zero_stage": "zero_stage",
    "microbatch_size": "micro_batch",
    "pp_style": "schedule",
    "num_model_chunks": "model_chunks",
    "overlap_p2p": "overlap_p2p",
    "ddp_bucket_cap_mb": "dp_bucket_mb",
    "overlap_communication": "overlap_zero_comm",
    "overlap_allgather": "overlap_zero_allgather",
}

_SOURCE = '''\
"""Made by oppa: {name} with {id}.

plugin = make_plugin()
loader = plugin.prepare_dataloader(data, batch_size=BATCH_SIZE, shuffle=True)
model, optimizer, *_ = Booster(plugin=plugin).boost(prepare(model), optimizer, ...)
"""

from colossalai.booster.plugin import {plugin}

BATCH_SIZE = {batch}
"""Sequences of a batch on each data-parallel rank{whole}."""
ACCUMULATION_STEPS = {steps}
"""Batches per optimizer step."""


def make_plugin(**others):
    """The plugin; `others` are arguments of yours."""
    return {plugin}(
{arguments}
        **others,
    )


def prepare(model):
    """The model as it is to be boosted."""
{prepare}    return model
'''


def export(problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files; raises InputError for values that the plugin refuses."""
    _check(problem, configuration)
    c = configuration
    per_rank = c.global_batch // c.dp
    text = _SOURCE.format(
        name=problem.name,
        id=c.id,
        plugin=MIXTURE if c.ep > 1 else DENSE,
        batch=per_rank if c.pp > 1 else c.micro_batch,
        steps=1 if c.pp > 1 else c.num_microbatches,
        whole=", which the pipeline cuts into micro-batches" if c.pp > 1 else "",
        arguments=source.arguments(arguments(problem, c)),
        prepare="    model.gradient_checkpointing_enable()\n" if c.recompute == "full" else "",
    )
    body = f'export PYTHONPATH="$here${{PYTHONPATH:+:$PYTHONPATH}}"\nexec {launch.torchrun(problem)} "$@"'
    notes = (f"TRAIN.py takes its plugin and its batch size from {PLUGIN}.",)
    return {PLUGIN: text, launch.SCRIPT: launch.script(problem, c, usage="TRAIN.py [ARGUMENT]...", body=body, notes=notes)}


def arguments(problem: Problem, configuration: Configuration) -> dict[str, Any]:
    """Return the keyword arguments of the plugin that matter for the configuration."""
    c = configuration
    found: dict[str, Any] = {"tp_size": c.tp, "pp_size": c.pp, "precision": problem.training.precision, "zero_stage": c.zero_stage}
    if c.ep > 1:
        found["ep_size"] = c.ep
    if c.pp > 1:
        found |= {"microbatch_size": c.micro_batch, "pp_style": c.schedule}
    if c.schedule == "interleaved":
        found |= {"num_model_chunks": c.model_chunks, "overlap_p2p": c.overlap_p2p}
    if is_knob(problem, "dp_bucket_mb") and _reduces_in_buckets(c):
        found["ddp_bucket_cap_mb"] = round(c.dp_bucket_mb)
    if c.zero_stage:
        found |= {"overlap_communication": c.overlap_zero_comm, "overlap_allgather": c.overlap_zero_allgather}
        if is_knob(problem, "zero_bucket_mb"):
            found["zero_bucket_size_in_m"] = round(c.zero_bucket_mb) // element_bytes(problem)
    return found


def parse(problem: Problem, files: Files) -> Reading:
    """Read the source of a plugin."""
    text = only(files, ".py")
    given = source.called(text, MIXTURE) or source.called(text, DENSE)
    if given is None:
        raise InputError(f"there is no call of {DENSE}", hint=f"give the {PLUGIN} that `oppa export` wrote")
    settings: dict[str, Value] = {ours: given[theirs] for theirs, ours in _ARGUMENTS.items() if theirs in given}
    if "zero_bucket_size_in_m" in given:
        settings["zero_bucket_mb"] = given["zero_bucket_size_in_m"] * element_bytes(problem)
    if "BATCH_SIZE" in (known := source.constants(text)):
        settings.setdefault("micro_batch", known["BATCH_SIZE"])
    settings["recompute"] = "full" if source.called(text, "gradient_checkpointing_enable") is not None else "none"
    known_arguments = (*_ARGUMENTS, "zero_bucket_size_in_m", "precision")
    return Reading(settings=settings, ignored=tuple(f"{name} = {value!r}" for name, value in given.items() if name not in known_arguments))


def _reduces_in_buckets(configuration: Configuration) -> bool:
    """Return whether torch's DistributedDataParallel runs, whose buckets have a size."""
    return configuration.dp > 1 and configuration.pp == 1 and configuration.zero_stage == 0


def _check(problem: Problem, configuration: Configuration) -> None:
    c = configuration
    if c.schedule not in ("1f1b", "interleaved"):
        raise inexpressible(NAME, c, "schedule", hint='its plugin has "1f1b" and "interleaved"')
    if c.recompute == "selective":
        raise inexpressible(NAME, c, "recompute", hint='it recomputes whole layers: "none" or "full"')
    if c.zero_stage == 3:
        raise inexpressible(NAME, c, "zero_stage", hint="HybridParallelPlugin takes ZeRO 0 to 2")
    if c.zero_stage == 2 and c.pp > 1:
        raise inexpressible(NAME, c, "zero_stage", beside="pp", hint="a pipeline takes ZeRO 0 and 1")
    if c.zero_stage and problem.training.precision == "fp32":
        raise inexpressible(NAME, c, "zero_stage", hint='its ZeRO works in half precision: `precision = "bf16"` in the job')
    for name in ("zero_bucket_mb", "overlap_zero_comm", "overlap_zero_allgather"):
        if c.zero_stage == 0 and is_chosen(problem, c, name):
            raise inexpressible(NAME, c, name, beside="zero_stage", hint="that is ZeRO's: 1 or 2")
    if is_chosen(problem, c, "dp_bucket_mb") and not _reduces_in_buckets(c):
        raise inexpressible(NAME, c, "dp_bucket_mb", beside="zero_stage", hint="its buckets are for ZeRO 0 without a pipeline")
    if c.zero_stage and is_knob(problem, "zero_bucket_mb") and c.zero_bucket_mb % element_bytes(problem):
        raise inexpressible(NAME, c, "zero_bucket_mb", hint="its buckets are whole millions of two-byte elements: use an even number")
    if c.model_chunks > 1 and c.schedule != "interleaved":
        raise inexpressible(NAME, c, "model_chunks", beside="schedule", hint="only the interleaved schedule has several")
