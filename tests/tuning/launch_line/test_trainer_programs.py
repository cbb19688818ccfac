"""The defaults and names of programs that read the Trainer's arguments in their own way are known."""

import shlex
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.tuning.launch_line.understand import understand
from tests.tuning.launch_line.conftest import CPUS

BATCH = "--per_device_train_batch_size 2 --output_dir out"
RECIPE = "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\noutput_dir: out\nbf16: true\n"
LORA = "base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\noutput_dir: out\nbf16: auto\n"
LAUNCHER = "torchrun --nproc-per-node 8 -m llamafactory.launcher sft.yaml"


@pytest.mark.parametrize(
    ("line", "files", "recompute", "precision"),
    [
        (f"accelerate launch --num_processes 8 -m trl.scripts.sft {BATCH}", {}, "full", "bf16"),
        (f"accelerate launch --num_processes 8 -m trl.scripts.sft {BATCH} --gradient_checkpointing false --bf16 false", {}, None, ""),
        (LAUNCHER, {"sft.yaml": RECIPE}, "full", "bf16"),
        (LAUNCHER, {"sft.yaml": f"{RECIPE}disable_gradient_checkpointing: true\n"}, "none", "bf16"),
        (f"torchrun --nproc-per-node 8 -m swift.cli.sft {BATCH}", {}, "full", "bf16"),
        (f"torchrun --nproc-per-node 8 -m swift.cli.sft {BATCH} --torch_dtype float16 --gradient_checkpointing false", {}, "none", "fp16"),
        (f"torchrun --nproc-per-node 8 train/internvl_chat_finetune.py {BATCH} --bf16 True", {}, "full", "bf16"),
        (f"torchrun --nproc-per-node 8 train/internvl_chat_finetune.py {BATCH} --grad_checkpoint False", {}, "none", "fp32"),
        (f"torchrun --nproc-per-node 8 -m my.train {BATCH} --grad_checkpoint True", {}, "none", "fp32"),
    ],
)
def test_a_known_program_has_its_own_defaults(line, files, recompute, precision, job) -> None:
    meaning = job(line, files).meaning
    assert (meaning.settings.get("recompute"), meaning.precision) == (recompute, precision)


@pytest.mark.parametrize("name", ["SFT", "AsyncGRPO", "Distillation", "ServerDistillation", "GOLD", "TPO", "SDFT", "A2PO", "IWOPD"])
def test_arguments_of_each_trainer_of_trl_have_its_defaults(name, job) -> None:
    script = f"from trl import {name}Config, {name}Trainer, TrlParser\nTrlParser(({name}Config,))\n"
    meaning = job(f"torchrun --nproc-per-node 8 own.py {BATCH}", {"own.py": script}).meaning
    assert (meaning.settings["recompute"], meaning.precision) == ("full", "bf16")


@pytest.mark.parametrize(
    "name",
    ["dataset_dir", "media_dir", "eval_dataset", "ref_model", "reward_model", "reward_model_name_or_path", "teacher_model_name_or_path"],
)
def test_folders_that_known_programs_only_read_stay(name, job) -> None:
    recipe = {"sft.yaml": f"{RECIPE}{name}: /data/x\n"}
    (file,) = job(LAUNCHER, recipe).problem.command.files
    assert name not in file.trial_keys
    assert f"--{name} /data/x" in shlex.join(job(f"torchrun --nproc-per-node 8 t.py {BATCH} --{name} /data/x").problem.command.argv)


def test_a_folder_that_llama_factory_reads_or_writes_is_left_to_the_user(job) -> None:
    with pytest.raises(InputError, match="`tokenized_path /data/x` looks like a path"):
        job(LAUNCHER, {"sft.yaml": f"{RECIPE}tokenized_path: /data/x\n"})


@pytest.mark.parametrize(("words", "precision"), [("", "fp16"), ("--fp16 false", "fp32"), ("--fp16 false --bf16 true", "bf16")])
def test_a_type_of_ms_swift_decides_the_precision_unless_switches_do(words, precision, job) -> None:
    meaning = job(f"torchrun --nproc-per-node 8 -m swift.cli.sft {BATCH} --torch_dtype float32 {words}").meaning
    assert (meaning.precision, meaning.origins["precision"]) == (precision, "line")


@pytest.mark.parametrize(
    ("config", "words", "precision", "origin"),
    [
        ('{"torch_dtype": "float16"}', "", "fp16", "m/config.json"),
        ('{"dtype": "float32"}', "", "fp16", "m/config.json"),
        ('{"text_config": {"torch_dtype": "bfloat16"}}', "", "bf16", "m/config.json"),
        ('{"torch_dtype": "float16"}', "--torch_dtype bfloat16", "bf16", "line"),
        ('{"torch_dtype": "float16"}', "--bf16 true --fp16 false", "bf16", "line"),
        ('{"model_type": "llama"}', "", "bf16", "default of ms-swift"),
    ],
)
def test_the_precision_of_ms_swift_is_that_of_the_models_config_if_nothing_states_one(config, words, precision, origin, job) -> None:
    """Source: ModelArguments._init_torch_dtype and _init_mixed_precision (ms-swift 4)."""
    meaning = job(f"torchrun --nproc-per-node 8 -m swift.cli.sft --model m {BATCH} {words}", {"m/config.json": config}).meaning
    assert (meaning.precision, meaning.origins["precision"]) == (precision, origin)
    assert any("`--torch_dtype bfloat16`" in hint for hint in meaning.hints) is (origin == "default of ms-swift")


@pytest.mark.parametrize(("keys", "precision"), [("pure_bf16: true", "bf16"), ("pure_bf16: false", "fp32"), ("fp16: true", "fp16")])
def test_pure_bf16_is_a_precision_of_llama_factory(keys, precision, job) -> None:
    meaning = job(LAUNCHER, {"sft.yaml": RECIPE.replace("bf16: true", keys)}).meaning
    assert (meaning.precision, meaning.origins.get("precision", "")) == (precision, "sft.yaml" if "true" in keys else "")


@pytest.mark.parametrize("optimizer", ["paged_adamw_8bit", "adafactor"])
def test_an_optimizer_in_a_sole_file_of_arguments_is_noted_as_no_parameter_holds_it(optimizer, job) -> None:
    meaning = job(LAUNCHER, {"sft.yaml": f"{RECIPE}finetuning_type: full\noptim: {optimizer}\n"}).meaning
    notes = (*meaning.unpredicted, *meaning.overestimated)
    assert "optim" not in meaning.choices and [note for note in notes if f"`{optimizer}`" in note]


@pytest.mark.parametrize(("keys", "count"), [("", 1), ("optim: adamw_8bit\n", 2), ("finetuning_type: lora\n", 0)])
def test_pure_bf16_of_all_weights_needs_less_memory_than_predicted(keys, count, job) -> None:
    full = "" if "finetuning_type" in keys else "finetuning_type: full\n"
    meaning = job(LAUNCHER, {"sft.yaml": f"{RECIPE.replace('bf16', 'pure_bf16')}{full}{keys}"}).meaning
    assert len(meaning.overestimated) == count and all("less memory is needed" in note for note in meaning.overestimated)


def test_ms_swift_accumulates_16_sequences_if_nothing_states_how_many() -> None:
    def batch(words: str) -> int | None:
        line = f"torchrun --nproc-per-node 4 -m swift.cli.sft --model m --output_dir out {words}"
        return understand(shlex.split(line), environment={}, machine=CPUS)[1].global_batch

    assert batch("--per_device_train_batch_size 2") == 16
    assert batch("--per_device_train_batch_size 3") == 24
    assert batch("--per_device_train_batch_size 2 --gradient_accumulation_steps 5") == 40


def test_trials_state_recomputation_by_the_name_that_the_program_reads(job) -> None:
    made = job(f"torchrun --nproc-per-node 8 internvl_chat_finetune.py {BATCH} --grad_checkpoint True", {"internvl_chat_finetune.py": ""})
    assert made.meaning.arguments["recompute"] == {"none": ["--grad_checkpoint", "false"], "full": ["--grad_checkpoint", "true"]}
    assert "--grad_checkpoint" not in made.command.argv
    in_file = job(LAUNCHER, {"sft.yaml": RECIPE}).meaning.files[0]
    assert in_file.keys["disable_gradient_checkpointing"] == {"recompute": {"none": True, "full": False}}


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (f"{LAUNCHER} learning_rate=1e-5", "takes arguments after `sft.yaml` as `key=value`", "write them into `sft.yaml`"),
        (
            f"torchrun --nproc-per-node 8 -m swift.cli.sft {BATCH} --deepspeed zero3",
            "`--deepspeed zero3` names a file in the package of ms-swift",
            "copy `swift/config/zero3.json` into this folder",
        ),
    ],
)
def test_what_trials_could_not_change_is_refused(line, message, hint, job) -> None:
    with pytest.raises(InputError, match=message) as refused:
        job(line, {"sft.yaml": RECIPE})
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("condition", "choices", "present"),
    [("with context:", ("full",), "full"), ("if training_args.gradient_checkpointing:", ("none", "full"), "none")],
)
def test_recomputation_that_the_program_turns_on_by_itself_stays(condition, choices, present, job) -> None:
    source = f"from transformers import Trainer\ndef train():\n    {condition}\n        model.gradient_checkpointing_enable()\n"
    for words in ("--deepspeed ds.json", ""):
        made = job(f"torchrun --nproc-per-node 8 own.py {BATCH} {words}", {"own.py": source, "ds.json": "{}"})
        assert (made.problem.space["recompute"].choices, made.meaning.settings["recompute"]) == (choices, present)


def test_a_script_that_only_calls_a_local_module_is_read_with_it(job) -> None:
    files = {
        "llava/train/train_mem.py": "from llava.train.train import train\ntrain()\n",
        "llava/train/train.py": "import transformers\nparser = transformers.HfArgumentParser(())\n",
        "ds.json": "{}",
    }
    line = f"deepspeed llava/train/train_mem.py {BATCH} --deepspeed ds.json"
    assert job(line, files).meaning.framework == "transformers"
    Path("llava/train/train.py").write_text("parser = argparse.ArgumentParser()\nloss.backward()\n")
    assert understand(shlex.split(line), environment={}, machine=CPUS)[1].framework == "deepspeed"


def test_a_program_with_some_of_the_trainer_s_names_is_not_taken_for_the_trainer(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for program, source in (("dpo.py", "olmo_core.train import TrainerConfig"), ("own.py", "axolotl.train import train")):
        (tmp_path / program).write_text(f"from {source}\nArgumentParserPlus(())\n")
        assert understand(shlex.split(f"torchrun {program} {BATCH}"), environment={}, machine=CPUS)[1].framework == "plain"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("torchrun train.py --device-batch-size=16", "name it: `--device-batch-size='{micro_batch=16:8,16,32}'`"),
        (
            "torchrun train.py data.train_batch_size=64 data.micro_batch_size_per_gpu=4",
            "`data.micro_batch_size_per_gpu='{micro_batch=4:2,4,8}'`",
        ),
        ("torchrun train.py --eval_batch_size 8 -b 3 --batch-size 1", "`--batch-size '{micro_batch=1:1,2}'`"),
        (
            "deepspeed --module x.sft --train.batch_size 9 --train.micro_batch_size 2",
            "`--train.micro_batch_size '{micro_batch=2:1,2,4}'`",
        ),
        (
            "torchrun --nproc-per-node 8 t.py --batch_size_training 4 --gradient_accumulation_steps 2",
            "'{micro_batch=4:2,4,8}' --gradient_accumulation_steps '{num_microbatches}'`, with `--set batch.global_batch=64`",
        ),
        ("sh -c 'torchrun train.py --bs 4'", "in the launch line itself, in place of its script: `--bs '{micro_batch=4:2,4,8}'`"),
    ],
)
def test_a_hint_names_the_argument_that_may_be_the_batch_with_its_present_value(line, hint, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    hints = understand(shlex.split(line), environment={"HF_HOME": str(tmp_path)}, machine=CPUS)[1].hints
    assert len(hints) == 1 and hint in hints[0]


NANOGPT = """
gradient_accumulation_steps = 40
ddp_world_size = int(os.environ["WORLD_SIZE"])
assert gradient_accumulation_steps % ddp_world_size == 0
gradient_accumulation_steps //= ddp_world_size
"""


def test_a_program_that_divides_its_accumulation_by_the_ranks_states_that_of_all_ranks(job) -> None:
    words = "torchrun --nproc-per-node 8 train.py --batch_size={} --gradient_accumulation_steps={}"
    with pytest.raises(InputError) as raised:
        job(words.format(12, 40), {"train.py": NANOGPT})
    assert "--gradient_accumulation_steps='{total_microbatches}'`, with `--set batch.global_batch=480`" in raised.value.hint
    for placeholder, is_noted in (("num_microbatches", True), ("total_microbatches", False)):
        line = words.format("{micro_batch=12:6,12}", f"{{{placeholder}}}")
        made = job(line, {"train.py": NANOGPT}, settings=["batch.global_batch=480"])
        assert any("divides its accumulation by the ranks" in note for note in made.notes) is is_noted
