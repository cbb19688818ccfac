"""No trial of a program whose settings are keys writes, loads or resumes what is the user's, whatever the program's defaults are."""

import pytest

from oppa.errors import InputError
from tests.tuning.launch_line.keyed_examples import (
    AXOLOTL,
    FOUNDRY,
    LITGPT,
    LORA,
    NANOTRON,
    NEMO,
    NEMO_RUN,
    OF_TUNE,
    SWIFT,
    TUNE,
    changed,
)

COMPOSER = "composer -n 8 train/train.py mpt.yaml"
TUNE_RUN = "tune run --nproc_per_node 8 full_finetune_distributed --config c.yaml"
FOLDER = "{folder}/writes"


def of_trial(made) -> tuple[list[str], dict[str, object]]:
    """Return the words of a trial, and the keys of its file, as templates."""
    files = {key: value for file in made.problem.command.files for key, value in {**file.keys, **file.trial_keys}.items()}
    return list(made.problem.command.argv), files


def test_a_folder_that_only_the_program_knows_is_stated_in_the_line_of_trials_alone(job) -> None:
    own = LORA.replace("output_dir: ./outputs/out\ndataset_prepared_path: last_run_prepared\n", "")
    made = job(AXOLOTL, {"lora.yml": own})
    words, _ = of_trial(made)
    assert words[-2:] == [f"--output_dir={FOLDER}/output_dir", "--dataset_prepared_path={cache_folder}/dataset_prepared_path"]
    assert changed(made, micro_batch=4)[0] == AXOLOTL
    words, _ = of_trial(job(f"tune run --nproc_per_node 8 lora_finetune_distributed --config llama3/8B_lora {OF_TUNE}"))
    assert {f"output_dir={FOLDER}/output_dir", f"checkpointer.output_dir={FOLDER}/checkpointer.output_dir"} <= {*words}
    assert {"profiler.enabled=false", "resume_from_checkpoint=false"} <= {*words}


def test_nemo_logs_into_the_folder_of_a_trial_whatever_its_configuration_states(job) -> None:
    words, _ = of_trial(job(f"{NEMO} exp_manager.explicit_log_dir=/mine exp_manager.resume_from_checkpoint=/mine"))
    assert "exp_manager.explicit_log_dir=null" in words and not [word for word in words if "/mine" in word]
    line = f"{NEMO_RUN} log.ckpt.dirpath=/mine log.explicit_log_dir=/mine resume.resume_from_path=/mine log.tensorboard.save_dir=/mine"
    assert not [word for word in of_trial(job(line))[0] if "/mine" in word]


def test_ms_swift_resumes_nothing(job) -> None:
    words, _ = of_trial(job(f"{SWIFT} --mcore_model org/model --resume_from_checkpoint /mine --logging_dir /mine"))
    assert "org/model" in words and "/mine" not in words


def test_whole_tables_that_write_are_off(job) -> None:
    more = "loggers: {tensorboard: {log_dir: tb}, wandb: {}}\ncallbacks: {hf_checkpointer: {save_folder: a/b, save_interval: 1ba}}\n"
    _, keys = of_trial(job(COMPOSER, {"mpt.yaml": f"{FOUNDRY}{more}load_path: a/b\n"}))
    assert keys["loggers"] is None and keys["load_path"] is None and keys["save_folder"] == f"{FOLDER}/save_folder"
    assert keys["callbacks.hf_checkpointer.save_folder"].startswith(FOLDER)
    more = "s3_upload: {upload_s3_path: 's3://a/b'}\nprofiler: {profiler_export_path: a/b}\nlighteval: {a: b/c}\n"
    _, keys = of_trial(job("torchrun --nproc-per-node 8 run_train.py --config-file=n.yaml", {"n.yaml": NANOTRON + more}))
    assert (keys["s3_upload"], keys["profiler"], keys["lighteval"]) == (None, None, None)


def test_litgpt_does_not_resume_and_its_line_needs_no_file(job) -> None:
    _, keys = of_trial(job("torchrun --nproc-per-node 8 -m litgpt pretrain --config t.yaml", {"t.yaml": f"{LITGPT}resume: auto\n"}))
    assert keys["resume"] is False and keys["out_dir"] == f"{FOLDER}/out_dir"
    line = "litgpt pretrain pythia-14m --devices 4 --train.micro_batch_size 4 --train.global_batch_size 64"
    words, _ = of_trial(job(line))
    assert words[words.index("--out_dir") + 1] == f"{FOLDER}/out_dir" and "--resume" not in words
    words, _ = of_trial(job(f"{line} --resume auto"))
    assert words[words.index("--resume") + 1] == "false"


def test_a_file_of_deepspeed_that_a_configuration_names_is_examined(job) -> None:
    with pytest.raises(InputError, match=r"names `ds\.json` as `deepspeed`, and that file writes: `tensorboard\.enabled`"):
        job(AXOLOTL, {"lora.yml": f"{LORA}deepspeed: ds.json\n", "ds.json": '{"tensorboard": {"enabled": true}}'})
    job(AXOLOTL, {"lora.yml": f"{LORA}deepspeed: ds.json\n", "ds.json": '{"zero_optimization": {"stage": 1}}'})


def test_what_a_file_states_already_is_not_stated_again(job) -> None:
    made = job(TUNE_RUN, {"c.yaml": f"{TUNE}resume_from_checkpoint: false\n"})
    assert not [change for change in made.problem.command.originals.changes if change[0] == "resume_from_checkpoint"]
    assert "resume_from_checkpoint" not in made.meaning.files[0].keys
    _, keys = of_trial(job(TUNE_RUN, {"c.yaml": f"{TUNE}resume_from_checkpoint: true\n"}))
    assert keys["resume_from_checkpoint"] is False


def test_names_that_axolotl_only_reads_stay(job) -> None:
    more = "special_tokens: {eos_token: </s>}\nattn_implementation: kernels/flash\nllmcompressor: {save_compressed: true}\n"
    _, keys = of_trial(job(AXOLOTL, {"lora.yml": LORA + more}))
    assert not {"special_tokens.eos_token", "attn_implementation", "llmcompressor.save_compressed"} & {*keys}


def test_the_reference_model_of_torchtune_is_read_and_written_elsewhere(job) -> None:
    more = "ref_checkpointer: {checkpoint_dir: /m, output_dir: /mine, checkpoint_files: [a.safetensors]}\ndatasets: [{source: org/data}]\n"
    words, keys = of_trial(job("tune run --nproc_per_node 8 full_dpo_distributed --config c.yaml", {"c.yaml": TUNE + more}))
    assert keys["ref_checkpointer.output_dir"] == f"{FOLDER}/ref_checkpointer.output_dir" and "/mine" not in words
    assert not {"ref_checkpointer.checkpoint_dir", "ref_checkpointer.checkpoint_files", "datasets"} & {*keys}
