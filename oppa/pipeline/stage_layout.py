"""Assign the parts of a model to the stages of a pipeline (FlexTrain's No-Op layers, section 4.2; the notation is Megatron-LM's).

A model is a chain of parts, a letter each: E is the embedding, t a layer, m a prediction head's layer. L is the logits with their loss,
or those of a slice of the vocabulary. A stage holds consecutive parts; the first stage holds the first part, the last stage the last. A
stage in between may be empty, and then passes its input on.

FlexTrain adds layers that do nothing until all stages hold equally many, and moves embedding and losses to their places (figures 4 and
5). Stages here may hold different numbers of parts. The pipelines are the same, without positions to renumber in a checkpoint.

    even        layers are shared evenly; with more stages than layers, loss and embedding get stages of their own, then some are empty
    balanced    costs are shared over ranks as evenly as the search finds
    E|t*3|tL    parts stage by stage: E before the layers, t a layer, L after them; t*3 is ttt, (t|)*3 is t|t|t|
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence

from oppa.errors import InputError
from oppa.pipeline.graph import PipelineShape
from oppa.problem.stage_text import expanded, stage_count

EVEN, BALANCED = "even", "balanced"
LAYERS = "tm"
"""Letters of the parts that count as layers, which the `even` layout shares evenly."""
HINT = f"write `{EVEN}`, `{BALANCED}`, or the parts of each stage such as `Et|tt|tL`"

Stages = tuple[range, ...]
"""Numbers of the parts of each stage."""


def plain(layers: int, losses: int = 1) -> str:
    """Return the chain of a model without prediction heads, whose logits are computed in `losses` slices of the vocabulary."""
    return "E" + "t" * layers + "L" * losses


def cut(layout: str, shape: PipelineShape, costs: Sequence[float], chain: str = "") -> Stages:
    """Return the parts of each stage in a layout.

    Args:
        costs: Cost of each part, in any unit, one for each letter of the chain.
        chain: Letters of the model's parts; a plain chain by default.

    Raises:
        InputError: the layout cannot be parsed, does not fit the model and the pipeline, or leaves a rank without parts.
    """
    chain = chain or plain(len(costs) - 2)
    assert len(chain) == len(costs)
    layers = sum(letter in LAYERS for letter in chain)
    if layout == EVEN:
        stages = evenly(chain, shape.stages)
    else:
        stages = balanced(costs, shape) if layout == BALANCED else _written(layout, shape.stages, chain)
    busy = {shape.rank_of(stage) for stage, parts in enumerate(stages) if parts}
    if idle := sorted(set(range(shape.ranks)) - busy):
        raise InputError(
            f"{layers} layers in {shape.stages} stages leave rank {idle[0]} of {shape.ranks} without a part",
            hint="use fewer ranks, or fewer model chunks",
        )
    return stages


def evenly(chain: str, stages: int) -> Stages:
    """Share layers and heads evenly; stages differ by at most one, and a loss stays with the layer that it follows.

    With more stages than layers, the last losses get a stage of their own, then the embedding, then each slice of a loss. Further stages
    are empty.
    """
    layers = [number for number, letter in enumerate(chain) if letter in LAYERS]
    if stages <= len(layers):
        begins = [layers[len(layers) * stage // stages] for stage in range(1, stages)]
    else:
        after_layers = layers[-1] + 1
        losses = [number for number in range(2, len(chain)) if number not in layers and number != after_layers]
        begins = sorted([*layers[1:], *[after_layers, layers[0], *losses][: stages - len(layers)]])
        begins += [begins[-1]] * (stages - 1 - len(begins))
    return _between([0, *begins, len(chain)])


def balanced(costs: Sequence[float], shape: PipelineShape) -> Stages:
    """Share costs so that the largest cost of a rank is low, then the next largest, then those of the stages.

    The largest cost is minimal if each rank has one stage. With several stages per rank, single parts are moved between stages as long
    as that improves the result.
    """
    return _balanced(tuple(costs), dataclasses.replace(shape, micro_batches=1))  # the cut does not depend on micro-batches: one cache entry


@functools.lru_cache(256)
def _balanced(costs: tuple[float, ...], shape: PipelineShape) -> Stages:
    sums = [0.0, *itertools.accumulate(costs)]

    def badness(cuts: Sequence[int]) -> tuple[list[float], list[float]]:
        of_stages = [sums[stop] - sums[start] for start, stop in itertools.pairwise(cuts)]
        return sorted(shape.sum_by_rank(of_stages), reverse=True), sorted(of_stages, reverse=True)

    cuts = _least(sums, shape.stages)
    while shape.chunks > 1 and badness(better := min(_moved(cuts), key=badness, default=cuts)) < badness(cuts):
        cuts = better
    return _between(cuts)


def written(stages: Sequence[range], chain: str = "") -> str:
    """Return the text of a layout with repetitions, such as `Et*3|t*4|ttL`; parsing inverts it."""
    return re.sub(r"([a-zA-Z])\1{2,}", lambda run: f"{run[1]}*{len(run[0])}", letters(stages, chain))


def letters(stages: Sequence[range], chain: str = "") -> str:
    """Return the text of a layout without repetitions, such as `Ettt|tttt|ttL`."""
    chain = chain or plain(stages[-1].stop - 2)
    return "|".join(chain[parts.start : parts.stop] for parts in stages)


def recognised(text: str, ranks: int, costs: Sequence[float], chain: str = "") -> tuple[str, int]:
    """Return the layout `even` or `balanced` if a text equals it, else the text, and the stages of each rank.

    Raises:
        InputError: `cut` refuses the text.
    """
    shape = PipelineShape(ranks=ranks, micro_batches=1, chunks=max(1, stage_count(text) // ranks))
    stages = cut(text, shape, costs, chain)
    names = [name for name in (EVEN, BALANCED) if cut(name, shape, costs, chain) == stages]
    return (*names, written(stages, chain))[0], shape.chunks


def _written(text: str, stages: int, chain: str) -> Stages:
    found = expanded(text).split("|")
    hint = f"{HINT}; this job has {stages} stages of {_named(chain)}"
    if "".join(found) != chain:
        raise InputError(f"`stage_layout = {text}` does not contain all parts of the model in their order", hint=hint)
    if len(found) != stages or not found[0] or not found[-1]:
        raise InputError(f"`stage_layout = {text}` has {len(found)} stages, not {stages}, the first with E and the last with L", hint=hint)
    return _between([0, *itertools.accumulate(map(len, found))])


def _named(chain: str) -> str:
    """Describe a chain in words: `E, 8 t and L`."""
    runs = [(letter, len(list(each))) for letter, each in itertools.groupby(chain)]
    *before, last = [f"{count} {letter}" if count > 1 or letter == "t" else letter for letter, count in runs]
    return f"{', '.join(before)} and {last}"


def _least(sums: Sequence[float], stages: int) -> list[int]:
    """Return cuts with the least maximum over stages, and among those a small variance; no stage is empty if there are enough parts.

    Args:
        sums: Cumulative costs of the parts, from 0 on, shape (parts + 1,).
    """
    parts = len(sums) - 1
    least = int(stages <= parts)
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {stop: (sums[stop], sums[stop] ** 2, (0, stop)) for stop in range(1, parts)}
    for _ in range(2, stages):
        best = {
            stop: min(_longer(best[start], stop, sums) for start in best if start + least <= stop)
            for stop in range(min(best) + least, parts)
        }
    return list(min(_longer(before, parts, sums) for before in best.values())[2]) if stages > 1 else [0, parts]


def _longer(before: tuple[float, float, tuple[int, ...]], stop: int, sums: Sequence[float]) -> tuple[float, float, tuple[int, ...]]:
    """Add one stage that ends at `stop`; returns the maximum, the sum of squares, and the cuts."""
    most, squares, cuts = before
    cost = sums[stop] - sums[cuts[-1]]
    return max(most, cost), squares + cost**2, (*cuts, stop)


def _moved(cuts: Sequence[int]) -> Iterator[list[int]]:
    """Yield all cuts with one part moved from one stage to another and those between shifted; the first and last stage keep a part."""
    for start, stop in itertools.combinations(range(1, len(cuts)), 2):
        for shift in (-1, 1):
            moved = [*cuts[:start], *(cut + shift for cut in cuts[start:stop]), *cuts[stop:]]
            if moved[start] >= max(moved[start - 1], 1) and moved[stop - 1] <= min(moved[stop], cuts[-1] - 1):
                yield moved


def _between(cuts: Sequence[int]) -> Stages:
    return tuple(range(start, stop) for start, stop in itertools.pairwise(cuts))
