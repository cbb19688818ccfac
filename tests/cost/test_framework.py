"""Every file in `priors/frameworks` reads, and the parameters of every search space reach the cost model."""

import dataclasses
import tomllib

import numpy as np
import pytest

from oppa import catalog
from oppa.cost.beliefs import beliefs_of, beliefs_of_job, files_of_job, framework_file, framework_of
from oppa.cost.facts import FROZEN_BYTES, TRAINED, format_facts, workload_of
from oppa.cost.framework import COLUMNS, frameworks, load_framework, read_framework
from oppa.cost.hardware import load_hardware
from oppa.cost.workload import CP_MODES, DISPATCHERS
from oppa.errors import InputError
from oppa.problem.space import FRAMEWORKS

TEXT = (catalog.root() / FRAMEWORKS / "fsdp.toml").read_text()
SMALL = {"micro_batch": [1]}
"""Choices that keep the search spaces of this page small."""


@pytest.mark.parametrize("name", frameworks())
def test_every_framework_reads(name) -> None:
    found = load_framework(name)
    assert found.name == name and found.description and 0.8 < found.usable_share <= 1
    assert found.weight_bytes + found.gradient_bytes + found.master_bytes >= 8 and found.reduced_bytes <= found.gradient_bytes
    assert found.gradients_sharded_from in (2, 3)
    time, size = beliefs_of(load_hardware("H100"), found)
    assert all((time | size)[key].median == belief.median for key, belief in found.coefficients.items())


@pytest.mark.parametrize("name", catalog.names("search_spaces"))
def test_every_search_space_is_of_a_framework_that_there_is(name) -> None:
    stated = tomllib.loads((catalog.root() / "search_spaces" / f"{name}.toml").read_text()).get("framework")
    assert stated is None or stated in frameworks()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[sharding]", "[shading]", " has no key `shading`"),
        ("prefetches = true", "prefetch = true", r": `\[sharding\]` has no key `prefetch`"),
        ("prefetches = true", "", r": `\[sharding\]` lacks `prefetches`"),
        ("prefetches = true", "prefetches = 1", r", \[sharding\]: `prefetches = 1` is not"),
        ("gradients_sharded_from = 2", "gradients_sharded_from = 0", r", \[sharding\]: `gradients_sharded_from = 0` is too small"),
        ("master = 4", "master = -4", r", \[bytes_per_weight\]: `master = -4` is too small"),
        ("master = 4", "", r": `\[bytes_per_weight\]` lacks `master`"),
        ("usable_share = 0.97", "usable_share = 1.5", ": `usable_share = 1.5` is too large"),
        ("usable_share = 0.97", "", " lacks `usable_share`"),
        ("sequence_parallel = true", 'sequence_parallel = "yes"', ': `sequence_parallel = "yes"` is not'),
        ("[coefficients.overlap]", "[coefficients.overlpa]", r": `\[coefficients\]` has no key `overlpa`"),
        ("median = 0.5\n", "median = 0\n", r", \[coefficients.overlap\]: `median = 0` is too small"),
        ("\nshard = ", "\nshards = ", r": `\[columns\]` has no key `shards`"),
        ('divides = "dp"', 'divide = "dp"', r": `\[columns.shard\]` has no key `divide`"),
    ],
)
def test_a_wrong_framework_is_named(old, new, message, write) -> None:
    assert old in TEXT
    load_framework(write(TEXT))
    with pytest.raises(InputError, match=f"bad.toml`{message}"):
        load_framework(write(TEXT.replace(old, new, 1)))


@pytest.mark.parametrize("table", ["bytes_per_weight", "sharding", "coefficients.state", "coefficients.overlap"])
def test_a_table_without_a_source_is_named(table, write) -> None:
    before, after = TEXT.split(f"[{table}]")
    start = after.index("source = ")
    end = after.index('"""', start + 14) + 3 if after[start + 9 : start + 12] == '"""' else after.index("\n", start)
    with pytest.raises(InputError, match=rf"bad.toml`: `\[{table}\]` lacks `source`"):
        load_framework(write(f"{before}[{table}]{after[:start]}{after[end:]}"))


def test_an_unknown_framework_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match="`fsdp3` is not one of the priors/frameworks") as raised:
        load_framework("fsdp3")
    assert "fsdp" in raised.value.hint


@pytest.mark.parametrize(
    ("space", "parameter", "choices", "column", "expected"),
    [
        ("megatron", "cp_comm", ["p2p", "a2a", "allgather"], "cp_mode", {"ring", "all-to-all", "all-gather"}),
        ("megatron", "fp8", ["none", "delayed", "mxfp8"], "precision", {"", "fp8", "mxfp8"}),
        ("megatron", "attention_backend", ["auto", "fused", "unfused"], "attention", {"flash", "plain"}),
        ("megatron", "optimizer_offload", [0.0, 0.5, 1.0], "offload", {"none", "optimizer"}),
        ("megatron", "fp8_param_gather", [False, True], "fp8_weights", {False, True}),
        ("torchtitan", "dp_replicate", [1, 2, 4], "shard", {1, 2, 4, 8, 16}),
        ("torchtitan", "cpu_offload", [False, True], "offload", {"none", "parameters"}),
        ("torchtitan", "float8", ["none", "llama3_8b_float8"], "precision", {"", "fp8"}),
        ("torchtitan", "sequence_parallel", [False, True], "sequence_parallel", {False, True}),
        ("torchtitan", "compile", [False, True], "compiled", {False, True}),
        ("transformers", "torch_compile", [False, True], "compiled", {False, True}),
        ("megatron", "cuda_graphs", ["none", "local"], "cuda_graphs", {"false", "true"}),
        ("torchtitan", "cuda_graphs", [False, True], "cuda_graphs", {False, True}),
        ("megatron", "tp_comm_overlap", [False, True], "overlap_tp", {False, True}),
        ("accelerate", "cp_comm", ["allgather", "alltoall"], "cp_mode", {"ring", "all-gather"}),
        ("megatron", "recompute_modules", ["core_attn", "mlp"], "recompute_modules", {"core_attn", "mlp"}),
        ("megatron", "grad_reduce_bf16", [False, True], "gradients", {"32-bit", "16-bit"}),
        ("megatron", "moments", ["fp32", "bf16", "fp8"], "moments", {"32-bit", "16-bit", "8-bit"}),
        ("accelerate", "fsdp_offload", [False, True], "offload", {"none", "parameters"}),
        ("accelerate", "dp_replicate", [1, 2, 4], "shard", {2, 4, 8, 16}),
        ("transformers", "use_liger_kernel", [False, True], "loss", {"chunked", "plain"}),
        ("transformers", "use_liger_kernel", [False, True], "norms", {"fused", "plain"}),
        ("transformers", "optim", ["adamw_torch", "paged_adamw_8bit", "adafactor"], "moments", {"32-bit", "8-bit", "none"}),
        ("deepspeed", "sp", [1, 2, 4], "cp", {1, 2, 4}),
        ("deepspeed", "offload_optimizer", ["none", "cpu"], "offload", {"none", "optimizer"}),
        ("deepspeed", "offload_params", ["none", "cpu"], "offload_parameters", {"false", "true"}),
        ("deepspeed", "hpz", [1, 2, 4], "hpz", {1, 2, 4}),
        ("deepspeed", "quantized_weights", [False, True], "quantized_weights", {False, True}),
        ("deepspeed", "quantized_gradients", [False, True], "quantized_gradients", {False, True}),
        ("torch-long-context", "dp_shard", [0, 2, 4], "shard", {0, 2, 4}),
        ("torch-long-context", "cp", [1, 2], "cp", {1, 2}),
    ],
)
def test_a_parameter_of_a_search_space_becomes_a_column(space, parameter, choices, column, expected, framework_problem) -> None:
    context = {"cp_comm": {"cp": [1, 2]}, "fp8_param_gather": {"fp8": ["none", "delayed"]}}.get(parameter, {})
    problem = framework_problem(space, given={**SMALL, **context, parameter: choices})
    candidates = problem.candidates()
    values = framework_of(problem).columns(candidates)[column]
    assert values.shape == (len(candidates),) and set(values.tolist()) == expected


def test_experts_of_megatron_are_split_as_other_layers_or_not_at_all(framework_problem) -> None:
    problem = framework_problem("megatron", model="mixtral-8x7b", given={**SMALL, "expert_tp": ["tp", "1"]})
    candidates = problem.candidates()
    etp, tp = framework_of(problem).columns(candidates)["etp"].astype(float), candidates.column("tp")
    assert set(etp.tolist()) == {0, 1} and (etp[tp == 1] == 0).all()


def test_the_ways_in_which_megatron_sends_tokens_to_experts_are_columns(framework_problem) -> None:
    knobs = {"moe_dispatcher": ["allgather", "alltoall", "flex"], "moe_comm_overlap": [False, True]}
    problem = framework_problem("megatron", model="mixtral-8x7b", given={**SMALL, "ep": [1, 2, 4], **knobs})
    columns = framework_of(problem).columns(problem.candidates())
    assert set(columns["dispatcher"].tolist()) == set(DISPATCHERS) and set(columns["overlap_ep"].tolist()) == {False, True}


@pytest.mark.parametrize("space", ["megatron", "torchtitan", "accelerate", "deepspeed", "nanotron", "torch-long-context", "lightning"])
def test_without_a_job_s_choices_every_column_has_a_value_that_the_cost_model_knows(space, framework_problem) -> None:
    problem = framework_problem(space, given=SMALL)
    columns = framework_of(problem).columns(problem.candidates())
    assert set(columns) <= set(COLUMNS)
    known = {
        "cp_mode": CP_MODES,
        "attention": ("flash", "plain"),
        "loss": ("fused", "plain"),
        "norms": ("fused", "plain"),
        "offload": ("none", "optimizer", "parameters"),
        "precision": ("",),
    }
    for name, values in columns.items():
        assert name not in known or set(np.unique(values).tolist()) <= set(known[name]), name


def test_a_job_predicts_adapters_and_quantised_weights_as_a_row_does(framework_problem) -> None:
    problem = framework_problem("transformers", given=SMALL)
    stated = {"trained": "lora", "weights": "4-bit"}
    job = dataclasses.replace(problem, training=dataclasses.replace(problem.training, **stated))
    candidates = problem.candidates()
    found = workload_of(job, candidates).formats
    expected = format_facts(load_framework("fsdp"), "bf16", trained=TRAINED["lora"], frozen_bytes=FROZEN_BYTES["4-bit"])
    for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes", "trained"):
        assert set(getattr(found, name).tolist()) == {expected[name]}
    assert job.fingerprint != problem.fingerprint


def test_a_job_s_own_framework_replaces_that_of_its_space(framework_problem) -> None:
    problem = framework_problem("torchtitan", given=SMALL)
    text = TEXT.replace("usable_share = 0.97", "usable_share = 0.5").replace("median = 0.5\n", "median = 0.25\n")
    own = dataclasses.replace(problem, space=dataclasses.replace(problem.space, framework="mine", framework_text=text))
    found = framework_of(own)
    assert (found.name, found.usable_share, framework_file(own)) == ("mine", 0.5, "mine.toml")
    assert beliefs_of_job(own)[0]["overlap"].median == 0.25 and files_of_job(own)["overlap"] == "mine.toml"
    assert framework_of(problem).name == "fsdp" and own.fingerprint == problem.fingerprint
    with pytest.raises(InputError, match=r"`mine.toml` lacks `usable_share`"):
        read_framework("mine", text.replace("usable_share = 0.5", ""))


@pytest.mark.parametrize("stated", [{}, {"framework": "megatron"}, {"settled": {"sequence_parallel": True}}])
def test_what_tensor_parallelism_keeps_whole_is_open_where_neither_framework_nor_sequence_parallelism_is_stated(
    stated, framework_problem
) -> None:
    problem = framework_problem("torchtitan", given=SMALL)
    space = dataclasses.replace(problem.space, **{"framework": "", "settled": {}, **stated})
    job = dataclasses.replace(problem, space=space)
    interval, ends = beliefs_of_job(job)[1]["replicated"].interval, (load_framework("megatron").coefficients["replicated"].median, 1.0)
    assert (interval == pytest.approx(ends, rel=0.01)) != bool(stated)
    assert (files_of_job(job)["replicated"] == "priors/unstated.toml") != bool(stated)


def test_the_file_of_a_coefficient_is_that_of_the_device_the_framework_or_the_general_one(framework_problem) -> None:
    problem = framework_problem("torchtitan", given=SMALL)
    files = files_of_job(problem)
    assert files["overlap"] == "priors/frameworks/fsdp.toml" and files["contention"] == "priors/step_time.toml"
    assert {files[name] for name in load_hardware("H100").coefficients} <= {"priors/hardware/H100.toml"}
    assert set(files) == {name for beliefs in beliefs_of_job(problem) for name in beliefs}
