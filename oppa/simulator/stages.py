"""Cut layers into pipeline stages, and count the weights of each stage.

Frameworks cut evenly or by cost. An even cut puts remaining layers in the middle (ColossalAI's `distribute_layers`). A cut by cost counts
the output projection, too (nanotron's `get_block_compute_costs`, which counts a layer's weights and the head's). A configuration may have
its own stage layout.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from oppa.problem.model import Model


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Describes one pipeline stage of the model."""

    layers: int
    embedding: bool
    head: bool

    def dense_parameter_count(self, model: Model) -> int:
        """Return the number of weights that all data-parallel ranks hold, before tensor parallelism."""
        experts = model.experts * model.expert_parameter_count if model.experts > 1 else 0
        count = self.layers * (model.layer_parameter_count - experts)
        count += model.embedding_parameter_count if self.embedding else 0
        tied_copy = model.vocab * model.hidden if self.head and model.tied and not self.embedding else 0
        return count + tied_copy + (model.head_parameter_count + model.norm_parameter_count if self.head else 0)

    def expert_parameter_count(self, model: Model) -> int:
        """Return the number of weights of all experts of the stage."""
        return self.layers * model.experts * model.expert_parameter_count if model.experts > 1 else 0


def cut(model: Model, stages: int, *, balanced: bool) -> tuple[StageCosts, ...]:
    """Return the stages of a model, in order; `balanced` cuts by cost instead of evenly."""
    counts = _balanced(model, stages) if balanced and stages > 1 else _even(model.layers, stages)
    return tuple(StageCosts(layers=count, embedding=i == 0, head=i == stages - 1) for i, count in enumerate(counts))


def of_parts(model: Model, stages: Sequence[range]) -> tuple[StageCosts, ...]:
    """Return the stages that hold the given parts of the model, as `oppa.pipeline.stage_layout` numbers them."""
    head = model.layers + 1
    return tuple(StageCosts(layers=sum(0 < part < head for part in parts), embedding=0 in parts, head=head in parts) for parts in stages)


def _even(layers: int, stages: int) -> list[int]:
    each, left = divmod(layers, stages)
    first = stages // 2 - left // 2
    return [each + (first <= stage < first + left) for stage in range(stages)]


def _balanced(model: Model, stages: int) -> list[int]:
    """Return the number of layers of each stage.

    Each stage takes layers until the cost of all layers so far exceeds its share. The head is the last block.
    """
    layer = 2 * model.hidden * (model.hidden + model.kv_width) + (3 if model.gated else 2) * model.hidden * model.ffn
    costs = [*[layer] * model.layers, model.hidden * model.vocab]
    total, counts, stage = sum(costs), [0] * stages, 0
    for cost in itertools.islice(itertools.accumulate(costs), model.layers):
        while stage < stages - 1 and cost > total * (stage + 1) / stages:
            stage += 1
        counts[stage] += 1
    return counts
