"""The stages have every layer and every weight once."""

import pytest

from oppa.problem.presets import PRESETS
from oppa.simulator.stages import cut

MODELS = [PRESETS[name] for name in ("llama-2-7b", "bert-base", "qwen2-1.5b", "moe-32e", "vit-base")]


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_layer_is_in_one_stage(model, balanced):
    for stages in (1, 2, 3, 4, 8, model.layers):
        pieces = cut(model, stages, balanced=balanced)
        assert len(pieces) == stages and sum(piece.layers for piece in pieces) == model.layers
        assert [piece.embedding for piece in pieces] == [True] + [False] * (stages - 1)
        assert [piece.head for piece in pieces] == [False] * (stages - 1) + [True]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_weight_is_in_one_stage_but_a_tied_embedding_in_two(model):
    for stages in (1, 2, 4):
        pieces = cut(model, stages, balanced=False)
        total = sum(piece.dense_parameter_count(model) + piece.expert_parameter_count(model) for piece in pieces)
        twice = model.vocab * model.hidden if model.tied and stages > 1 else 0
        assert total == model.parameter_count + twice


def test_what_is_left_over_goes_to_the_middle():
    """ColossalAI's `distribute_layers`: 14 layers on 4 stages."""
    counts = [piece.layers for piece in cut(PRESETS["bert-base"], 5, balanced=False)]
    assert counts == [2, 3, 3, 2, 2] and sum(counts) == 12


def test_a_balanced_cut_leaves_the_last_stage_its_head():
    """The head of Llama 3.2 1B costs as much as four layers, so with four stages the last has hardly any."""
    counts = [piece.layers for piece in cut(PRESETS["llama-3.2-1b"], 4, balanced=True)]
    assert counts[-1] < counts[0] and max(counts) - min(counts) >= 3
