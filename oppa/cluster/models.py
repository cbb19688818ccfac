"""The three models that FlexTrain scales (its table 2), and their scale tables by oppa's own predictor.

Published: parameters, layers, prediction heads, batch, sequence length, degrees, and initial GPUs. Assumed in round numbers: hidden sizes,
a vocabulary of 102,400, and the speed of GPU and network; only ratios of times matter. Every head computes the vocabulary's logits again.

How far the number of stages alone can scale depends on the smallest part that a stage can hold (`Division`). The longest part limits the
speed of a pipeline.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Sequence

from oppa.cluster.elastic import Elasticity
from oppa.cluster.job import ScaleTable
from oppa.pipeline.from_configuration import schedule_of
from oppa.pipeline.profile import MessageTime, Part, PipelineProfile
from oppa.pipeline.scaling import Entry, ScaleCandidate, ScaledJob, candidate, candidates, scale_table
from oppa.pipeline.stage_layout import BALANCED, cut
from oppa.problem.configuration import Configuration

FLOPS = 400e12
"""Training throughput of a GPU, in operations per second."""
NETWORK = MessageTime(latency_s=20e-6, byte_s=1 / 40e9)
VOCAB = 102_400
ELEMENT_BYTES = 2
STAGE = 8
"""GPUs of a stage, which split each sequence (context parallelism): one node."""
STEPS = 8
"""Consecutive sizes differ by the initial GPUs divided by this, and by at least a node."""
SCHEDULES = ("1f1b", "interleaved")


class Division(enum.Enum):
    """Names the parts of a prediction head, and of the model's own logits and loss, that can be on separate stages."""

    WHOLE = "whole"
    """No division: a head's embedding, layer, logits and loss are one part (FlexTrain's figures 4a and 4b)."""
    LOSSES = "losses"
    """Logits with their loss are a part of their own (figures 4c and 5)."""
    SLICES = "slices"
    """Hypothetical: the vocabulary is divided into slices, none longer than a layer, which pass the loss on from one to the next.

    Neither FlexTrain nor oppa's trainer divides a loss in this way. Without it, stages alone scale Small to 80 GPUs; table 2 has 128.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """Describes one model of table 2."""

    name: str
    active: float
    """Parameters that are active for each token."""
    parameters: float
    layers: int
    heads: int = 2
    """Prediction heads; all three models have two."""
    batch: int
    sequence: int
    dp: int
    pp: int
    hidden: int
    save_s: float
    """Assumed seconds to write a checkpoint; the paper's figure 10 has no numbers in its text."""
    start_s: float
    """Assumed seconds to start. Most of them create communication groups, and they grow with the number of GPUs."""

    @property
    def gpus(self) -> int:
        """Return the initial number of GPUs."""
        return self.dp * self.pp * STAGE


SMALL = PublishedModel(
    name="small", active=1e9, parameters=7e9, layers=15, batch=1024, sequence=8_192, dp=1, pp=4, hidden=1_536, save_s=20, start_s=60
)
MEDIUM = PublishedModel(
    name="medium", active=6e9, parameters=60e9, layers=29, batch=256, sequence=32_768, dp=2, pp=4, hidden=4_096, save_s=30, start_s=90
)
LARGE = PublishedModel(
    name="large", active=30e9, parameters=600e9, layers=61, batch=768, sequence=8_192, dp=4, pp=8, hidden=7_168, save_s=60, start_s=180
)
MODELS = (SMALL, MEDIUM, LARGE)
MOST_SCALE = 4


@functools.cache
def entries(model: PublishedModel, *, replicas: bool, division: Division = Division.SLICES) -> tuple[Entry, ...]:
    """Return the fastest candidate on each number of GPUs, up to `MOST_SCALE` times the initial one, with the reason if it is left out.

    Args:
        replicas: True if the number of replicas may change, too. If False, only stages change, and training stays the same.
    """
    job = job_of(model, division)
    allowed, sizes = None if replicas else [model.dp], range(model.gpus, MOST_SCALE * model.gpus + 1, max(STAGE, model.gpus // STEPS))
    ways = {gpus: list(candidates(job, gpus, replicas=allowed, schedules=SCHEDULES)) for gpus in sizes}
    return tuple(scale_table(job, ways, (model.gpus, _as_run(job, model)), ways.keys()))


def table_of(model: PublishedModel, *, replicas: bool, division: Division = Division.SLICES) -> ScaleTable:
    """Return the scale table of the model: the entries that are not left out."""
    found = entries(model, replicas=replicas, division=division)
    return ScaleTable.of(model.gpus, [(entry.devices, entry.speedup) for entry in found if not entry.left_out])


def elasticity(*, replicas: bool, models: Sequence[PublishedModel] = MODELS) -> dict[int, Elasticity]:
    """Return the elasticity of jobs like each model, with the assumed cost of a change, by their initial number of GPUs."""
    return {
        model.gpus: Elasticity(table=table_of(model, replicas=replicas), save_s=model.save_s, start_s=model.start_s) for model in models
    }


def _as_run(job: ScaledJob, model: PublishedModel) -> ScaleCandidate:
    configuration = Configuration(dp=model.dp, pp=model.pp, global_batch=model.batch, micro_batch=1, stage_layout=BALANCED)
    order = schedule_of(configuration)
    stages = cut(BALANCED, order.shape, job.profile.costs, job.profile.chain)
    return candidate(job, order, dp=model.dp, schedule=configuration.schedule, stage_layout=BALANCED, stages=stages)


def job_of(model: PublishedModel, division: Division) -> ScaledJob:
    """Return a job with a synthetic profile of the model: the time of each part is its operations over the throughput of a stage."""
    logits = VOCAB * model.hidden
    blocks = model.layers + model.heads
    layer = (model.active - 2 * logits) / blocks
    each_bytes = ELEMENT_BYTES * (model.parameters - 2 * logits) / blocks / STAGE
    end_bytes = ELEMENT_BYTES * logits / STAGE

    def part(parameters: float, weight_bytes: float) -> Part:
        forward_s = 2 * parameters * model.sequence / (FLOPS * STAGE)
        return Part(forward_s=forward_s, backward_s=2 * forward_s, weight_bytes=round(weight_bytes))

    layers, joined = [part(layer, each_bytes)] * model.layers, layer + 2 * model.hidden**2
    if division is Division.WHOLE:
        letters = "E" + "t" * model.layers + "m" * model.heads + "L"
        ending = [*[part(joined + logits, each_bytes)] * model.heads, part(logits, end_bytes)]
    else:
        slices = math.ceil(logits / layer) if division is Division.SLICES else 1
        loss = [part(logits / slices, end_bytes / slices)] * slices  # each stage may hold a loss, so each has a copy of the projection
        letters = "E" + "t" * model.layers + "L" * slices + ("m" + "L" * slices) * model.heads
        ending = [*loss, *[part(joined, each_bytes), *loss] * model.heads]
    profile = PipelineProfile(
        parts=(part(0.0, end_bytes), *layers, *ending),
        letters=letters,
        micro_batch=1,
        pp=model.pp,
        dp=model.dp,
        zero_stage=1,
        step_s=0.0,
        passes_s=0.0,
        boundary_bytes=ELEMENT_BYTES * model.sequence * model.hidden // STAGE,
        point_to_point=NETWORK,
        all_reduce=NETWORK,
    )
    return ScaledJob(profile=profile, global_batch=model.batch, tp=STAGE, zero_stage=1)
