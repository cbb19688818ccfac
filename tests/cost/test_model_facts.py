"""A trace replaces the counts of dimensions, and experts fit in the layers that it counted."""

import dataclasses

import numpy as np
import pytest

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.facts import workload_of
from oppa.cost.model_facts import model_facts, shape_facts
from oppa.cost.prediction import COLUMNS, predict
from oppa.problem.problem import Problem
from oppa.problem.trace import ModelTrace

MIXTURE = "mixtral-8x7b"
OF_EXPERTS = ("expert_parameters", "expert_matmul_parameters", "routed")


def traced(problem: Problem, *, layer: float, products: float = 1.0) -> Problem:
    """Return a problem whose traced layers have this share of the parameters and of the products that its dimensions state."""
    facts = shape_facts(problem.model)
    counts = {
        "layer_parameters": layer * facts["layer_parameters"],
        "embedding_parameters": facts["embedding_parameters"],
        "head_parameters": facts["head_parameters"],
        "activation_bytes": 1e5,
        "head_activation_bytes": 1e5,
        "layer_flops": 2 * products * facts["layer_matmul_parameters"],
        "attention_flops": 1e6,
    }
    return dataclasses.replace(problem, trace=ModelTrace(subject="a mixture", tied=False, **counts))


@pytest.mark.parametrize("layer", [0.001, 0.5, 0.9])
@pytest.mark.parametrize("space", ["megatron", "torchtitan"])
def test_layers_that_only_partly_have_experts_need_memory(framework_problem, space, layer) -> None:
    problem = traced(framework_problem(space, model=MIXTURE), layer=layer, products=layer)
    predicted = predict(workload_of(problem, problem.candidates()), *beliefs_of_job(problem))
    assert np.isfinite(predicted[list(COLUMNS)].astype(float)).all(axis=None)
    assert (predicted["predicted_memory_low_bytes"] > 0).all()


@pytest.mark.parametrize("layer", [0.5, 1.0, 1.1])
def test_experts_are_as_many_as_the_traced_layers_have_room_for(framework_problem, layer) -> None:
    problem = traced(framework_problem("torchtitan", model=MIXTURE), layer=layer)
    stated, found = shape_facts(problem.model), model_facts(problem)
    others = stated["layer_parameters"] - stated["expert_parameters"]
    room = min(stated["expert_parameters"], layer * stated["layer_parameters"] - others)
    assert [found[name] / stated[name] for name in OF_EXPERTS] == pytest.approx([room / stated["expert_parameters"]] * 3)


def test_the_attention_of_a_trace_which_has_no_mask_is_that_of_the_windows(framework_problem) -> None:
    whole = traced(framework_problem("torchtitan", model=MIXTURE), layer=1)
    model = dataclasses.replace(whole.model, sliding_window=64, full_attention_layers=8)
    slides = dataclasses.replace(whole, stated_model=model)
    share = model.attended / whole.model.attended
    assert model_facts(slides)["attended"] == pytest.approx(share * model_facts(whole)["attended"]) and share < 0.5


@pytest.mark.parametrize(("space", "counted"), [("torchtitan", 8), ("megatron", 1)])
def test_a_framework_with_a_model_of_its_own_computes_a_token_s_own_experts_alone(framework_problem, space, counted) -> None:
    """A module may compute all experts for each token, as some of Transformers do."""
    problem = traced(framework_problem(space, model=MIXTURE), layer=1, products=8)
    products = shape_facts(problem.model)["layer_matmul_parameters"]
    assert model_facts(problem)["layer_matmul_parameters"] == pytest.approx(counted * products)
