"""`oppa tune -- LAUNCH LINE`, without a job file."""

import json
import sys
from pathlib import Path

import pytest

from oppa import catalog
from oppa.cli.job_options import settings_of
from tests.tuning.launch_line.examples import FSDP, LLAMA, MEGATRON, RUN_TRAIN

PROGRAM = """
import argparse, os, time

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--sleep", type=float)
given = parser.parse_args()
assert os.environ["WORLD_SIZE"] == "2"
for step in range(500):
    time.sleep(given.sleep * 8 / given.batch)
    if os.environ["RANK"] == "0":
        print(f"step {step} | loss 1.0 | {8e3 * given.sleep / given.batch:.3f} ms", flush=True)
"""
TRAINER = """
import dataclasses, time, torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclasses.dataclass
class Own:
    model_name_or_path: str = "m"
    block_size: int = 16

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (own.block_size,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}

own, given = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(own.model_name_or_path))
model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
Trainer(model=model, args=given, train_dataset=Data()).train()
"""
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
LIMITS = ["--set", "limits.device_lock=false", "--set", "limits.q_min=3", "--set", "limits.q_max=5"]


@pytest.fixture
def program(oppa):
    """The command line, in a folder with programs and no job file."""
    (oppa.folder / "job.toml").unlink()
    (oppa.folder / "train.py").write_text(PROGRAM)
    return oppa


def test_a_dry_run_prints_values_with_origins_and_what_varies(program) -> None:
    (program.folder / "run_train.sh").write_text(RUN_TRAIN)
    (program.folder / "llama3_8b.toml").write_text(LLAMA)
    line = ["CONFIG_FILE=llama3_8b.toml", "NGPU=8", "./run_train.sh", "--parallelism.tensor_parallel_degree", "2"]
    printed = program("tune", "--dry-run", "--", *line).stdout
    assert "torchtitan" in printed and "llama3_8b.toml and the registry" in printed
    assert "conflict  parallelism.tensor_parallel_degree: 2 (line) counts, not 1 (llama3_8b.toml)" in printed
    assert "added     --metrics.log_freq 1: trials report every step" in printed and "varies" in printed
    assert "first  dp4_tp2" in printed and ", the baseline" in printed
    assert not (program.folder / "studies").exists()


@pytest.mark.slow
def test_a_line_for_a_cluster_has_a_plan_elsewhere(program) -> None:
    printed = program("tune", "--dry-run", "--", *MEGATRON.split()).stdout
    assert "512 GPU on 64 hosts" in printed and "GPU-hours" in printed
    assert "kept      srun --container-image=mcore.sqsh" in printed
    assert f"mounted   --container-mounts of trials has {catalog.client()}" in printed
    assert "runs   not here: the launch line starts a step on 64 hosts" in printed
    assert "--set cluster.device=H100" in printed


def test_json_of_a_dry_run_has_what_was_understood(program) -> None:
    (program.folder / "fsdp.yaml").write_text(FSDP)
    (program.folder / "sft.py").touch()
    line = ["accelerate", "launch", "--config_file", "fsdp.yaml", "sft.py"]
    found = json.loads(program("tune", "--dry-run", "--json", "--", *line).stdout)["understood"]
    assert found["framework"] == "accelerate" and found["varies"]["zero_stage"] == [2, 3]
    assert {"name": "zero_stage", "value": "3", "origin": "fsdp.yaml"} in found["values"]
    assert "own batch argument is unknown" in found["hints"][0]


def test_a_model_that_only_the_program_knows_is_stated_by_an_option(program) -> None:
    line = ["--set", "batch.global_batch=8", "--", TORCHRUN, "train.py", "--batch", "{micro_batch=2:1,2,4}"]
    assert "prior  none" in program("tune", "--dry-run", *line).stdout
    model = "layers=2,hidden=64,heads=4,ffn=128,vocab=64,seq_len=16"
    assert "speed " in program("tune", "--dry-run", "--model", model, *line).stdout


def test_a_plan_names_the_configurations_that_end_the_search_before_its_trials(program) -> None:
    line = ["--", TORCHRUN, "--nproc-per-node", "2", "train.py", "--batch", "{b=1:1,2,8}"]
    assert "budget 3 valid configurations, in at most 24 trials" in program("tune", "--dry-run", *line).stdout
    assert "budget 2 trials\n" in program("tune", "--dry-run", "--trials", "2", *line).stdout


@pytest.mark.nightly
def test_a_model_of_transformers_is_traced(program) -> None:
    line = ["--set", "batch.global_batch=8", "--", TORCHRUN, "train.py", "--batch", "{micro_batch=2:1,2,4}"]
    (program.folder / "config.json").write_text(json.dumps(CONFIG))
    assert "model  traced" in program("tune", "--dry-run", "--model", "config.json,seq_len=16", *line).stdout


@pytest.mark.parametrize("command", [["space"], ["predict"], ["explain", "micro_batch=2"]])
def test_other_commands_take_a_line_without_a_job_file(command, program) -> None:
    model = "layers=2,hidden=64,heads=4,ffn=128,vocab=64,seq_len=16"
    line = ["--set", "batch.global_batch=8", "--", TORCHRUN, "train.py", "--batch", "{micro_batch=2:1,2,4}"]
    done = program(*command, "--model", model, *line)
    assert "a program of your own" in done.stderr and done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tune"], "there is neither a job file nor a launch line"),
        (["tune", "--", "torchrun", "train.py"], "nothing in this launch line may vary"),
        (["tune", "--", "torchrun", "train.py", "{micro_batch=1:1,2}"], "the global batch is not stated"),
        (["tune", "--trials", "2", "python3", "train.py", "--bs", "4"], "`oppa tune --trials 2 -- python3 train.py --bs 4`"),
        (["tune", "--bs", "4"], "`oppa tune` has no option `--bs`"),
        (["tune", "--studdy", "sort"], "`oppa tune` has no option `--studdy`"),
        (["tune", "--", "deepspeed", "--include", "a:0@b:0", "t.py"], "cannot be ended surely"),
        (["tune", "--model", "--", "torchrun", "train.py"], "option `--model` requires an argument"),
        (["tune", "--set", "cluster=3", "--", "torchrun", "train.py", "{a=1:1,2}"], "`cluster = 3` is not a table"),
        (["tune", "no.toml", "--", "torchrun", "train.py"], "no.toml"),
        (["tune", "--dry-run", "--", "python", "no.py", "{a=1:1,2}"], "starts `no.py`, which does not exist"),
    ],
)
def test_bad_input_is_refused(words, message, program) -> None:
    assert message in program(*words, code=2).stderr


@pytest.mark.slow
def test_a_plain_script_is_tuned_and_its_line_is_printed(program) -> None:
    line = [TORCHRUN, "--nproc-per-node", "2", "train.py", "--batch", "{b=1:1,8}", "--sleep", "0.005"]
    done = program("tune", "--json", "--study", "s", "--trials", "2", *LIMITS, "--", *line)
    found = json.loads(done.stdout)
    assert found["launch_line"]["words"][-4:] == ["--batch", "8", "--sleep", "0.005"]
    assert found["launch_line"]["changes"] == [{"about": "b", "old": "1", "new": "8"}]
    assert "your line" in done.stderr and "1 -> 8" in done.stderr
    again = (program.folder / "s" / "job.toml").read_text()
    assert "{b=1:1,8}" in again and again.startswith("# Made by oppa from a launch line")


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_trainer_of_transformers_is_tuned_without_a_job_file(program) -> None:
    pytest.importorskip("transformers")
    (program.folder / "m").mkdir()
    (program.folder / "m" / "config.json").write_text(json.dumps(CONFIG))
    (program.folder / "hf.py").write_text(TRAINER)
    line = f"{TORCHRUN} --nproc-per-node 2 hf.py --model_name_or_path m --block_size 16 --output_dir out --max_steps 200".split()
    line += ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "8", "--use_cpu", "true", "--report_to", "none"]
    settled = {"dataloader_num_workers": "0", "dp_bucket_mb": "25", "recompute": '"none"', "micro_batch": "[1, 8]"}
    few = [word for name, value in settled.items() for word in ("--set", f"space.parameters.{name}={value}")]
    done = program("tune", "--json", "--study", "s", "--trials", "2", *LIMITS, *few, "--", *line)
    found = json.loads(done.stdout)
    assert found["baseline"]["configuration"]["micro_batch"] == 1
    best = found["best"]["configuration"]["micro_batch"]
    assert best == 8
    changes = {each["about"]: each["new"] for each in found["launch_line"]["changes"]}
    assert changes == {"--per_device_train_batch_size": str(best), "--gradient_accumulation_steps": str(8 // best)}


def test_options_that_are_short_for_settings_come_before_these_and_may_be_repeated() -> None:
    named = {"launcher.name": "slurm", "train.advise": False, "train.samples": None}
    settings = settings_of(["model.heads=8"], ["layers=2,hidden=64", "heads=4"], named)
    assert settings == ["model.layers=2", "model.hidden=64", "model.heads=4", "launcher.name=slurm", "train.advise=false", "model.heads=8"]
    assert settings_of(None, None) == [] and settings_of((), ["a/config.json"]) == [f"model.config={Path('a/config.json').absolute()}"]
