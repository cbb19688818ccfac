"""The pipeline of a configuration: its shape, the order of its passes, and which parts of the model each stage has."""

from oppa.pipeline.graph import Order, Shape
from oppa.pipeline.orders import SEARCH, folded, order
from oppa.pipeline.stage_layout import Stages, cut
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model


def shape_of(configuration: Configuration) -> Shape:
    """Of its stages and micro-batches."""
    pp, chunks, count = configuration.pp, configuration.model_chunks, configuration.num_microbatches
    return Shape(ranks=pp, micro_batches=count, chunks=chunks, folded=pp > 1 and folded(configuration.schedule, chunks))


def searches(configuration: Configuration) -> bool:
    """Whether the order of its passes is to be searched for while it runs."""
    return configuration.pp > 1 and configuration.schedule == SEARCH


def order_of(configuration: Configuration) -> Order:
    """Of the passes of its schedule; where there is no pipeline, one micro-batch after the other."""
    shape = {"ranks": configuration.pp, "micro_batches": configuration.num_microbatches, "chunks": configuration.model_chunks}
    return order(configuration.schedule if configuration.pp > 1 else "memory-minimal", **shape)


def stages_of(configuration: Configuration, model: Model) -> Stages:
    """The parts of each stage; costs that are to be balanced are the model's operations.

    Raises:
        InputError: the layout cannot be read, or does not fit.
    """
    return cut(configuration.stage_layout, shape_of(configuration), model.part_flops)
