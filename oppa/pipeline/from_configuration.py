"""Derive the pipeline of a configuration: its shape, its schedule, and the parts of the model in each stage."""

from oppa.pipeline.graph import PipelineShape, Schedule
from oppa.pipeline.registry import SEARCH, build_schedule, folded
from oppa.pipeline.stage_layout import Stages, cut
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model


def shape_of(configuration: Configuration) -> PipelineShape:
    """Return the shape of the configuration's pipeline."""
    pp, chunks, count = configuration.pp, configuration.model_chunks, configuration.num_microbatches
    return PipelineShape(ranks=pp, micro_batches=count, chunks=chunks, folded=pp > 1 and folded(configuration.schedule, chunks))


def searches(configuration: Configuration) -> bool:
    """Return whether the schedule is searched for while the configuration runs."""
    return configuration.pp > 1 and configuration.schedule == SEARCH


def schedule_of(configuration: Configuration) -> Schedule:
    """Return the schedule of the configuration; without a pipeline, it runs one micro-batch after the other."""
    shape = {"ranks": configuration.pp, "micro_batches": configuration.num_microbatches, "chunks": configuration.model_chunks}
    return build_schedule(configuration.schedule if configuration.pp > 1 else "memory-minimal", **shape)


def stages_of(configuration: Configuration, model: Model) -> Stages:
    """Return the parts of each stage; the `balanced` layout balances the operations of the model's parts.

    Raises:
        InputError: the layout cannot be parsed, or does not fit the model and the pipeline.
    """
    return cut(configuration.stage_layout, shape_of(configuration), model.part_flops)
