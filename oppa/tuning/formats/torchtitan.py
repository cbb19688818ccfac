"""torchtitan since 0.3: a Python function that returns the `Trainer.Config`.

Release 0.3.0 counts batches in sequences, and a pipeline cuts a rank's whole share of the batch into micro-batches. Later commits count
tokens, and count each micro-batch of a pipeline by itself. The function detects from the configuration which of the two applies.

Names: release 0.3.0, which the tests check; torchtitan/config/parallelism.py (commit 15e2431), torchtitan/config/training.py (f204eb6).
"""

import textwrap
from collections.abc import Mapping
from typing import Any

from oppa.pipeline.from_configuration import schedule_of
from oppa.pipeline.registry import SEARCH
from oppa.pipeline.torch_csv import to_csv
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.space import Value
from oppa.tuning.formats import launch, source
from oppa.tuning.formats.format import Files, Reading, inexpressible, only, require_equal_stages

NAME = "torchtitan"
RECIPE = "oppa_recipe.py"
ORDER = "schedule.csv"
FILES = (RECIPE, ORDER, launch.SCRIPT)
EXPRESSES = ["pp", "ep", "zero_stage", "schedule", "model_chunks", "recompute"]

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
}
SEARCHED = {1: "PipelineScheduleSingle", 2: "ZBVZeroBubble"}
"""The schedule that places stages as a searched schedule does, by number of model chunks; `PipelineScheduleMulti` for other numbers."""
ORDER_PATH = "parallelism.pipeline_parallel_schedule_csv"
RESHARD = {2: "never", 3: "always"}
CHECKPOINTING = {"none": None, "selective": "<SelectiveAC.Config()>", "full": "<FullAC.Config()>"}

_SOURCE = '''\
"""Made by oppa: {name} with {id}."""

import importlib
import os

from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.trainer import Trainer


def fastest() -> Trainer.Config:
    """The configuration named by BASE (`module:function`), as it runs fastest."""
    module, _, function = os.environ["BASE"].partition(":")
    config = getattr(importlib.import_module(module), function)()
{assignments}
    if hasattr(config.training, "local_batch_size"):  # torchtitan 0.3
{in_sequences}
    else:
{in_tokens}
    return config
'''


def export(problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files; raises InputError for ZeRO 1, and for experts with replicas that are not sharded."""
    c = configuration
    require_equal_stages(NAME, problem, c)
    if c.zero_stage == 1:
        raise inexpressible(NAME, c, "zero_stage", hint="it replicates (0) or shards by FSDP2 (2 and 3)")
    if c.ep > 1 and c.dp > 1 and c.zero_stage == 0:
        raise inexpressible(NAME, c, "ep", beside="zero_stage", hint="experts take their ranks from those that shard")
    text = _SOURCE.format(
        name=problem.name,
        id=c.id,
        assignments=source.assignments(values(problem, c)),
        in_sequences=textwrap.indent(source.assignments(in_sequences(problem, c)), "    "),
        in_tokens=textwrap.indent(source.assignments(in_tokens(problem, c)), "    "),
    )
    start = f'exec {launch.torchrun(problem)} -m torchtitan.train --module {RECIPE.removesuffix(".py")} --config fastest "$@"'
    base = ': "${BASE:?a configuration, such as torchtitan.models.llama3.config_registry:llama3_8b}"\nexport BASE'
    body = f'{base}\nexport PYTHONPATH="$here${{PYTHONPATH:+:$PYTHONPATH}}"\n{start}'
    usage = "       with BASE=, the `module:function` of a configuration of the model"
    found = {RECIPE: text, launch.SCRIPT: launch.script(problem, c, usage=usage, body=body)}
    return found | ({ORDER: to_csv(schedule_of(c))} if c.pp > 1 and c.schedule == SEARCH else {})


def values(problem: Problem, configuration: Configuration) -> dict[str, object]:
    """Return the values to set, by path, that do not depend on how batches are counted."""
    c, sharded = configuration, configuration.zero_stage >= 2
    found: dict[str, object] = {
        "parallelism.data_parallel_replicate_degree": 1 if sharded else c.dp,
        "parallelism.data_parallel_shard_degree": c.dp if sharded else 1,
        "parallelism.fsdp_reshard_after_forward": RESHARD.get(c.zero_stage, "default"),
        "parallelism.tensor_parallel_degree": c.tp,
        "parallelism.pipeline_parallel_degree": c.pp,
        "parallelism.context_parallel_degree": 1,
        "parallelism.expert_parallel_degree": c.ep,
        "activation_checkpoint": CHECKPOINTING[c.recompute],
    }
    if c.ep > 1:
        found["training.disable_cuda_graphs"] = True  # most token dispatchers involve the CPU, and are refused with graphs
    if c.pp > 1:
        searched = c.schedule == SEARCH
        found |= {
            "parallelism.pipeline_parallel_schedule": SEARCHED.get(c.model_chunks, "PipelineScheduleMulti")
            if searched
            else SCHEDULES[c.schedule],
            **({ORDER_PATH: f'<os.path.join(os.path.dirname(__file__), "{ORDER}")>'} if searched else {}),
            "parallelism.pipeline_parallel_layers_per_stage": problem.model.layers // (c.pp * c.model_chunks),
            "parallelism.pipeline_parallel_first_stage_less_layers": 0,
            "parallelism.pipeline_parallel_last_stage_less_layers": 0,
        }
    return found


def in_sequences(problem: Problem, configuration: Configuration) -> dict[str, object]:
    """Return the batch settings for release 0.3.0, whose CUDA graphs do not support pipelines."""
    c = configuration
    found: dict[str, object] = {
        "training.local_batch_size": c.micro_batch if c.pp == 1 else c.global_batch // c.dp,
        "training.global_batch_size": c.global_batch,
        "training.seq_len": problem.model.seq_len,
    }
    if c.pp > 1:
        found |= {"parallelism.pipeline_parallel_microbatch_size": c.micro_batch, "training.disable_cuda_graphs": True}
    return found


def in_tokens(problem: Problem, configuration: Configuration) -> dict[str, object]:
    """Return the batch settings for commits after release 0.3.0."""
    c, tokens = configuration, problem.model.seq_len
    found: dict[str, object] = {
        "training.num_tokens_per_microbatch_per_dp_rank": c.micro_batch * tokens,
        "training.num_tokens_per_train_step": c.global_batch * tokens,
        "training.max_context_length": tokens,
    }
    return found | ({"parallelism.num_pp_microbatches": c.num_microbatches} if c.pp > 1 else {})


def parse(problem: Problem, files: Files) -> Reading:
    """Read the assignments in a recipe's source."""
    given = source.assigned(only(files, ".py"))
    degrees = {name: given.get(f"parallelism.{name}", 1) for name in ("data_parallel_shard_degree", "pipeline_parallel_degree")}
    settings: dict[str, Value] = {
        "tp": given.get("parallelism.tensor_parallel_degree", 1),
        "pp": degrees["pipeline_parallel_degree"],
        "ep": given.get("parallelism.expert_parallel_degree", 1),
        "zero_stage": _stage(degrees["data_parallel_shard_degree"], given.get("parallelism.fsdp_reshard_after_forward", "default")),
        "recompute": _recompute(given.get("activation_checkpoint")),
    }
    settings |= _batch(given, tokens=problem.model.seq_len)
    if settings["pp"] != 1:
        named = {theirs: ours for ours, theirs in SCHEDULES.items()}
        settings["schedule"] = SEARCH if given.get(ORDER_PATH) else named[given.get("parallelism.pipeline_parallel_schedule", "1F1B")]
        if layers := given.get("parallelism.pipeline_parallel_layers_per_stage"):
            settings["model_chunks"] = problem.model.layers // (degrees["pipeline_parallel_degree"] * layers)
    return Reading(settings=settings)


def _batch(given: Mapping[str, Any], *, tokens: int) -> dict[str, Value]:
    """Return the batch sizes that are stated, in sequences or in tokens."""
    piped = given.get("parallelism.pipeline_parallel_degree", 1) != 1
    local = "parallelism.pipeline_parallel_microbatch_size" if piped else "training.local_batch_size"
    found = {"micro_batch": given.get(local), "global_batch": given.get("training.global_batch_size")}
    for name, path in (("micro_batch", "num_tokens_per_microbatch_per_dp_rank"), ("global_batch", "num_tokens_per_train_step")):
        if found[name] is None and (count := given.get(f"training.{path}")) is not None:
            found[name] = count // tokens
    return {name: value for name, value in found.items() if value is not None}


def _stage(shards: int, reshard: str) -> int:
    """Return the ZeRO stage. FSDP2 that keeps the weights after the forward pass is ZeRO 2; one rank shards nothing."""
    return 0 if shards == 1 else 2 if reshard == "never" else 3


def _recompute(expression: str | None) -> str:
    return next((ours for ours, theirs in CHECKPOINTING.items() if theirs and expression and theirs.strip("<>") == expression), "none")
