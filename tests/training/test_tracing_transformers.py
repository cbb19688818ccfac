"""A traced model of Transformers has the counts of its own modules."""

import dataclasses
import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.training.tracing.recorder import TracedKernels
from oppa.training.tracing.trace import traced
from tests.jobs import problem_of
from tests.sampling import nightly
from tests.training.families import ROOT

ABSENT = importlib.util.find_spec("transformers") is None
needs_transformers = pytest.mark.skipif(ABSENT, reason="NOT TESTED on models of Transformers: the package is not installed")
SMALL = {"hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 4, "vocab_size": 1000, "intermediate_size": 512}
GROUPED = SMALL | {"num_key_value_heads": 4}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED,
    "gpt2": {"n_embd": 256, "n_head": 8, "n_layer": 4, "vocab_size": 1000, "n_positions": 128},
    "qwen3": GROUPED | {"head_dim": 64},
    "mixtral": GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
}
JOB = """
[model]
config = "config.json"
seq_len = 128

[batch]
global_batch = 8

[cluster]
devices_per_host = 8
device = "H100"

[training]
precision = "bf16"
"""


@pytest.fixture(scope="module", params=["llama", "gpt2", "mixtral", *nightly("mistral", "qwen3")])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """Return the problem of one of the configurations, traced in this process, as each of its own imports Transformers."""
    from transformers import AutoConfig

    from oppa.training.tracing.transformers_model import trace_transformers

    folder = tmp_path_factory.mktemp(request.param)
    AutoConfig.for_model(request.param, **CONFIGURATIONS[request.param]).save_pretrained(folder)
    problem = problem_of(JOB, folder)
    with TracedKernels(fused_norms=True):
        return dataclasses.replace(problem, trace=trace_transformers(problem.model, problem.training.precision))


@needs_transformers
@pytest.mark.slow
def test_counts_are_those_of_the_dimensions_and_activations_are_more(found: Problem) -> None:
    trace, model = found.trace, found.model
    assert trace is not None
    assert trace.tied == model.tied
    assert trace.layer_parameters == pytest.approx(model.layer_parameter_count, rel=1e-3)  # Qwen3 has norms of queries and keys
    assert trace.parameter_count(model.layers) == pytest.approx(model.parameter_count, rel=1e-3)
    assert trace.layer_flops + trace.attention_flops == pytest.approx(model.layer_flops_per_sequence / model.seq_len, rel=1e-3)
    by_dimensions = _elements(model)
    assert 1 < trace.activation_bytes / 2 / by_dimensions < 2.5  # norms in fp32, and operations that are not fused


def _elements(model: Model) -> float:
    width = (4 if model.gated else 2) * model.active_ffn
    return (
        4 * model.hidden
        + 2 * model.query_width
        + 2 * model.kv_width
        + width
        + (2 * model.hidden * model.experts_per_token if model.experts > 1 else 0)
    )


@needs_transformers
@pytest.mark.slow
def test_an_architecture_that_transformers_lacks_falls_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"model_type": "mystery"}))
    problem = problem_of(JOB, tmp_path)
    with caplog.at_level(logging.WARNING, "oppa"):
        assert traced(problem) is problem
    assert "Transformers has no architecture `mystery`; update it" in caplog.text


@pytest.mark.slow
def test_without_the_package_the_dimensions_apply_and_the_hint_says_how_to_install_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('absent')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"model_type": "llama"}))
    problem = problem_of(JOB, tmp_path)
    with caplog.at_level(logging.WARNING, "oppa"):
        assert traced(problem) is problem
    assert "the package `transformers` is not installed; run `pip install transformers`" in caplog.text
