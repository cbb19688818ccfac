"""Launch lines of programs whose settings are keys: NeMo, axolotl, LLM-Foundry, torchtune, ms-swift with Megatron, LitGPT and nanotron."""

import re

import pytest

from oppa.errors import InputError
from oppa.problem.command_table import formats
from oppa.tuning.launch_line.keyed_programs import keyed_programs
from oppa.tuning.launch_line.winner_files import write_files
from tests.tuning.launch_line.keyed_examples import (
    AXOLOTL,
    FOUNDRY,
    LITGPT,
    LORA,
    NANOTRON,
    NEMO,
    NEMO_MODEL,
    NEMO_RUN,
    OF_TUNE,
    SWIFT,
    TUNE,
    changed,
)

OF_LITGPT = [  # LitGPT 0.5.13
    "Validating ...",
    "Measured TFLOPs: 0.00",
    "Epoch 1 | iter 15 step 0 | loss train: 6.415, val: n/a | iter time: 6.08 ms remaining time: 1:53:43",
    "Epoch 1 | iter 16 step 1 | loss train: 6.415, val: n/a | iter time: 6.08 ms (step) remaining time: 1:53:43",
    "Epoch 1 | iter 32 step 2 | loss train: 6.426, val: 6.408 | iter time: 82.89 ms (step) remaining time: 0:57:01",
    "iter 160: val loss 5.9367, val time: 48.00 ms",
    "Final evaluation | val loss: 5.494 | val ppl: 243.124",
]
OF_COMPOSER = ["[batch=1/60]:", "\t Train time/batch: 0", "[batch=2/60]:", "\t Train loss/train/total: 7.2682"]  # LLM-Foundry 0.22
OF_TORCHTUNE = [  # torchtune 0.6.1, which writes the number of the epoch, that of the step and tqdm's bar
    "  0%|          | 0/30 [00:00<?, ?it/s]",
    "1|1|Loss: 6.277275085449219:   3%|▎         | 1/30 [00:00<00:10,  2.77it/s]",
    "2|31|Loss: 5.934576988220215:   3%|▎         | 1/30 [00:00<00:10,  2.77it/s]",
    "INFO:torchtune.utils._logging:Saving checkpoint took 0.04 secs",
]


def test_overrides_of_hydra_vary_where_the_line_states_them(job) -> None:
    made = job(NEMO + NEMO_MODEL)
    assert (made.meaning.title, made.meaning.devices.count, made.meaning.global_batch) == ("NeMo", 8, 64)
    baseline, model = made.problem.baseline, made.problem.stated_model
    assert (baseline.dp, baseline.tp, baseline.pp, baseline.micro_batch, made.problem.training.precision) == (2, 2, 2, 2, "bf16")
    assert (model.layers, model.kv_heads, model.ffn, model.gated, made.meaning.assumed) == (32, 8, 14336, True, {"vocab": 128256})
    winner, _, trial = changed(made, tp=4, micro_batch=4)
    assert winner == (NEMO + NEMO_MODEL).replace("tensor_model_parallel_size=2", "tensor_model_parallel_size=4").replace(
        "micro_batch_size=2", "micro_batch_size=4"
    )
    assert {"model.tensor_model_parallel_size=4", "model.micro_batch_size=4", "exp_manager.create_checkpoint_callback=false"} <= {*trial}


def test_what_a_line_of_hydra_leaves_open_does_not_vary(job) -> None:
    made = job(NEMO.replace(" model.pipeline_model_parallel_size=2", ""))
    assert "{pp}" not in made.text and not made.meaning.model
    assert [hint for hint in made.meaning.hints if "model.pipeline_model_parallel_size=..." in hint]
    chunks = job(f"{NEMO} model.virtual_pipeline_model_parallel_size=2")
    assert made.problem.space["tp"].choices == (1, 2, 4, 8) and "pp = 2 stays as it is" in chunks.notes


HYDRA = """
defaults: [_self_, optional tp_overlap@model.ub: null]
trainer: {devices: 8, num_nodes: 1, precision: bf16}
exp_manager: {exp_dir: /mine, explicit_log_dir: /mine/log, create_checkpoint_callback: true}
model:
  {micro_batch_size: 2, global_batch_size: 64, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, context_parallel_size: 1,
   activations_checkpoint_granularity: null, activations_checkpoint_method: null}
"""


@pytest.mark.parametrize("named", ["--config-path=conf --config-name=my", "--config-path conf --config-name my.yaml", ""])
def test_keys_of_a_file_of_hydra_are_changed_in_the_line(named, job) -> None:
    program = '@hydra_runner(config_path="conf", config_name="my")\n'
    line = f"python nlp/megatron_gpt_pretraining.py {named}".strip()
    made = job(line, {"nlp/megatron_gpt_pretraining.py": program, "nlp/conf/my.yaml": HYDRA})
    assert (made.problem.baseline.tp, made.problem.baseline.dp, made.meaning.global_batch, made.meaning.devices.count) == (2, 4, 64, 8)
    assert made.meaning.origins["tp"] == "my.yaml" and made.problem.space["recompute"].choices == ("none", "selective", "full")
    winner, files, trial = changed(made, tp=4, recompute="full")
    granularity, layers = "model.activations_checkpoint_granularity=full", "++model.activations_checkpoint_num_layers=1"
    added = {"model.tensor_model_parallel_size=4", granularity, layers}
    assert winner.startswith(line) and not files and added <= {*winner.split()}
    assert {"exp_manager.explicit_log_dir=null", "exp_manager.create_checkpoint_callback=false"} <= {*trial}
    assert [word for word in trial if word.startswith("exp_manager.exp_dir=") and word.endswith("/writes/exp_dir")]


def test_a_file_of_hydra_is_next_to_the_program_unless_a_path_is_stated(job) -> None:
    files = {"nlp/megatron_gpt_pretraining.py": '@hydra_runner(config_name="my")\n', "nlp/my.yaml": HYDRA}
    assert job("python nlp/megatron_gpt_pretraining.py", files).meaning.origins["tp"] == "my.yaml"


def test_a_file_that_hydra_composes_of_others_is_not_read(job) -> None:
    files = {"megatron_gpt_pretraining.py": "", "conf/my.yaml": HYDRA.replace("[_self_", "[base, _self_")}
    made = job(f"{NEMO} --config-path=conf --config-name=my", files)
    assert "cp" not in made.meaning.settings and "recompute" not in made.meaning.settings


def test_a_key_that_the_line_adds_to_a_file_of_hydra_is_added_in_trials(job) -> None:
    made = job(NEMO.replace("model.tensor_model", "+model.tensor_model"))
    assert "++model.tensor_model_parallel_size=4" in changed(made, tp=4)[2]


def test_the_devices_of_nemo_are_its_own_or_those_of_a_launcher(job) -> None:
    assert job(NEMO.replace("devices=8", "devices=4").replace("python", "torchrun --nproc-per-node 4")).meaning.devices.count == 4
    with pytest.raises(InputError, match=r"`trainer\.devices=8` and `trainer\.num_nodes=1` are 8 ranks, and the launcher starts 4"):
        job(NEMO.replace("python", "torchrun --nproc-per-node 4"))
    with pytest.raises(InputError, match="NeMo starts the ranks of 4 hosts"):
        job(NEMO.replace("num_nodes=1", "num_nodes=4"))
    with pytest.raises(InputError, match="NeMo-Run starts the ranks of 16 hosts"):
        job(NEMO_RUN.replace("llama3_8b", "'llama3_70b(num_nodes=16)'"))
    with pytest.raises(InputError, match="may start ranks of its own") as refused:
        job(NEMO_RUN.replace(" trainer.devices=8", ""))
    assert "state `trainer.devices=8` in the line" in refused.value.hint
    with pytest.raises(InputError, match="may start ranks of its own"):
        job(NEMO.replace("trainer.devices=8 ", ""))


def test_trials_of_nemo_run_do_not_ask(job) -> None:
    made = job(NEMO_RUN)
    assert made.meaning.title == "NeMo-Run" and made.meaning.added[0] == "--yes"
    assert "--yes" not in job(f"{NEMO_RUN} -y").meaning.added


def test_ms_swift_with_megatron_has_its_own_defaults(job) -> None:
    made = job(SWIFT)
    assert (made.meaning.devices.count, made.meaning.global_batch, made.problem.baseline.recompute) == (8, 32, "full")
    assert (made.problem.baseline.dp, made.problem.baseline.tp, made.problem.baseline.zero_stage) == (4, 2, 1)
    winner, _, trial = changed(made, tp=1, recompute="selective", micro_batch=1)
    assert "--tensor_model_parallel_size 1 --sequence_parallel false --micro_batch_size 1 --global_batch_size=32" in winner
    assert "--recompute_granularity selective" in winner and "uniform" not in winner
    assert trial[trial.index("--output_dir") + 1].endswith("writes/output_dir") and "true" in trial
    assert job(SWIFT.replace(" --global_batch_size=32", "")).meaning.global_batch == 16


def test_a_file_of_axolotl_is_rewritten_with_the_values_of_a_trial(job, tmp_path) -> None:
    made = job(AXOLOTL, {"lora.yml": LORA})
    assert (made.meaning.title, made.meaning.global_batch, made.problem.baseline.recompute) == ("axolotl", 64, "full")
    assert [(fact.name, fact.value) for fact in made.meaning.training] == [("trained", "lora"), ("weights", "4-bit")]
    winner, files, trial = changed(made, micro_batch=8, recompute="none")
    assert winner == AXOLOTL and trial[-1] == "COPY"
    assert {
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "logging_steps": 1,
    }.items() <= files.items()
    assert files["output_dir"].endswith("writes/output_dir") and "dataset_prepared_path" in files
    each = next(each for each in made.problem.candidates() if each.micro_batch == 8)
    text = write_files(made, each, tmp_path / "best")[0].read_text()
    assert "micro_batch_size: 8" in text and "output_dir: ./outputs/out" in text and "logging_steps" not in text


def test_an_option_of_axolotl_takes_precedence_and_is_changed_in_the_line(job) -> None:
    made = job(f"{AXOLOTL} --micro_batch_size=4", {"lora.yml": LORA})
    assert (made.meaning.global_batch, made.meaning.origins["micro_batch"]) == (128, "line")
    winner, files, _ = changed(made, micro_batch=8)
    assert winner == f"{AXOLOTL} --micro_batch_size=8" and files["gradient_accumulation_steps"] == 2 and "micro_batch_size" not in files


def test_a_placeholder_of_the_user_is_kept(job) -> None:
    line = f"{AXOLOTL} --micro_batch_size='{{micro_batch=4:2,4}}' --gradient_accumulation_steps='{{num_microbatches}}'"
    made = job(line, {"lora.yml": LORA}, settings=["batch.global_batch=64"])
    assert made.problem.space["micro_batch"].choices == (2, 4) and made.problem.baseline.micro_batch == 4


@pytest.mark.parametrize(
    ("line", "files", "batch", "settings"),
    [
        ("composer -n 8 train/train.py mpt.yaml", {"mpt.yaml": FOUNDRY}, 256, {"micro_batch": 16, "zero_stage": 3, "recompute": "none"}),
        ("torchrun --nproc-per-node 8 train.py mpt.yaml device_train_microbatch_size=4", {"mpt.yaml": FOUNDRY}, 256, {"micro_batch": 4}),
        (
            "tune run --nproc_per_node 8 full_finetune_distributed --config c.yaml",
            {"c.yaml": TUNE},
            64,
            {"micro_batch": 2, "zero_stage": 3},
        ),
        ("tune run --nproc_per_node 8 full_finetune_distributed --config c.yaml batch_size=4", {"c.yaml": TUNE}, 128, {"micro_batch": 4}),
        (f"tune run --nproc_per_node 8 lora_finetune_distributed --config llama3/8B_lora {OF_TUNE}", {}, 64, {"micro_batch": 4}),
        ("torchrun --nproc-per-node 8 -m litgpt pretrain --config t.yaml", {"t.yaml": LITGPT}, 64, {"micro_batch": 4, "dp": 8}),
        ("torchrun --nproc-per-node 8 run_train.py --config-file=n.yaml", {"n.yaml": NANOTRON}, 24, {"dp": 4, "tp": 2, "micro_batch": 3}),
    ],
)
def test_the_present_configuration_is_that_of_the_line_and_its_file(line, files, batch, settings, job) -> None:
    made = job(line, files)
    assert (made.meaning.devices.count, made.meaning.global_batch) == (8, batch)
    assert settings.items() <= made.meaning.settings.items()
    assert made.problem.baseline is not None and len(made.problem.space["micro_batch"].choices) > 1


@pytest.mark.parametrize(
    ("name", "lines", "steps"),
    [
        ("litgpt", OF_LITGPT, [("1", None), ("2", None)]),
        ("llm-foundry", OF_COMPOSER, [("1", None), ("2", None)]),
        ("torchtune", OF_TORCHTUNE, [("1", "6.277275085449219"), ("31", "5.934576988220215")]),
    ],
)
def test_the_steps_are_those_that_the_program_prints(name, lines, steps) -> None:
    declared = keyed_programs()[name].steps
    pattern = declared.get("pattern") or formats()[declared["format"]]["pattern"]
    found = [re.search(pattern, line) for line in lines]
    assert [(each["step"], each.groupdict().get("loss")) for each in found if each] == steps


def test_the_devices_of_litgpt_are_its_own_or_those_of_a_launcher(job) -> None:
    assert job("litgpt pretrain --devices 4 --config t.yaml", {"t.yaml": LITGPT}).meaning.devices.count == 4
    with pytest.raises(InputError, match="`--devices 4` are 4 ranks, and the launcher starts 8"):
        job("torchrun --nproc-per-node 8 -m litgpt pretrain --devices 4 --config t.yaml")
    with pytest.raises(InputError, match="may start ranks of its own") as refused:  # by default all GPUs of the host
        job("python -m litgpt pretrain --config t.yaml")
    assert "state `--devices 8` in the line" in refused.value.hint


def test_a_trial_of_litgpt_and_of_llm_foundry_neither_evaluates_nor_saves(job) -> None:
    _, files, _ = changed(job("litgpt pretrain --devices 4 --config t.yaml", {"t.yaml": LITGPT}), micro_batch=8)
    assert {"eval.interval": 10**9, "train.save_interval": 10**9, "eval.initial_validation": False}.items() <= files.items()
    _, files, _ = changed(job("composer -n 8 train.py mpt.yaml", {"mpt.yaml": FOUNDRY}), micro_batch=8)
    assert {"eval_first": False, "eval_interval": "1000000000ba", "save_interval": "1000000000ba"}.items() <= files.items()


@pytest.mark.parametrize(("stated", "off"), [("evals_per_epoch: 4", 0), ("eval_steps: 50", 0), ("eval_strategy: epoch", "")])
def test_a_trial_of_axolotl_neither_evaluates_nor_saves(stated, off, job, tmp_path) -> None:
    made = job(AXOLOTL, {"lora.yml": f"{LORA}val_set_size: 0.1\nsaves_per_epoch: 1\n{stated}\n"})
    files, name = changed(made, micro_batch=8)[1], stated.partition(":")[0]
    assert {"save_strategy": "no", "saves_per_epoch": 0, name: off}.items() <= files.items()
    assert [key for key in files if key.startswith("eval")] == [name] and "save_steps" not in files
    each = next(each for each in made.problem.candidates() if each.micro_batch == 8)
    text = write_files(made, each, tmp_path / "best")[0].read_text()
    assert f"saves_per_epoch: 1\n{stated}\n" in text and "save_strategy" not in text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("litgpt pretrain --devices 4 --config t.yaml", LITGPT),
        ("litgpt pretrain --devices 4 --config t.yaml", LITGPT.replace("out_dir: out/pretrain", "")),
        ("litgpt pretrain --devices 4 --config t.yaml --out_dir out/mine", LITGPT),
    ],
)
def test_only_trials_of_litgpt_write_into_their_own_folder(line, text, job, tmp_path) -> None:
    made = job(line, {"t.yaml": text})
    winner, files, trial = changed(made, micro_batch=8)
    written = [*map(str, files.values()), *trial]
    assert [each for each in written if each.endswith("writes/out_dir")] and not [each for each in trial if each == "out/mine"]
    each = next(each for each in made.problem.candidates() if each.micro_batch == 8)
    assert winner == line and "writes" not in write_files(made, each, tmp_path / "best")[0].read_text()


def test_what_a_table_that_is_not_stated_would_turn_on_does_not_vary(job) -> None:
    """LLM-Foundry shards the model if the file has any key of `fsdp_config`."""
    made = job("composer -n 8 train.py mpt.yaml", {"mpt.yaml": re.sub("fsdp_config.*", "", FOUNDRY)})
    assert "recompute" not in made.meaning.choices and not [key for key in changed(made, micro_batch=8)[1] if key.startswith("fsdp_config")]


def test_defaults_do_not_stand_for_a_file_that_is_not_here(job) -> None:
    with pytest.raises(InputError, match="nothing in this launch line may vary: it is understood as torchtune") as refused:
        job("tune run --nproc_per_node 8 lora_finetune_distributed --config llama3/70B_lora batch_size=4")
    assert "state `gradient_accumulation_steps=...`" in refused.value.hint and "state `tensor_parallel_dim=...`" in refused.value.hint
    with pytest.raises(InputError, match="understood as axolotl"):
        job(AXOLOTL, settings=['command.paths."lora.yml"=read'])


def test_references_in_a_file_are_followed_and_its_model_is_predicted(job) -> None:
    made = job("composer -n 8 train.py mpt.yaml", {"mpt.yaml": FOUNDRY})
    model = made.problem.stated_model
    assert made.meaning.origins["precision"] == made.meaning.model_origin == "mpt.yaml"
    assert (model.layers, model.hidden, model.ffn, model.vocab, model.seq_len, model.tied) == (12, 768, 3072, 50368, 2048, True)


def test_a_micro_batch_that_the_program_chooses_is_named(job) -> None:
    made = job("composer -n 8 train.py mpt.yaml device_train_microbatch_size=auto", {"mpt.yaml": FOUNDRY})
    assert made.meaning.hints == ("state a number as `device_train_microbatch_size`, so that the micro-batch may vary: it is `auto`",)


def test_a_file_of_nanotron_states_every_degree(job) -> None:
    made = job("torchrun --nproc-per-node 8 run_train.py --config-file n.yaml", {"n.yaml": NANOTRON})
    _, files, trial = changed(made, tp=4, micro_batch=1)
    stated = {"parallelism.dp": 2, "parallelism.tp": 4, "tokens.micro_batch_size": 1, "tokens.batch_accumulation_per_replica": 12}
    assert stated.items() <= files.items() and trial[-2:] == ["--config-file", "COPY"]
    with pytest.raises(InputError, match=r"`parallelism\.dp: 4` times the other degrees is 8 ranks, and the launch line starts 4"):
        job("torchrun --nproc-per-node 4 run_train.py --config-file n.yaml", {"n.yaml": NANOTRON})


def test_tensor_parallelism_divides_the_key_and_value_heads_that_a_file_states(job) -> None:
    made = job("torchrun --nproc-per-node 8 run_train.py --config-file n.yaml", {"n.yaml": NANOTRON})
    assert {each.tp for each in made.problem.candidates()} == {1, 2, 4}
    fewer = job("torchrun --nproc-per-node 8 run_train.py --config-file n.yaml", {"n.yaml": NANOTRON.replace("heads: 4", "heads: 2")})
    assert {each.tp for each in fewer.problem.candidates()} == {1, 2}


def test_trials_of_nanotron_save_no_checkpoint_and_keep_what_its_tables_require(job, tmp_path) -> None:
    saved = NANOTRON.replace("checkpoints_path: checkpoints", "checkpoints_path: checkpoints, checkpoint_interval: 10")
    files = {"n.yaml": f"{saved}s3_upload: {{upload_s3_path: 's3://b/c', remove_after_upload: true}}\n"}
    made = job("torchrun --nproc-per-node 8 run_train.py --config-file n.yaml", files)
    keys = {"checkpoint_interval": 10**9, "save_initial_state": False, "save_final_state": False}
    assert {f"checkpoints.{key}": value for key, value in keys.items()}.items() <= changed(made, micro_batch=1)[1].items()
    assert {kind for name, kind in made.meaning.paths.items() if name.startswith("s3_upload")} == {"disable"}
    each = next(each for each in made.problem.candidates() if each.micro_batch == 1)
    text = write_files(made, each, tmp_path / "best")[0].read_text()
    assert "checkpoint_interval: 10\n" in text and "save_final_state" not in text


def test_a_program_of_the_same_name_without_the_marks_is_another_one(job) -> None:
    made = job(
        "torchrun --nproc-per-node 8 train.py c.yaml --bs '{bs=2:2,4}'", {"c.yaml": "lr: 1\n"}, settings=['command.paths."c.yaml"=read']
    )
    assert made.meaning.framework == "plain"


def test_ranks_of_composer_on_other_hosts_are_refused(job) -> None:
    with pytest.raises(InputError, match="`composer` starts 8 of 16 ranks") as refused:
        job("composer -n 8 --world_size 16 --node_rank 0 train.py mpt.yaml", {"mpt.yaml": FOUNDRY})
    assert "torchrun --nnodes 2 --nproc-per-node 8 train.py" in refused.value.hint


@pytest.mark.parametrize("name", keyed_programs())
def test_a_declared_program_has_a_key_of_its_micro_batch_and_of_its_batch(name) -> None:
    program = keyed_programs()[name]
    assert "micro_batch" in program.keys and {"global_batch", "accumulate"} & {*program.keys}
    assert program.form or program.file
    assert {key for assignments in program.choices.values() for each in assignments.values() for key in each}.isdisjoint(
        program.keys.values()
    )


@pytest.mark.parametrize("key", ["activation_checkpointing", "fsdp_activation_checkpointing"])
def test_the_recomputation_of_fsdp_varies_in_place_of_that_of_axolotl(key, job) -> None:
    """Transformers refuses both at once."""
    file = LORA.replace("gradient_checkpointing: true", "gradient_checkpointing: false")
    made = job(AXOLOTL, {"lora.yml": f"{file}fsdp_version: 2\nfsdp_config: {{reshard_after_forward: true, {key}: true}}\n"})
    assert (made.problem.baseline.recompute, made.meaning.origins["recompute"]) == ("full", "lora.yml")
    files = changed(made, recompute="none")[1]
    assert files[f"fsdp_config.{key}"] is False and "gradient_checkpointing" not in files
    assert changed(job(AXOLOTL, {"lora.yml": LORA}), recompute="none")[1]["gradient_checkpointing"] is False


@pytest.mark.parametrize(
    ("key", "held", "varied"),
    [("optimizer_in_bwd", "micro_batch", "recompute"), ("enable_activation_offloading", "recompute", "micro_batch")],
)
def test_torchtune_keeps_what_another_key_requires(key, held, varied, job) -> None:
    """It refuses accumulation with the optimizer in the backward pass, and offloaded activations that are not recomputed."""
    line, file = "tune run --nproc_per_node 8 full_finetune_distributed --config c.yaml", TUNE.replace("steps: 4", "steps: 1")
    made = job(line, {"c.yaml": f"{file}{key}: true\n"})
    assert made.problem.space[held].choices == (made.problem.baseline[held],) and len(made.problem.space[varied].choices) > 1
    assert any(f"stays as it is: `{key}` requires it" in note for note in made.notes)
    assert len(job(line, {"c.yaml": f"{file}{key}: false\n"}).problem.space[held].choices) > 1


@pytest.mark.parametrize(
    ("program", "devices", "recompute"),
    [("finetune_full", 4, "full"), ("finetune", 4, "full"), ("finetune_full", 1, "none"), ("pretrain", 4, "none")],
)
def test_finetuning_with_litgpt_recomputes_layers_on_several_devices(program, devices, recompute, job) -> None:
    """Source: litgpt/finetune/full.py (0.5), `activation_checkpointing_policy`."""
    baseline = job(f"litgpt {program} --devices {devices} --config t.yaml", {"t.yaml": LITGPT}).problem.baseline
    assert baseline.recompute == recompute
