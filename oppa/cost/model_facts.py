"""Convert a model's dimensions, and the trace of its module, into the values of `ModelFacts`."""

import dataclasses
from collections.abc import Mapping

from oppa.cost.beliefs import keeps_traced_activations
from oppa.problem.model import Model
from oppa.problem.problem import Problem

LOG_SOFTMAX_BYTES = 4
"""Bytes that a loss keeps of each logit: its log-softmax, in fp32 in every precision."""
COPY_BYTES = 2
"""Bytes of a logit in the format of which `logit_copies` counts copies, fp32 ones as two."""
FULL = ("fp32", "tf32")
"""Precisions whose numbers have 4 bytes."""


def model_facts(problem: Problem) -> dict[str, float]:
    """Return the values for the model of a job: those of its dimensions, or of its trace where it counted something."""
    return shape_facts(problem.model) | _traced_facts(problem)


def shape_facts(model: Model) -> dict[str, float]:
    """Return the values of `ModelFacts` for one model; where layers differ, those of an average layer."""
    sparse = (model.layers - model.dense_layers) / model.layers if model.experts > 1 else 0.0
    routed = sparse * model.experts_per_token * model.expert_parameter_count if model.experts > 1 else 0.0
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "query_width": (model.query_width + model.output_width) / 2,
        "kv_width": (model.kv_width + model.value_width) / 2,
        "latent_width": model.latent_width,
        "ffn": model.active_ffn,
        "gated": model.gated,
        "vocab": model.vocab,
        "seq_len": model.seq_len,
        "layer_parameters": model.layers_parameter_count / model.layers,
        "expert_parameters": sparse * model.experts * model.expert_parameter_count if model.experts > 1 else 0,
        "layer_matmul_parameters": model.matmul_parameters_per_token,
        "expert_matmul_parameters": routed,
        "experts": model.experts if model.experts > 1 else 0,
        "routed": sparse * model.experts_per_token if model.experts > 1 else 0,
        "attended": model.attended,
        "embedding_parameters": model.embedding_parameter_count,
        "head_parameters": model.vocab * model.hidden,
        "tied": model.tied,
        "logit_elements": model.vocab,
        "activation_elements": 0,
    }


def _traced_facts(problem: Problem) -> dict[str, float]:
    """Return the values that the trace of the job's own module replaces; those of `shape_facts` remain where it counted nothing."""
    trace, model = problem.trace, problem.model
    if trace is None:
        return {}
    element_bytes = 4 if problem.training.precision in FULL else 2
    own = keeps_traced_activations(problem)
    computes_alike = own or model.experts == 1  # other frameworks compute a token's own experts, whatever the module does
    windowed = model.attended / dataclasses.replace(model, sliding_window=0).attended  # a trace attends to all tokens
    facts = {
        "layer_parameters": trace.layer_parameters,
        "layer_matmul_parameters": trace.layer_flops / 2 if computes_alike else 0,
        "attended": windowed * trace.attention_flops / (2 * (model.query_width + model.output_width)),
        "embedding_parameters": trace.embedding_parameters,
        "head_parameters": trace.head_parameters,
        "logit_elements": trace.head_activation_bytes / LOG_SOFTMAX_BYTES * COPY_BYTES / element_bytes if own else 0,
        "activation_elements": trace.activation_bytes / element_bytes if own else 0,
    }
    found = {name: value for name, value in facts.items() if value > 0} | {"tied": trace.tied}
    stated = shape_facts(model)
    return found | (_traced_experts(found, stated) if stated["expert_parameters"] else {})


def _traced_experts(traced: Mapping[str, float], stated: Mapping[str, float]) -> dict[str, float]:
    """Return the values of experts, which a trace does not count apart.

    They are scaled down if the traced layers are too small for all stated experts, as if only some layers had any.
    """
    others = stated["layer_parameters"] - stated["expert_parameters"]
    layer = traced.get("layer_parameters", stated["layer_parameters"])
    share = min(1.0, max(0.0, layer - others) / stated["expert_parameters"])
    scaled = {name: share * stated[name] for name in ("expert_parameters", "expert_matmul_parameters", "routed")}
    dense = stated["layer_matmul_parameters"] - stated["expert_matmul_parameters"]
    products = traced.get("layer_matmul_parameters", dense + scaled["expert_matmul_parameters"])
    return scaled | {"layer_matmul_parameters": max(products, scaled["expert_matmul_parameters"])}
