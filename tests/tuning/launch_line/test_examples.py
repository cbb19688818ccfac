"""The launch lines that are typed in practice, and what oppa makes of them."""

import json

import pytest

from oppa import catalog
from oppa.errors import InputError
from tests.tuning.launch_line.conftest import CPUS
from tests.tuning.launch_line.examples import FSDP, LLAMA, MEGATRON, RUN_TRAIN, TRAINER


def test_megatron_in_a_step_of_slurm_keeps_the_words_of_srun(job) -> None:
    made = job(MEGATRON, machine=CPUS)
    assert (made.meaning.framework, made.meaning.devices.count, made.meaning.global_batch) == ("megatron", 512, 1536)
    assert made.problem.baseline is not None
    assert (made.problem.baseline.tp, made.problem.baseline.pp, made.problem.baseline.dp) == (8, 4, 16)
    argv = made.problem.command.argv
    assert argv[:5] == ("srun", "-N64", "--ntasks-per-node=8", "--gpus-per-node=8", "--container-image=mcore.sqsh")
    assert "--train-iters" in argv and argv[argv.index("--exit-interval") + 1] == "{steps}"
    assert "--tensor-model-parallel-size" not in argv
    assert made.problem.launcher.name == "srun" and made.problem.limits.trials == 24
    assert any("generic GPU" in note for note in made.notes)


def test_what_trials_mount_into_a_container_is_understood(job, tmp_path) -> None:
    client, study = f"{catalog.client()} (oppa's client)", f"{tmp_path / 'studies'} (the study's folder)"
    assert job(MEGATRON, machine=CPUS).mounted == (f"--container-mounts of trials has {client} and {study}, too",)
    assert job(MEGATRON.replace("=/lustre", f"={tmp_path},{catalog.client()}"), machine=CPUS).mounted == ()


def test_the_binding_of_a_replaced_step_is_that_of_its_own_step_and_the_rest_is_named(job) -> None:
    words = "--account=acme --cpu-bind=cores --mem-bind=local --export=ALL,NCCL_DEBUG=INFO -A b --label"
    line = f"srun -N2 {words} torchrun --nnodes 2 --nproc-per-node 8 t.py --per_device_train_batch_size 4 --output_dir out"
    made = job(line)
    assert made.problem.launcher.name == "auto"
    assert made.problem.launcher.options == {"cpu-bind": "cores", "mem-bind": "local"}
    assert [note for note in made.notes if note.endswith("trials do not have its `--account=acme`, `-A=b`, `--label`")]
    assert "NCCL_DEBUG=INFO" in made.problem.command.argv
    assert job(line.replace("-N2", "-N2 --ntasks-per-node=2")).problem.launcher.options == {}


def test_trials_write_nothing_where_the_line_does(job) -> None:
    made = job(f"{MEGATRON} --tensorboard-dir /lustre/tb")
    argv, own = made.problem.command.argv, made.problem.restored.command.argv
    assert "--save" not in argv and "--tensorboard-dir" not in argv
    assert "--save" in own and "--tensorboard-dir" in own


def test_a_path_that_is_not_understood_is_refused_until_it_is_declared(job) -> None:
    with pytest.raises(InputError, match="`--own-dir /lustre/x` looks like a path") as refused:
        job(f"{MEGATRON} --own-dir /lustre/x")
    assert """--set 'command.paths."--own-dir"=redirect'""" in refused.value.hint
    assert "/lustre/x" in job(f"{MEGATRON} --own-dir /lustre/x", settings=['command.paths."--own-dir"=read']).problem.command.argv


def test_a_wrapper_of_torchtitan_is_file_registry_and_overrides(job) -> None:
    line = "CONFIG_FILE=llama3_8b.toml NGPU=8 ./run_train.sh --parallelism.tensor_parallel_degree 2"
    made = job(line, {"run_train.sh": RUN_TRAIN, "llama3_8b.toml": LLAMA})
    assert made.meaning.framework == "torchtitan"
    assert dict(made.meaning.model) | {"layers": 32, "hidden": 4096, "ffn": 14336, "seq_len": 8192} == dict(made.meaning.model)
    assert made.meaning.settings["tp"] == 2 and made.meaning.origins["tp"] == "line"
    assert made.meaning.origins["micro_batch"] == "llama3_8b.toml"
    assert made.meaning.conflicts[0].about == "parallelism.tensor_parallel_degree"
    assert made.meaning.conflicts[0].other == "1 (llama3_8b.toml)"
    assert made.problem.command.argv[-2:] == ("--metrics.log_freq", "1")
    assert made.problem.baseline is not None and made.problem.baseline.dp == 4


def test_accelerate_gets_a_copy_of_its_file_and_asks_for_the_batch(job) -> None:
    made = job("accelerate launch --config_file fsdp.yaml --num_processes 8 sft.py --model_name_or_path /m/llama", {"fsdp.yaml": FSDP})
    assert made.meaning.devices.count == 8  # the command line wins
    assert [(each.about, each.taken) for each in made.meaning.conflicts] == [("num_processes", "8 (line)")]
    assert "{accelerate}" in made.problem.command.argv
    assert made.problem.space["zero_stage"].choices == (2, 3)
    assert "`sft.py`'s own batch argument is unknown: name it `{micro_batch}`" in made.meaning.hints


def test_a_batch_that_is_named_in_braces_varies(job) -> None:
    line = "accelerate launch --config_file fsdp.yaml --num_processes 8 sft.py --batch {micro_batch=2:1,2,4}"
    made = job(line, {"fsdp.yaml": FSDP}, settings=["batch.global_batch=32"])
    assert made.problem.space["micro_batch"].choices == (1, 2, 4)
    assert not made.meaning.hints


@pytest.mark.parametrize(
    ("line", "files", "is_noted"),
    [
        ("torchrun --nproc-per-node 8 t.py --batch {micro_batch=2:1,2,4}", {}, True),
        ("torchrun --nproc-per-node 8 t.py --batch 2 --workers {workers=2:2,4}", {}, False),
        ("torchrun --nproc-per-node 8 t.py --batch {micro_batch=2:1,2,4} --accumulate {num_microbatches}", {}, False),
        ("torchrun --nproc-per-node 8 t.py --batch {batch_per_rank} --micro {micro_batch=2:1,2,4}", {}, False),
        ("torchrun --nproc-per-node 8 t.py --batch {global_batch} --micro {micro_batch=2:1,2,4}", {}, False),
        ("accelerate launch --config_file c.yaml --num_processes 8 t.py --batch {micro_batch=2:1,2}", {"c.yaml": FSDP}, True),
        (TRAINER, {"ds.json": "{}"}, False),
        (MEGATRON, {}, False),
    ],
)
def test_a_micro_batch_without_what_the_program_accumulates_is_noted(line, files, is_noted, job) -> None:
    made = job(line, files, settings=["batch.global_batch=64"] if "micro_batch" in line else [])
    found = [note for note in made.notes if "nothing in the line holds the batch" in note]
    assert bool(found) is is_noted
    assert all("unless the program itself accumulates 64 sequences" in note for note in found)


def test_deepspeed_over_ssh_is_refused_with_the_way_that_works(job) -> None:
    with pytest.raises(InputError, match="16 slots on 2 hosts by ssh") as refused:
        job("deepspeed --hostfile hosts --include a:0-7@b:0-7 train.py --deepspeed --deepspeed_config ds.json", {"ds.json": "{}"})
    assert "torchrun --nnodes 2 --nproc-per-node 8 train.py" in refused.value.hint
    with pytest.raises(InputError, match="8 slots on 2 hosts by ssh") as refused:
        job("deepspeed --num_nodes 2 --num_gpus 4 train.py --deepspeed", {})
    assert "torchrun --nnodes 2 --nproc-per-node 4 train.py" in refused.value.hint
    with pytest.raises(InputError, match="by ssh") as refused:
        job("deepspeed --num_nodes 2 --num_gpus 4 --module own.train --deepspeed", {})
    assert "--nproc-per-node 4 -m own.train" in refused.value.hint
    assert job(line := "deepspeed --hostfile h --num_gpus 2 t.py --deepspeed --b {b=1:1,2}", {"h": "a slots=4"}).meaning.devices.count == 2
    assert job(line.replace(" --num_gpus 2", "")).meaning.devices.count == 4
    assert job(line.replace("--num_gpus 2", "--num_nodes 1"), {"h": "a slots=3\nb slots=3"}).meaning.devices.count == 3
    with pytest.raises(InputError, match="the hostfile `hosts` of `deepspeed` is not on this machine") as refused:
        job("deepspeed --hostfile hosts train.py --deepspeed --deepspeed_config ds.json", {"ds.json": "{}"})
    assert "in an allocation of its hosts" in refused.value.hint


def test_a_batch_that_deepspeed_cannot_accumulate_is_refused(job) -> None:
    line = "torchrun --nproc-per-node 8 train.py --deepspeed --deepspeed_config ds.json --b {micro_batch=2:1,2}"
    with pytest.raises(InputError, match="`gradient_accumulation_steps = 0` is not a whole number"):
        job(line, {"ds.json": '{"train_batch_size": 64, "gradient_accumulation_steps": 0}'})
    assert job(line, {"ds.json": '{"train_micro_batch_size_per_gpu": 2}'}).meaning.global_batch == 16


def test_the_global_batch_of_the_trainer_is_held_and_conflicts_are_shown(job) -> None:
    file = {"train_micro_batch_size_per_gpu": 8, "train_batch_size": "auto", "zero_optimization": {"stage": 2}}
    made = job(TRAINER, {"ds.json": json.dumps(file)})
    assert (made.meaning.framework, made.problem.global_batch) == ("transformers", 128)
    assert [(each.about, each.other) for each in made.meaning.conflicts] == [("train_micro_batch_size_per_gpu", "8 (ds.json)")]
    assert made.problem.baseline is not None
    assert (made.problem.baseline.micro_batch, made.problem.baseline.zero_stage) == (4, 2)
    copy = made.problem.command.files[0].rewritten({"micro_batch": 2, "zero_stage": 3, "num_microbatches": 8, "global_batch": 128})
    assert copy == {"train_micro_batch_size_per_gpu": 2, "zero_optimization.stage": 3}
    assert all(each.num_microbatches * each.micro_batch * each.dp == 128 for each in made.problem.candidates())


def test_what_the_user_states_is_not_assumed(job) -> None:
    made = job(MEGATRON, machine=CPUS, settings=["cluster.device=A100-40GB", "model.vocab=50257"])
    assert not made.notes and made.problem.model.vocab == 50257
    assert made.problem.cluster.device == "A100-40GB" and made.problem.cluster.memory_limit_bytes < 2**36
    assert "# --set model.vocab=50257" in made.text


def test_a_stage_of_0_in_the_line_of_accelerate_is_the_stage_and_0_processes_are_refused(job) -> None:
    line = "accelerate launch --use_deepspeed --num_processes 8 --zero_stage 0 t.py --batch {micro_batch=2:1,2}"
    assert job(line, settings=["batch.global_batch=64"]).meaning.settings["zero_stage"] == 0
    with pytest.raises(InputError, match=r"`num_processes = 0` .* is less than 1"):
        job(line.replace("--num_processes 8", "--num_processes 0"))


def test_what_deepspeed_offloads_is_stated_by_the_file_of_accelerate(job) -> None:
    file = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n  offload_param_device: cpu\n"
    made = job(
        "accelerate launch --config_file c.yaml --num_processes 8 t.py --batch {micro_batch=2:1,2}",
        {"c.yaml": file},
        settings=["batch.global_batch=64"],
    )
    assert {made.meaning.origins[name] for name in ("zero_stage", "offload_optimizer", "offload_params")} == {"c.yaml"}


@pytest.mark.parametrize(
    ("line", "is_hinted"),
    [
        ("", True),
        ('print("done")', True),
        ('print(f"step {step} loss {loss}")', False),
        ('deepspeed.utils.logging.set_log_level_from_string("info")', False),
        ("for step in tqdm(loader): pass", False),
    ],
)
def test_a_program_of_deepspeed_that_prints_no_steps_is_hinted_at(line, is_hinted, job) -> None:
    source = f"import deepspeed\n{line}\ndeepspeed.initialize(args=args, training_data=data)\n"
    made = job("deepspeed --num_gpus 8 train.py --deepspeed_config ds.json", {"train.py": source, "ds.json": '{"train_batch_size": 64}'})
    assert any("set_log_level_from_string" in hint for hint in made.meaning.hints) is is_hinted
