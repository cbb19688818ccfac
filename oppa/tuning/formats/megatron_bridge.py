"""Megatron-Bridge: `pretrain.py` takes one of its recipes and sets the values that oppa chose.

Names: megatron/bridge/training/config.py of megatron-bridge 0.3.1, and ModelParallelConfig, TransformerConfig and
DistributedDataParallelConfig of megatron-core 0.16, which the tests check.
"""

from oppa.pipeline.from_configuration import stages_of
from oppa.pipeline.stage_layout import EVEN, letters
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.space import Value
from oppa.tuning.formats import launch, megatron, source
from oppa.tuning.formats.format import Files, Reading, elements, is_knob, mebibytes, only

NAME = "Megatron-Bridge"
PROGRAM = "pretrain.py"
FILES = (PROGRAM, launch.SCRIPT)
EXPRESSES = megatron.EXPRESSES

_NAMES = {
    "model.tensor_model_parallel_size": "tp",
    "model.pipeline_model_parallel_size": "pp",
    "model.expert_model_parallel_size": "ep",
    "train.micro_batch_size": "micro_batch",
    "train.global_batch_size": "global_batch",
    "ddp.overlap_grad_reduce": "overlap_zero_comm",
    "ddp.overlap_param_gather": "overlap_zero_allgather",
}
_SOURCE = '''\
"""Made by oppa: {name} with {id}."""

import os

from megatron.bridge import recipes
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def parallel(config):
    """The configuration of a recipe, as it runs fastest."""
{assignments}
    return config


if __name__ == "__main__":
    pretrain(config=parallel(getattr(recipes, os.environ["RECIPE"])()), forward_step_func=forward_step)
'''


def export(problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files; raises InputError where Megatron-LM's export does."""
    megatron.check(problem, configuration, target=NAME)
    text = _SOURCE.format(name=problem.name, id=configuration.id, assignments=source.assignments(values(problem, configuration)))
    body = (
        f': "${{RECIPE:?a recipe, such as llama32_1b_pretrain_config}}"\nexport RECIPE\nexec {launch.torchrun(problem)} "$here/{PROGRAM}"'
    )
    usage = "       with RECIPE=, a function of megatron.bridge.recipes"
    return {PROGRAM: text, launch.SCRIPT: launch.script(problem, configuration, usage=usage, body=body)}


def values(problem: Problem, configuration: Configuration) -> dict[str, object]:
    """Return the values to set, by path, also for every setting that a recipe may have changed."""
    c, interleaved = configuration, configuration.schedule == "interleaved"
    found: dict[str, object] = {path: getattr(c, name) for path, name in _NAMES.items()}
    found |= {
        "model.seq_length": problem.model.seq_len,
        "dataset.seq_length": problem.model.seq_len,
        "model.virtual_pipeline_model_parallel_size": c.model_chunks if interleaved else None,
        "model.overlap_p2p_comm": c.overlap_p2p if interleaved else False,
        "model.batch_p2p_comm": not (c.overlap_p2p and interleaved),  # the two exclude each other
        "model.context_parallel_size": 1,
        "model.pipeline_model_parallel_layout": None if c.stage_layout == EVEN else letters(stages_of(c, problem.model)),
        "model.sequence_parallel": megatron.needs_sequence_parallel(problem, c),
        "model.recompute_granularity": None if c.recompute == "none" else c.recompute,
        "model.recompute_method": "uniform" if c.recompute == "full" else None,
        "model.recompute_num_layers": 1 if c.recompute == "full" else None,
        "ddp.use_distributed_optimizer": bool(c.zero_stage),
        "optimizer.use_distributed_optimizer": bool(c.zero_stage),
        "comm_overlap": None,  # it would set the overlaps of `ddp` by rules of its own
    }
    if is_knob(problem, "dp_bucket_mb") and c.overlap_zero_comm:
        found["ddp.bucket_size"] = elements(c.dp_bucket_mb, size=megatron.GRADIENT_BYTES)
    return found


def parse(problem: Problem, files: Files) -> Reading:
    """Read the assignments in a program's source."""
    given = source.assigned(only(files, ".py"))
    settings: dict[str, Value] = {name: given[path] for path, name in _NAMES.items() if path in given}
    settings["zero_stage"] = int(given.get("ddp.use_distributed_optimizer", False))
    if layout := given.get("model.pipeline_model_parallel_layout"):
        settings |= megatron.layout_of(problem, layout, int(settings.get("pp", 1)))
    if chunks := given.get("model.virtual_pipeline_model_parallel_size"):
        settings |= {"schedule": "interleaved", "model_chunks": chunks, "overlap_p2p": given.get("model.overlap_p2p_comm", False)}
    settings["recompute"] = given.get("model.recompute_granularity") or "none"
    if "ddp.bucket_size" in given:
        settings["dp_bucket_mb"] = mebibytes(given["ddp.bucket_size"], size=megatron.GRADIENT_BYTES)
    return Reading(settings=settings)
