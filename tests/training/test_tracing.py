"""A traced module has the counts that its dimensions state, or its own ones, and what cannot be traced falls back to the dimensions."""

import dataclasses
import logging
from pathlib import Path

import pytest

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.facts import workload_of
from oppa.cost.prediction import predict
from oppa.cost.stages import activation_elements
from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.problem.trace import ModelTrace
from oppa.training.tracing.recorder import TracedKernels
from oppa.training.tracing.trace import traced
from oppa.training.tracing.user_parts import trace_user_module
from tests.jobs import problem_of
from tests.sampling import nightly
from tests.training.conftest import Trials
from tests.training.families import configured

HERE = Path(__file__).parent
PLAIN = Model(layers=4, hidden=128, heads=4, kv_heads=2, ffn=256, vocab=512, seq_len=128, entry_point=f"{HERE}:traced_modules:Plain")
THRICE = dataclasses.replace(PLAIN, entry_point=f"{HERE}:traced_modules:Thrice")
JOB = """
[model]
entry_point = "traced_modules:{name}"
layers = 4
hidden = 128
heads = 4
kv_heads = 2
ffn = 256
vocab = 512
seq_len = 128

[batch]
global_batch = 8

[cluster]
devices_per_host = 1
device = "CPU"
memory_limit = "4 GiB"
"""


def problem_with(name: str, folder: Path) -> Problem:
    """Return the problem of a job with one of the entry points in this folder."""
    problem = problem_of(JOB.format(name=name), folder)
    model = dataclasses.replace(problem.model, entry_point=f"{HERE}:traced_modules:{name}")
    return dataclasses.replace(problem, stated_model=model)


@pytest.fixture(scope="module")
def plain() -> ModelTrace:
    """Return the trace of the built-in model as an accelerator runs it."""
    with TracedKernels(fused_norms=True):
        return trace_user_module(PLAIN, "fp32")


def test_the_weights_of_the_built_in_model_are_those_of_its_dimensions(plain: ModelTrace) -> None:
    assert plain.layer_parameters == PLAIN.layer_parameter_count
    assert plain.embedding_parameters == PLAIN.embedding_parameter_count
    assert plain.head_parameters == PLAIN.head_parameter_count + PLAIN.norm_parameter_count
    assert plain.parameter_count(PLAIN.layers) == PLAIN.parameter_count


def test_the_operations_of_the_built_in_model_are_those_of_its_dimensions(plain: ModelTrace) -> None:
    whole = plain.layer_flops + plain.attention_flops
    assert whole == PLAIN.layer_flops_per_sequence / PLAIN.seq_len
    assert plain.attention_flops == pytest.approx(4 * PLAIN.query_width * (PLAIN.seq_len + 1) / 2, rel=0.01)


def test_the_activations_of_the_built_in_model_are_those_of_its_dimensions(plain: ModelTrace, tmp_path: Path) -> None:
    problem = problem_with("Plain", tmp_path)
    counted = float(activation_elements(workload_of(problem, problem.candidates()))[0])
    assert plain.activation_bytes / 4 == pytest.approx(counted, rel=0.02)  # the rest are sums of softmax and norms, one per head and token
    assert plain.head_activation_bytes / 4 == pytest.approx(PLAIN.vocab + 2 * PLAIN.hidden, rel=0.02)


def test_without_fused_norms_each_keeps_one_tensor_more(plain: ModelTrace) -> None:
    with TracedKernels(fused_norms=False):
        composed = trace_user_module(PLAIN, "fp32")
    assert composed.activation_bytes - plain.activation_bytes == pytest.approx(4 * 2 * PLAIN.hidden, rel=0.02)


def test_autocast_keeps_inputs_of_norms_in_fp32_and_a_copy_for_each_product(plain: ModelTrace) -> None:
    with TracedKernels(fused_norms=True):
        half = trace_user_module(PLAIN, "bf16")
    norms, copies = 2 * PLAIN.hidden * (4 - 2), (5 - 2) * PLAIN.hidden * 2  # of query, key, value, gate and up
    assert half.activation_bytes == pytest.approx(plain.activation_bytes / 2 + norms + copies, rel=0.02)
    assert half.layer_parameters == plain.layer_parameters


def test_unusual_blocks_have_counts_of_their_own(plain: ModelTrace) -> None:
    with TracedKernels(fused_norms=True):
        found = trace_user_module(THRICE, "fp32")
    network = 3 * PLAIN.hidden * PLAIN.ffn
    assert found.layer_parameters == plain.layer_parameters + 2 * network + PLAIN.hidden
    assert found.layer_flops == pytest.approx(plain.layer_flops + 4 * network)
    kept = 2 * PLAIN.hidden + 2 * (4 * PLAIN.ffn + PLAIN.hidden)  # the norm, and each network with its tanh
    assert found.activation_bytes == pytest.approx(plain.activation_bytes + 4 * kept, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [2, *nightly(8)])
def test_a_trace_is_made_once_and_is_nearer_to_the_measured_memory_of_unusual_blocks(
    micro_batch: int, trials: Trials, tmp_path: Path
) -> None:
    problem = problem_with("Thrice", tmp_path)
    measured = trials(configured(micro_batch=micro_batch), problem.model, steps=1).memory_bytes
    found = traced(problem)
    by_dimensions, by_trace = (memory_of(each, micro_batch) for each in (problem, found))
    assert abs(by_trace / measured - 1) < 0.2 < abs(by_dimensions / measured - 1)
    # A trace is made once, and is part of the problem.
    assert found.trace is not None and traced(found) is found
    assert Problem.from_dict(found.to_dict()) == found and found.fingerprint == problem.fingerprint


def memory_of(problem: Problem, micro_batch: int) -> float:
    """Return the predicted bytes of one rank that recomputes nothing."""
    candidates = problem.candidates()
    predicted = predict(workload_of(problem, candidates), *beliefs_of_job(problem))
    chosen = (candidates.column("micro_batch") == micro_batch) & (candidates.column("recompute") == "none")
    return float(predicted["predicted_memory_bytes"][chosen].iloc[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Raising", "ValueError: no block today. The prior"),
        pytest.param("Reading", "DataDependentOutputException: aten._local_scalar_dense.default", marks=pytest.mark.nightly),
        pytest.param("Greedy", "MemoryError: Unable to allocate 8.00 GiB", marks=pytest.mark.nightly),
        ("Exiting", "the trace exited with code 7"),
        pytest.param("Absent", "cannot be imported", marks=pytest.mark.nightly),
    ],
)
def test_a_module_that_cannot_be_traced_falls_back_with_the_reason(
    name: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = problem_with(name, tmp_path)
    with caplog.at_level(logging.WARNING, "oppa"):
        assert traced(problem) is problem
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"`traced_modules:{name}` cannot be traced: ") and reason in message
    assert message.endswith("The prior uses the dimensions of [model] instead")


@pytest.mark.slow
def test_a_module_that_takes_too_long_falls_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    problem = problem_with("Endless", tmp_path)
    assert traced(problem, longest_s=0.5) is problem
    assert "the trace took more than 0.5 s" in caplog.text


def test_models_without_a_module_are_not_traced(tmp_path: Path) -> None:
    problem = problem_with("Plain", tmp_path)
    built_in = dataclasses.replace(problem, stated_model=dataclasses.replace(problem.model, entry_point=""))
    assert traced(built_in) is built_in and traced(dataclasses.replace(problem, stated_model=None)).trace is None


@pytest.mark.parametrize("value", [-1, float("nan"), "many"])
def test_counts_that_are_none_are_refused(plain: ModelTrace, value: object) -> None:
    with pytest.raises(ValueError, match="layer_flops"):
        ModelTrace.from_dict({**plain.to_dict(), "layer_flops": value})
