"""How layers are cut into pipeline stages, and what each rank holds of the model.

Frameworks cut either evenly, the layers left over in the middle (ColossalAI's `distribute_layers`), or by cost, with the output projection
counted (nanotron's `get_block_compute_costs`, which counts a layer's weights and the head's). A configuration may have a layout of its own.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from oppa.problem.model import Model


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A piece of the model."""

    layers: int
    embedding: bool
    head: bool

    def dense_parameter_count(self, model: Model) -> int:
        """Weights that all data-parallel ranks hold, before tensor parallelism."""
        experts = model.experts * model.expert_parameter_count if model.experts > 1 else 0
        count = self.layers * (model.layer_parameter_count - experts)
        count += model.embedding_parameter_count if self.embedding else 0
        tied_copy = model.vocab * model.hidden if self.head and model.tied and not self.embedding else 0
        return count + tied_copy + (model.head_parameter_count + model.norm_parameter_count if self.head else 0)

    def expert_parameter_count(self, model: Model) -> int:
        """Weights of all its experts."""
        return self.layers * model.experts * model.expert_parameter_count if model.experts > 1 else 0


def cut(model: Model, stages: int, *, balanced: bool) -> tuple[Stage, ...]:
    """The stages of a model, in order."""
    counts = _balanced(model, stages) if balanced and stages > 1 else _even(model.layers, stages)
    return tuple(Stage(layers=count, embedding=i == 0, head=i == stages - 1) for i, count in enumerate(counts))


def of_parts(model: Model, stages: Sequence[range]) -> tuple[Stage, ...]:
    """Stages by their parts, as `oppa.pipeline.stage_layout` numbers them."""
    behind = model.layers + 1
    return tuple(Stage(layers=sum(0 < part < behind for part in parts), embedding=0 in parts, head=behind in parts) for parts in stages)


def _even(layers: int, stages: int) -> list[int]:
    each, left = divmod(layers, stages)
    first = stages // 2 - left // 2
    return [each + (first <= stage < first + left) for stage in range(stages)]


def _balanced(model: Model, stages: int) -> list[int]:
    """Each stage takes layers until the cost of all so far passes its share; the head is the last block."""
    layer = 2 * model.hidden * (model.hidden + model.kv_width) + (3 if model.gated else 2) * model.hidden * model.ffn
    costs = [*[layer] * model.layers, model.hidden * model.vocab]
    total, counts, stage = sum(costs), [0] * stages, 0
    for cost in itertools.islice(itertools.accumulate(costs), model.layers):
        while stage < stages - 1 and cost > total * (stage + 1) / stages:
            stage += 1
        counts[stage] += 1
    return counts
