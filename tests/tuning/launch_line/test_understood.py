"""Recognition by evidence, and refusals: rather not understood than wrong."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.problem.job import load_job
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.line_job import load_line
from oppa.tuning.launch_line.understand import understand
from tests.tuning.launch_line.conftest import CPUS, GPUS

CASES = sorted((Path(__file__).parents[2] / "published" / "launch_lines").glob("*.toml"))
OPTIONS = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 --bf16"
MEGATRON = f"torchrun --nproc-per-node 8 pretrain_gpt.py {OPTIONS} --micro-batch-size 2 --global-batch-size 32"
TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4 --output_dir out"
LIGHTNING = "python train.py fit --trainer.devices 8 --trainer.strategy ddp --data.batch_size 16"
REFUSED_THOUGH_VALID = {"deepspeed_zero3_offload_heredoc"}
"""Lines that are refused, because a script writes the file that the program reads."""


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_a_published_line_is_understood_or_refused_and_never_wrong(file, tmp_path, monkeypatch) -> None:
    case = tomllib.loads(file.read_text())
    expected = case["expected"]
    monkeypatch.chdir(tmp_path)
    for name, text in case.get("files", {}).items():
        (tmp_path / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name.lstrip("/")).write_text(text)
    try:
        _, found = understand(shlex.split(case["line"]), environment=case.get("environment", {}), machine=CPUS)
    except InputError:
        assert "refused" in expected or file.stem in REFUSED_THOUGH_VALID
        return
    assert found.framework == expected["framework"]
    assert expected.get("devices", found.devices.count) == found.devices.count
    assert expected.get("global_batch", found.global_batch) == found.global_batch
    assert {**found.settings, **expected.get("baseline", {})} == dict(found.settings)
    assert {**found.model, **expected.get("model", {})} == dict(found.model)


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        (MEGATRON, "megatron"),
        ("torchrun run_recipe.py --recipe r train.global_batch_size=8 model.tensor_model_parallel_size=2", "megatron-bridge"),
        (TRAINER, "transformers"),
        (LIGHTNING, "lightning"),
        ("torchrun train.py --batch {b=2:1,2}", "plain"),
        ("python train.py --micro-batch-size 4 --hidden-size 3", "plain"),
        ("torchrun train.py --output_dir out --lr 3", "plain"),
        ("torchrun bert.py --hidden-size 8 --num-attention-heads 2 --max-position-embeddings 8 --micro-batch-size 1", "plain"),
        (f"{TRAINER.replace('train.py', 'run_clm_no_trainer.py')} --gradient_accumulation_steps 2", "plain"),
        ("python train.py --tensor-model-parallel-size 4 --output_dir out --deepspeed_port 3", "plain"),
        (f"accelerate launch {TRAINER.partition('8 ')[2]} --deepspeed_config ds.json", "accelerate"),
        ("python nemo.py model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=2", "plain"),
    ],
)
def test_a_framework_is_recognised_by_its_marks(line, framework) -> None:
    assert understand(shlex.split(line), environment={}, machine=CPUS)[1].framework == framework


def test_the_imports_of_a_program_are_marks(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "from transformers import HfArgumentParser, Trainer, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
    (tmp_path / "own.py").write_text(text)
    found = understand(["torchrun", "own.py", "--lr", "1"], environment={}, machine=CPUS)[1]
    assert (found.framework, found.settings["micro_batch"], found.origins["micro_batch"]) == ("transformers", 8, "default of Transformers")


def test_megatron_s_latent_attention_is_read_with_its_defaults() -> None:
    line = f"{MEGATRON} --multi-latent-attention --kv-channels 64 --q-lora-rank 96 --qk-head-dim 48 --vocab-size 1000"
    model = understand(shlex.split(line), environment={}, machine=CPUS)[1].model
    expected = {"head_dim": 48 + 64, "q_lora_rank": 96, "kv_lora_rank": 32, "qk_rope_head_dim": 64, "v_head_dim": 128}
    assert {**model, **expected} == dict(model)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{MEGATRON} --per_device_train_batch_size 4 --output_dir out", "marks of Megatron-LM .* and of Transformers"),
        (f"{MEGATRON} --deepspeed --deepspeed_config ds.json --trainer.strategy=ddp", "marks of Megatron-DeepSpeed .* and of LightningCLI"),
        (f"{MEGATRON} --per_device_train_batch_size 4", "marks of Megatron-LM .* and of Transformers"),
        (f"{MEGATRON} --trainer.strategy=ddp", "marks of Megatron-LM .* and of LightningCLI"),
        (f"{TRAINER} --trainer.strategy ddp", "marks of Transformers .* and of LightningCLI"),
        (f"{TRAINER} --parallelism.tensor_parallel_degree=2", "marks of torchtitan .* and of Transformers"),
        (f"{TRAINER} train.micro_batch_size=2", "marks of Transformers .* and of Megatron-Bridge"),
        (
            "python pretrain_gpt.py --tensor-model-parallel-size 8 --per-device-train-batch-size 4",
            r"marks of Megatron-LM \(--tensor-model-parallel-size\) and of Transformers Trainer \(--per-device-train-batch-size\)",
        ),
        ("accelerate launch x.py --tensor-model-parallel-size 8", "marks of accelerate .* and of Megatron-LM"),
        (f"{MEGATRON} --micro-batch-size 4", "contradicts itself"),
        (f"{MEGATRON} --fp16", "contradicts itself: `--bf16` and `--fp16`"),
        (f"{TRAINER} --bf16 --fp16", "contradicts itself"),
        (f"{TRAINER} --gradient_checkpointing true --gradient_checkpointing false", "`gradient_checkpointing` is `true` .* and `false`"),
        (f"{TRAINER} --fsdp full_shard --deepspeed ds.json", "refuses `--fsdp` with `--deepspeed`"),
        (f"{TRAINER} --fsdp --deepspeed ds.json", "refuses `--fsdp` with `--deepspeed`"),
        (f"{MEGATRON} --tensor-model-parallel-size 16", "needs 16 ranks, and the launch line starts 8"),
        (f"{TRAINER} --gradient_acc 4", "`--gradient_acc` .line. may abbreviate `--gradient_accumulation_steps`"),
        (f"{MEGATRON} --tensor-model-parallel-size two", "`--tensor-model-parallel-size two` .* is not a number"),
        (f"{MEGATRON} --tensor-model-parallel-size 0", "`--tensor-model-parallel-size 0` .* is less than 1"),
        ("torchrun --nproc-per-node 0 train.py", "`--nproc-per-node 0` .* is less than 1"),
        ("torchrun --nnodes 1:4 train.py", "elastic"),
        ("torchrun --nproc-per-node many train.py", "is not a number"),
        ("srun -n 7 -N 2 python train.py", "7 tasks do not divide over 2 hosts"),
        ("torchrun train.py --workers {w=1}", "has one value"),
        ("accelerate launch --config_file no.yaml train.py", "cannot be read"),
        ("torchrun train.py --deepspeed --deepspeed_config no.json", "cannot be read"),
    ],
)
def test_a_line_that_has_no_one_meaning_is_refused(line, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        understand(shlex.split(line), environment={}, machine=CPUS)


LAYERS_30 = MEGATRON.replace("--num-layers 8", "--num-layers 30")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            f"{LAYERS_30} --pipeline-model-parallel-size 4",
            "`--num-layers 30` (line) is not a multiple of pp 4",
            "all stages hold equally many layers: use a multiple of 4",
        ),
        (
            f"{MEGATRON} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            "`--num-layers 8` (line) is not a multiple of pp 2 x --num-layers-per-virtual-pipeline-stage 3 = 6",
            "use a multiple of 6",
        ),
        (
            MEGATRON.replace("--micro-batch-size 2 --global-batch-size 32", "--micro-batch-size 4 --global-batch-size 8"),
            "`--global-batch-size 8` (line) is not a multiple of micro_batch 4 x dp 8 = 32",
            "whole micro-batches of the global batch: use a multiple of 32",
        ),
        (
            MEGATRON.replace("--num-attention-heads 8", "--num-attention-heads 4") + " --tensor-model-parallel-size 8",
            "`--num-attention-heads 4` (line) is not a multiple of tp 8",
            "equally many attention heads",
        ),
        (f"{MEGATRON} --num-experts 6 --expert-model-parallel-size 4", "`--num-experts 6` (line) is not a multiple of ep 4", "experts"),
        (
            f"{MEGATRON} --expert-model-parallel-size 2",
            "`--expert-model-parallel-size 2` (line) needs `--num-experts`",
            "state the experts",
        ),
    ],
)
def test_options_that_break_a_rule_of_megatron_are_refused_with_the_rule(line, message, hint) -> None:
    with pytest.raises(InputError) as refused:
        understand(shlex.split(line), environment={}, machine=CPUS)
    assert message in refused.value.message and hint in refused.value.hint


@pytest.mark.parametrize(
    "line",
    [
        f"{LAYERS_30} --pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
        f"{LAYERS_30} --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6",
        f"{MEGATRON.replace('batch-size 32', 'batch-size 8')} --decrease-batch-size-if-needed",
        f"{MEGATRON} --expert-model-parallel-size 1",
    ],
)
def test_a_rule_of_megatron_has_its_exceptions(line) -> None:
    assert understand(shlex.split(line), environment={}, machine=CPUS)[1].framework == "megatron"


def test_a_present_configuration_that_is_no_candidate_has_the_rule_that_it_breaks(job) -> None:
    grouped = "--num-attention-heads 24 --group-query-attention --num-query-groups 6"
    made = job(f"{MEGATRON.replace('--num-attention-heads 8', grouped).replace('512', '768')} --tensor-model-parallel-size 4")
    assert made.problem.baseline is None
    rule = "share each one: `kv_heads % tp == 0 or tp % kv_heads == 0`, here kv_heads = 6, tp = 4"
    assert any(rule in note for note in made.notes)


@pytest.mark.parametrize(("hosts", "dp"), [(1, 4), (2, 8)])
def test_the_present_configuration_is_the_baseline_on_as_many_hosts_as_the_user_states(hosts, dp, job) -> None:
    made = job(f"{MEGATRON} --tensor-model-parallel-size 2", settings=[f"cluster.hosts={hosts}"])
    assert made.problem.baseline is not None and (made.problem.baseline.tp, made.problem.baseline.dp) == (2, dp)


def test_several_tensor_parallel_ranks_may_share_a_key_and_value_head(job) -> None:
    grouped = MEGATRON.replace("--bf16", "--bf16 --group-query-attention --num-query-groups 4")
    made = job(f"{grouped} --tensor-model-parallel-size 8")
    assert made.problem.baseline is not None and made.problem.baseline.tp == 8
    assert {each.tp for each in made.problem.candidates()} == {1, 2, 4, 8}


@pytest.mark.parametrize(("hosts", "bucket"), [(4, 153), (8, 256)])
def test_the_present_bucket_grows_with_the_replicas_as_megatron_has_it(hosts, bucket, job) -> None:
    line = MEGATRON.replace("torchrun", f"torchrun --nnodes {hosts}").replace("batch-size 32", "batch-size 1024")
    made = job(f"{line} --overlap-grad-reduce")
    assert made.problem.baseline is not None and made.problem.baseline.dp_bucket_mb == bucket
    command = made.problem.launch_line(made.problem.baseline)
    words = command.words(values_outside_trials(made.problem, made.problem.baseline), {})
    assert words[words.index("--ddp-bucket-size") + 1] == str(bucket * 2**18)


@pytest.mark.parametrize("line", ["torchrun train.py", "python train.py --lr 1", "accelerate launch --num_processes 2 train.py"])
def test_a_line_in_which_nothing_may_vary_is_refused_with_the_way_to_name_it(line, job) -> None:
    with pytest.raises(InputError, match="nothing in this launch line may vary") as refused:
        job(line)
    assert "{micro_batch" in refused.value.hint


@pytest.mark.parametrize(("machine", "settings", "noted"), [(CPUS, (), True), (CPUS, ["cluster.device=H100"], False), (GPUS, (), False)])
def test_ranks_that_are_taken_for_cpus_are_noted(machine, settings, noted, job) -> None:
    made = job("torchrun --nproc-per-node 2 train.py '{batch=1:1,2}'", machine=machine, settings=settings)
    assert any("this machine has no GPU: 2 CPUs are assumed" in note for note in made.notes) is noted


def test_ranks_of_context_parallelism_count_where_a_recipe_s_degrees_vary(job) -> None:
    degrees = "model.tensor_model_parallel_size=2 model.context_parallel_size=2"
    made = job(f"torchrun --nproc-per-node 8 run_recipe.py --recipe r {degrees} train.global_batch_size=16 train.micro_batch_size=1")
    assert made.problem.baseline is not None and (made.problem.baseline.dp, made.problem.baseline["cp"]) == (2, 2)
    assert {each.dp * each.tp * each["cp"] for each in made.problem.candidates()} == {8}


def test_what_a_script_does_not_state_is_named(job) -> None:
    script = f"torchrun --nproc-per-node 8 pretrain_gpt.py {OPTIONS} --micro-batch-size 2 --global-batch-size 32 --data-path $DATA\n"
    with pytest.raises(InputError, match=r"needs `\$DATA`, which nothing here states"):
        job("sh run.sh", {"run.sh": script})
    assert "/d" in job("DATA=/d sh run.sh").problem.command.argv


@pytest.mark.parametrize("line", [MEGATRON, TRAINER, LIGHTNING])
def test_the_job_that_a_line_amounts_to_loads_as_a_file(line, job, tmp_path) -> None:
    made = job(line)
    (tmp_path / "job.toml").write_text(made.text)
    again = load_job(tmp_path / "job.toml")
    assert again.fingerprint == made.problem.fingerprint and again.baseline == made.problem.baseline


def test_a_local_configuration_of_transformers_gives_the_model(job) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
    made = job(f"{TRAINER} --model_name_or_path m --block_size 128", {"m/config.json": json.dumps(config)})
    assert (made.problem.model.layers, made.problem.model.seq_len) == (2, 128)


def test_the_environment_and_the_wrappers_of_a_line_are_kept(job) -> None:
    made = job(f"NCCL_DEBUG=INFO numactl -l {TRAINER}")
    assert made.problem.command.argv[:5] == ("env", "NCCL_DEBUG=INFO", "numactl", "-l", "torchrun")


def test_on_several_hosts_oppa_sets_the_rendezvous(job) -> None:
    made = job(TRAINER.replace("8 train", "8 --nnodes 2 --node_rank $R --master_addr=$M train"), machine=CPUS)
    assert made.problem.cluster.hosts == 2
    assert not {"--nnodes", "--node_rank"} & set(made.problem.command.argv)


def test_accelerate_on_several_hosts_gets_the_rank_of_each(job) -> None:
    files = {"c.yaml": "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 16\nmachine_rank: 0\nmain_process_ip: a\n"}
    made = job(f"accelerate launch --config_file c.yaml {TRAINER.partition('8 ')[2]}", files)
    sh, option, script, name, *rest = made.problem.command.argv
    assert (sh, option, name, rest[:2]) == ("sh", "-c", "accelerate", ["--config_file", "c.yaml"])
    assert script.startswith('exec "$0" launch --machine_rank "$PET_NODE_RANK"') and script.endswith('"$@"')


def test_a_container_keeps_the_step_and_its_rendezvous(job) -> None:
    made = job(f"srun -N2 --container-image=i.sqsh {TRAINER.replace('8 ', '8 --nnodes 2 --rdzv-endpoint a:1 ', 1)}", machine=CPUS)
    assert made.problem.launcher.name == "srun" and made.problem.cluster.hosts == 2
    assert "--rdzv-endpoint" in made.problem.command.argv
    assert job(f"srun -N2 {TRAINER}", machine=CPUS).problem.command.argv[0] == "torchrun"


def test_a_batch_script_states_what_oppa_requests(job) -> None:
    script = f"#!/bin/bash\n#SBATCH --nodes=2 --partition=gpu\n#SBATCH --gres=gpu:h100:8\nsrun {TRAINER}\n"
    made = job("sbatch --account=a run.sh", {"run.sh": script}, machine=CPUS)
    assert made.problem.launcher.name == "slurm"
    assert made.problem.launcher.options == {"partition": "gpu", "account": "a", "gpus-per-node": "h100:8"}
    assert (made.problem.cluster.device, made.problem.cluster.devices) == ("H100", 16)


def test_a_study_continues_with_its_own_job(job, tmp_path) -> None:
    made = job(TRAINER)
    made.store(tmp_path)
    (tmp_path / "job.toml").write_text(made.text.replace("trials = 24", "trials = 5"))
    assert load_line(shlex.split(TRAINER), machine=CPUS, study=tmp_path).problem.limits.trials == 5
    assert load_line([*shlex.split(TRAINER), "--seed", "1"], machine=CPUS, study=tmp_path).problem.limits.trials == 24


def test_a_plain_program_that_can_be_read_shows_what_could_be_named(job) -> None:
    with pytest.raises(InputError) as refused:
        job("torchrun train.py", {"train.py": 'parser.add_argument("--lr")\nparser.add_argument("--batch-size", type=int)\n'})
    assert "`train.py` has `--batch-size`" in refused.value.hint and "--lr" not in refused.value.hint


def test_a_secret_of_the_environment_reaches_no_file(job) -> None:
    script = f"export WANDB_API_KEY=$WANDB_API_KEY\nexport A=$B\n{TRAINER}\n"
    made = job("sh run.sh", {"run.sh": script}, environment={"WANDB_API_KEY": "0123456789abcdef0123", "B": "1"})
    assert "0123456789abcdef0123" not in made.text and "A=1" in made.problem.command.argv
    with pytest.raises(InputError, match=r"\$HF_TOKEN"):
        job("sh run.sh", {"run.sh": f"{TRAINER} --note $HF_TOKEN\n"}, environment={"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx"})


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#SBATCH -N 2-4\nsrun TRAINER", "is a range"),
        ("#SBATCH -N 4\nsrun -N 2 torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 train.py", "has 2 hosts"),
    ],
)
def test_a_number_of_hosts_that_is_not_one_is_refused(script, message, job) -> None:
    with pytest.raises(InputError, match=message):
        job("sbatch run.sh", {"run.sh": script.replace("TRAINER", TRAINER)}, machine=CPUS)


@pytest.mark.parametrize(
    ("option", "machine", "strategies"),
    [
        ("--trainer.accelerator cpu", GPUS, {"ddp"}),
        ("", CPUS, {"ddp"}),
        ("", GPUS, {"ddp", "fsdp", "fsdp-shard-grad-op"}),
        ("--trainer.accelerator gpu", CPUS, {"ddp", "fsdp", "fsdp-shard-grad-op"}),
    ],
)
def test_lightning_shards_on_gpus_alone(option, machine, strategies, job) -> None:
    made = job(f"{LIGHTNING} {option}", machine=machine)
    assert {each["strategy"] for each in made.problem.candidates()} == strategies


@pytest.mark.parametrize(
    ("words", "stage"),
    [
        ("--fsdp", 3),
        ("--fsdp full_shard", 3),
        ("""--fsdp --fsdp_config '{"reshard_after_forward": false}'""", 2),
        ("--fsdp --fsdp_config fsdp.json", 2),
        ("--fsdp --fsdp_config missing.json", 3),
        ("", 0),
    ],
)
def test_the_trainers_fsdp_keeps_the_weights_where_its_configuration_states_it(words, stage, job) -> None:
    made = job(f"{TRAINER} {words}", {"fsdp.json": '{"reshard_after_forward": false}'})
    assert made.problem.baseline.zero_stage == stage


def test_a_strategy_with_arguments_stays_as_the_file_has_it(job) -> None:
    line = "python train.py fit --trainer.devices 8 --data.batch_size 16 --config run.yaml"
    text = "trainer: {strategy: {class_path: lightning.pytorch.strategies.FSDPStrategy, init_args: {cpu_offload: true}}}\n"
    made = job(line, {"run.yaml": text})
    assert "strategy" not in made.problem.space.names
    assert not any("strategy" in word for word in made.problem.command.argv)


@pytest.mark.parametrize("line", ["torchrun --nproc-per-node 8 own.py", "accelerate launch --num_processes 8 own.py"])
def test_a_loop_of_ones_own_with_the_trainers_names_gets_none_of_its_arguments(line, job) -> None:
    option = 'parser = argparse.ArgumentParser()\nparser.add_argument("--per_device_train_batch_size", type=int)\n'
    for script in (option, f"{option}class OwnTrainer: pass\n"):
        files = {"own.py": f"import argparse\nfrom accelerate import Accelerator\n{script}"}
        made = job(f"{line} --per_device_train_batch_size 4 --output_dir out --x '{{x=1:1,2}}'", files)
        assert "--logging_steps" not in made.problem.command.argv and made.meaning.framework != "transformers"
