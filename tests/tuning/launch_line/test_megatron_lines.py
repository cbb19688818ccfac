"""Megatron-LM has options beyond its search space: FSDP, layers of several kinds, other models than causal decoders."""

import shlex

import pytest

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.facts import workload_of
from oppa.cost.prediction import predict
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.tuning.formats import FORMATS
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.changed_line import changed_line
from oppa.tuning.launch_line.line_job import LineJob
from oppa.tuning.launch_line.meaning import Meaning
from oppa.tuning.launch_line.understand import understand
from tests.tuning.launch_line.conftest import CPUS

KEPT = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --overlap-grad-reduce --ddp-bucket-size 40000000"
"""Options that stay in the trials of a line without a described model."""
OPTIONS = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 --bf16"
LINE = f"torchrun --nproc-per-node 8 pretrain_gpt.py {OPTIONS} --micro-batch-size 2 --global-batch-size 32"


def meaning(line: str) -> Meaning:
    """Return the meaning of a line."""
    return understand(shlex.split(line), environment={}, machine=CPUS)[1]


def launched(made: LineJob, configuration: Configuration) -> list[str]:
    """Return the words of a trial's launch line."""
    line = made.problem.launch_line(configuration)
    return line.words(values_outside_trials(made.problem, configuration), {})


@pytest.mark.parametrize(
    ("words", "stage"),
    [
        ("--use-megatron-fsdp", 3),
        ("--use-custom-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy=optim", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard --use-distributed-optimizer", 0),
        ("--use-torch-fsdp2", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
    ],
)
def test_fsdp_keeps_its_stage_and_pipeline_and_its_memory_is_not_predicted(words, stage, job) -> None:
    made = job(f"{LINE} {words}")
    assert made.meaning.settings["zero_stage"] == stage and made.problem.stated_model is None
    assert made.problem.baseline is not None and made.problem.baseline.zero_stage == stage
    candidates = made.problem.candidates()
    assert {each.zero_stage for each in candidates if each.dp > 1} == {stage} and {each.pp for each in candidates} == {1}
    assert {each.tp for each in candidates} == {1, 2, 4, 8}
    assert any("has no FSDP" in note for note in made.meaning.notes)
    options = shlex.split(words.replace("=", " "))
    assert [word for word in made.problem.command.argv if "fsdp" in word] == [word for word in options if "fsdp" in word]


@pytest.mark.parametrize(
    ("frequency", "dense"),
    [
        ("([0]*3+[1]*5)", 3),
        ("[0]*1+[1]*7", 1),
        ("([0]+[1]*7)", 1),
        ("2*([0]*0)+([0,0]+6*[1])", 2),
        ("1", 0),
        ("([1]*8)", 0),
        ("2", None),
        ("([0,1]*4)", None),
        ("([0]*1+[1]*26)", None),
        ("[0]*999999999+[1]", None),
        ("__import__('os')", None),
    ],
)
def test_dense_layers_come_first_or_there_is_no_model(frequency, dense) -> None:
    found = meaning(f"{LINE} --num-experts 8 --moe-layer-freq {shlex.quote(frequency)}")
    assert (found.model.get("dense_layers", 0) if found.model else None) == dense
    assert any("--moe-layer-freq" in note for note in found.notes) is (dense is None)


@pytest.mark.parametrize("words", ["--decoder-seq-length 1024", "--img-h 336 --img-w 336", "--encoder-num-layers 4"])
def test_an_encoder_next_to_the_decoder_has_no_model(words) -> None:
    found = meaning(f"{LINE} {words}")
    assert not found.model and any("encoder with a decoder" in note for note in found.notes)


@pytest.mark.parametrize(("program", "causal"), [("pretrain_gpt.py", True), ("pretrain_bert.py", False)])
def test_bert_attends_to_all_tokens(program, causal, job) -> None:
    assert job(LINE.replace("pretrain_gpt.py", program)).problem.model.causal is causal


@pytest.mark.parametrize("words", ["--num-layers-per-virtual-pipeline-stage 2", "--num-virtual-stages-per-pipeline-rank 2"])
def test_the_option_of_model_chunks_is_the_origin_of_the_schedule(words) -> None:
    found = meaning(f"{LINE} --pipeline-model-parallel-size 2 {words}")
    assert (found.settings["schedule"], found.origins["schedule"]) == ("interleaved", "line")


@pytest.mark.parametrize(
    ("words", "trained", "note"),
    [
        ("--optimizer adam", "adamw", ""),
        ("--optimizer sgd", "sgd", ""),
        ("--optimizer muon", "adamw", "predictions take AdamW for `--optimizer muon`"),
        ("--optimizer=lion", "adamw", "predictions take AdamW for `--optimizer lion`"),
    ],
)
def test_an_optimizer_is_predicted_or_a_note_names_it(words, trained, note, job) -> None:
    made = job(f"{LINE} {words}")
    assert made.problem.training.optimizer == trained
    assert [each for each in made.notes if "AdamW" in each][:1] == [each for each in made.notes if note and each.startswith(note)]


def test_modules_that_are_recomputed_are_shown_in_any_order(job) -> None:
    line = f"{LINE} --recompute-granularity selective --recompute-modules"
    assert job(f"{line} mlp core_attn").problem.baseline["recompute_modules"] == "core_attn+mlp"
    made = job(f"{line} mlp layernorm")
    assert [(fact.name, fact.value) for fact in made.meaning.facts] == [("recompute_modules", "mlp layernorm")]
    assert any(note.startswith("`--recompute-modules mlp layernorm` stays") for note in made.notes)
    argv = made.problem.command.argv
    assert argv[argv.index("--recompute-modules") + 1 :][:2] == ("mlp", "layernorm")


LOCAL = f"{LINE} --tensor-model-parallel-size 2 --transformer-impl local --vocab-size 1000"


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", " --num-attention-heads 8"])
def test_local_norms_have_no_sequence_parallelism_in_trials_and_the_winner(more, job) -> None:
    made = job(LOCAL + more)
    for each in (each for each in made.problem.candidates() if each.tp > 1):
        assert "--sequence-parallel" not in [*made.problem.launch_line(each).argv, *changed_line(made, each).line]
        assert each["sequence_parallel"] is False
    restored = Problem.from_dict(made.problem.to_dict())
    assert restored.space["sequence_parallel"].choices == (False,)


@pytest.mark.parametrize("more", [" --sequence-parallel", " --num-experts 4", " --transformer-impl transformer_engine"])
def test_other_lines_keep_sequence_parallelism_with_tensor_parallelism(more, job) -> None:
    made = job(LOCAL.replace(" --transformer-impl local", "") + more if "engine" in more else LOCAL + more)
    assert made.problem.space.name == "megatron"


def test_experts_with_local_norms_have_no_tensor_parallelism(job) -> None:
    """Source: MoELayer.forward (Megatron core 0.16.1) raises an error without sequence parallelism."""
    made = job(LOCAL.replace(" --tensor-model-parallel-size 2", "") + " --num-experts 4 --moe-router-topk 2")
    assert made.problem.space.name == "megatron-local"
    assert {each.tp for each in made.problem.candidates()} == {1}
    assert len({each.pp for each in made.problem.candidates()}) > 1


def test_a_line_that_states_no_model_has_none_either(job) -> None:
    made = job("torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --transformer-impl local --use-mcore-models")
    assert "--sequence-parallel" not in made.text.replace("`--sequence-parallel`", "")


def test_predictions_know_that_local_norms_keep_whole_activations(job) -> None:
    found = []
    for line in (LOCAL, LOCAL.replace(" --transformer-impl local", "")):
        problem = job(line, settings=["cluster.device=H100"]).problem
        candidates = problem.candidates()
        index = next(number for number, each in enumerate(candidates) if (each.tp, each.pp, each.recompute) == (8, 1, "none"))
        found.append(predict(workload_of(problem, candidates), *beliefs_of_job(problem))["predicted_memory_bytes"][index])
    assert found[0] > found[1]


HYBRID = f"{LINE} --hybrid-layer-pattern M*M-M*M- --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer {KEPT}"


@pytest.mark.parametrize("line", [HYBRID, f"{LINE} --use-megatron-fsdp {KEPT}"])
def test_trials_without_a_model_keep_all_options_that_no_parameter_writes(line, job) -> None:
    made = job(f"{line} --fp8-format e4m3 --num-workers 4")
    assert made.problem.stated_model is None
    for each in made.problem.candidates():
        words = " ".join(made.problem.launch_line(each).argv)
        assert KEPT in words and "--fp8-format e4m3 --num-workers 4" in words


def test_parameters_are_gathered_early_only_with_the_distributed_optimizer(job) -> None:
    """Source: validate_args of megatron/training/arguments.py refuses it otherwise."""
    made = job(f"{HYBRID} --overlap-param-gather")
    for each in made.problem.candidates():
        for words in (launched(made, each), changed_line(made, each).line):
            assert ("--overlap-param-gather" in words) == ("--use-distributed-optimizer" in words) == (each.zero_stage == 1)
    assert {each.zero_stage for each in made.problem.candidates()} == {0, 1}


@pytest.mark.parametrize(("words", "split"), [("", False), ("--expert-tensor-parallel-size 1", True)])
def test_experts_of_a_hybrid_are_spread_over_whole_ranks(words, split, job) -> None:
    """Source: initialize_model_parallel of megatron/core/parallel_state.py."""
    made = job(f"{HYBRID} --num-experts 8 --expert-model-parallel-size 4 {words}")
    found = {(each.tp, each.pp) for each in made.problem.candidates()}
    degrees = [(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8)]
    assert found == {(tp, pp) for tp, pp in degrees if tp * pp <= 8 and 8 % ((1 if split else tp) * 4 * pp) == 0}
    assert made.problem.baseline.ep == 4


@pytest.mark.parametrize(
    ("pattern", "stages"),
    [("M*M-M*M-", {1, 2, 4, 8}), ("M*M-M*/M*/M*", {1, 2}), ("M*M-|M*M-", {2}), ("M*|M-|M*|M-", {2})],
)
def test_stages_of_a_hybrid_hold_equally_many_layers_or_are_those_of_its_pattern(pattern, stages, job) -> None:
    made = job(HYBRID.replace("M*M-M*M-", f"'{pattern}'") + " --pipeline-model-parallel-size 2")
    assert {each.pp for each in made.problem.candidates()} == stages and made.problem.baseline.pp == 2


def test_a_hybrid_with_context_parallelism_keeps_its_degrees(job) -> None:
    made = job(f"{HYBRID} --context-parallel-size 2")
    assert made.problem.baseline.dp == 2
    for each in made.problem.candidates():
        words = " ".join(launched(made, each))
        assert "--context-parallel-size 2" in words and "--tensor-model-parallel-size 2 --sequence-parallel" in words


def test_virtual_stages_of_another_model_stay(job) -> None:
    made = job(f"{HYBRID} --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2")
    assert {each.pp for each in made.problem.candidates()} == {2}
    assert "--num-virtual-stages-per-pipeline-rank" in made.problem.command.argv


@pytest.mark.parametrize("words", ["", "--hybrid-layer-pattern M*M-M*M-"])
def test_more_expert_parallel_ranks_than_replicas_are_refused(words) -> None:
    line = f"{LINE} --tensor-model-parallel-size 2 --num-experts 8 --expert-model-parallel-size 8 {words}"
    with pytest.raises(InputError, match="needs a multiple of 8 ranks, and there are 4"):
        meaning(line)
    assert meaning(f"{line} --expert-tensor-parallel-size 1").settings["ep"] == 8


PIPELINE = f"{LINE} --pipeline-model-parallel-size 2 --vocab-size 1000 --pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("Et*4|t*4L", {"schedule": "1f1b", "pipeline_layout": None}),
        ("Ett|tt|(tt|)ttL", {"schedule": "interleaved", "model_chunks": 2, "pipeline_layout": None}),
        ("Et*3|t*5L", {"schedule": "1f1b", "pipeline_layout": "Et*3|t*5L"}),
    ],
)
def test_a_layout_of_stages_is_the_baseline(layout, expected, job) -> None:
    made = job(f"{PIPELINE} '{layout}'")
    assert {name: made.problem.baseline.get(name, None) for name in expected} == expected
    words = launched(made, made.problem.baseline)
    assert ("--pipeline-model-parallel-layout" in words) == (expected["pipeline_layout"] is not None)
    assert ("--num-virtual-stages-per-pipeline-rank" in words) == ("model_chunks" in expected)


def test_a_line_with_a_layout_keeps_it_only_on_its_own_stages(job) -> None:
    few = ["overlap_zero_comm=false", "recompute=none", "zero_stage=0", "micro_batch=[2]"]
    made = job(f"{PIPELINE} 'Et*3|t*5L'", settings=[f"space.parameters.{each}" for each in few])
    for each in made.problem.candidates():
        is_own = each.pp == 2 and each["pipeline_layout"] != "even"
        for words in (launched(made, each), changed_line(made, each).line):
            assert ("Et*3|t*5L" in words) == is_own == ("--pipeline-model-parallel-layout" in words)
    exported = FORMATS["megatron"].export(made.problem, made.problem.baseline)
    assert "--pipeline-model-parallel-layout Et*3|t*5L" in "".join(exported.values())


def test_unequal_virtual_stages_stay_as_they_are(job) -> None:
    made = job(f"{PIPELINE} 'Et|(tt|)*2tttL'")
    assert made.problem.stated_model is None and any("unequal stages" in note for note in made.notes)
    for each in made.problem.candidates():
        assert each.pp == 2 and "Et|(tt|)*2tttL" in launched(made, each)


def test_a_layout_of_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(InputError, match="has 3 stages, which are no multiple of pp 2"):
        meaning(f"{PIPELINE} 'Ettt|ttt|ttL'")


def test_the_number_of_recomputed_layers_stays_though_the_space_does_not_list_it(job) -> None:
    line = LINE.replace("--num-layers 8", "--num-layers 24")
    made = job(f"{line} --recompute-granularity full --recompute-method block --recompute-num-layers 20")
    assert made.problem.baseline["recompute_layers"] == made.meaning.settings["recompute_layers"] == 20
    words = launched(made, made.problem.baseline)
    assert words[len(words) - 1 - words[::-1].index("--recompute-num-layers") :][:2] == ["--recompute-num-layers", "20"]
    assert Problem.from_dict(made.problem.to_dict()).baseline == made.problem.baseline


PRECISE = "--use-precision-aware-optimizer --main-grads-dtype bf16 --main-params-dtype fp16"
STEP = "--overlap-param-gather-with-optimizer-step --overlap-param-gather --overlap-grad-reduce --use-distributed-optimizer"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


@pytest.mark.parametrize(
    ("words", "held"),
    [
        (f"{PRECISE} --use-distributed-optimizer", {"zero_stage": {1}}),
        (f"{PRECISE} --use-distributed-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", {"zero_stage": {1}, "moments": {"bf16"}}),
        (
            f"{STEP} --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
            {"zero_stage": {1}, "overlap_zero_allgather": {True}, "schedule": {"interleaved"}},
        ),
        ("--num-experts 4 --moe-layer-recompute", {"recompute": {"selective"}}),
        (f"{FULL} --tensor-model-parallel-size 2 --distribute-saved-activations", {"recompute": {"full"}, "sequence_parallel": {False}}),
        (f"--hybrid-layer-pattern M*M-M*M- {PRECISE} --use-distributed-optimizer", {"zero_stage": {0, 1}}),
    ],
)
def test_a_parameter_that_another_option_needs_does_not_vary(words, held, job) -> None:
    made = job(f"{LINE} {words}")
    found = list(made.problem.candidates())
    assert {name: {each[name] for each in found} for name in held} == held and made.problem.baseline is not None
    if "--distribute" in words:
        assert min(each.tp for each in found) == 2
    if PRECISE in words:
        assert all("--use-distributed-optimizer" in launched(made, each) for each in found[:: max(1, len(found) // 20)])


@pytest.mark.parametrize(
    "words",
    [PRECISE, f"{FULL} --num-experts 4 --moe-layer-recompute", STEP, f"{FULL} --distribute-saved-activations --sequence-parallel"],
)
def test_an_option_without_what_it_needs_is_refused(words) -> None:
    with pytest.raises(InputError, match=r"needs (zero_stage|recompute|schedule|sequence_parallel) = "):
        meaning(f"{LINE} --tensor-model-parallel-size 2 {words}")


def test_a_default_precision_or_fsdp_needs_no_distributed_optimizer() -> None:
    assert "zero_stage" not in meaning(f"{LINE} --main-grads-dtype fp32").choices
    assert meaning(f"{LINE} {PRECISE} --use-megatron-fsdp").settings["zero_stage"] == 3


def test_a_single_replica_is_no_baseline_where_an_option_needs_several(job) -> None:
    made = job(f"{LINE} {PRECISE} --use-distributed-optimizer --tensor-model-parallel-size 8")
    assert made.problem.baseline is None and any("the present dp = 1 is not in the search space" in note for note in made.notes)
