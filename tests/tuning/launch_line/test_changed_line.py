"""The user's own line for another configuration: the same words in the same order, the changed ones marked."""

import json

import pytest

from oppa.tuning.launch_line.changed_line import ChangedLine, changed_line
from oppa.tuning.launch_line.line_job import LineJob
from oppa.tuning.launch_line.winner_files import write_files

TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4 --gradient-accumulation-steps=4 --output_dir out"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
MEGATRON = (
    f"{CONNECTIONS}=1 torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 "
    "--seq-length 256 --max-position-embeddings 256 --micro-batch-size 2 --global-batch-size 32 --use-distributed-optimizer "
    "--sequence-parallel --tensor-model-parallel-size 2"
)
CHUNKS = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2"


def changed(made: LineJob, **values) -> ChangedLine:
    problem = made.problem
    for each in problem.candidates():
        if all(each[name] == value for name, value in values.items()):
            others = [name for name in each.names if name not in {*values, "dp"} and each[name] != problem.baseline[name]]
            if not others:
                return changed_line(made, each)
    raise AssertionError("no such candidate")


def test_the_present_configuration_changes_nothing(job) -> None:
    made = job(MEGATRON)
    found = changed_line(made, made.problem.baseline)
    assert found.line == MEGATRON.split() and not found.changes


def test_an_option_of_trials_that_the_line_lacks_is_in_the_line_of_a_winner(job) -> None:
    without = MEGATRON.replace("--sequence-parallel ", "")
    made = job(without)
    assert [note for note in made.notes if note.startswith("trials have `--sequence-parallel`, which the line lacks")]
    assert changed_line(made, made.problem.baseline).line == without.split()
    assert "--sequence-parallel" in changed(made, micro_batch=4).line
    assert "--sequence-parallel" not in changed(made, tp=1).line
    assert not [note for note in job(MEGATRON).notes if "sequence-parallel" in note]


def test_values_change_in_their_place_and_in_the_users_spelling(job) -> None:
    found = changed(job(TRAINER), micro_batch=2)
    assert " ".join(found.line) == TRAINER.replace("size 4", "size 2").replace("steps=4", "steps=8")
    assert [word.text for word in found.words if word.mark] == ["2", "--gradient-accumulation-steps=8"]
    assert [(each.old, each.new) for each in found.changes] == [("4", "2"), ("4", "8")]


def test_a_new_option_is_added_and_an_old_one_removed(job) -> None:
    made = job(MEGATRON)
    added = changed(made, recompute="full")
    assert added.line[-6:] == ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    removed = changed(made, zero_stage=0)
    assert "--use-distributed-optimizer" not in removed.line
    assert [word.text for word in removed.words if word.mark == "removed"] == ["--use-distributed-optimizer"]


@pytest.mark.parametrize(
    ("words", "values", "gone", "added"),
    [
        ("--recompute-activations", {"recompute": "none"}, "--recompute-activations", ""),
        (
            "--recompute-activations",
            {"recompute": "full"},
            "--recompute-activations",
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        ),
        ("--recompute-activations", {"micro_batch": 1}, "", ""),
        (CHUNKS, {"model_chunks": 4, "schedule": "interleaved"}, CHUNKS[-41:], "--num-virtual-stages-per-pipeline-rank 4"),
        (CHUNKS, {"model_chunks": 1, "schedule": "1f1b"}, CHUNKS[-41:], ""),
    ],
)
def test_an_option_in_the_users_words_is_replaced_if_its_parameter_changes(words, values, gone, added, job) -> None:
    found = changed(job(f"{MEGATRON} {words}"), **values)
    assert " ".join(word.text for word in found.words if word.mark == "removed") == gone
    assert " ".join(word.text for word in found.words if word.mark == "added") == added
    assert bool(found.changes)


def test_an_option_without_effect_is_removed_where_it_would_have_one(job) -> None:
    found = changed(job(MEGATRON.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 8")), tp=4, zero_stage=0)
    assert [(each.about, each.old, each.new) for each in found.changes] == [
        ("--tensor-model-parallel-size", "8", "4"),
        ("--use-distributed-optimizer", "on", ""),
    ]


def test_a_default_that_would_change_is_stated(job) -> None:
    found = changed(job(MEGATRON.replace("--global-batch-size 32 ", "")), micro_batch=1)
    assert " ".join(found.line).endswith("--tensor-model-parallel-size 2 --global-batch-size 8")


def test_an_option_is_added_in_front_of_a_subcommand(job) -> None:
    line = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_8b activation_checkpoint:full"
    found = changed(job(line), compile=True)
    assert found.line == [*line.split()[:-1], "--compile.enable", "activation_checkpoint:full"]


@pytest.mark.parametrize(
    ("script", "recompute", "begins"),
    [
        (f"{MEGATRON} $@", "full", "sh run.sh --recompute-granularity full"),
        (f"{MEGATRON}", "full", f"env {CONNECTIONS}=1 torchrun --nproc-per-node 8 pretrain_gpt.py"),
        (f"export A=1\n{MEGATRON} --recompute-activations $@", "none", f"env A=1 {CONNECTIONS}=1 torchrun --nproc-per-node 8"),
    ],
)
def test_a_script_is_written_out_if_an_appended_word_cannot_state_the_change(script, recompute, begins, job) -> None:
    line = " ".join(changed(job("sh run.sh", {"run.sh": f"{script}\n"}), recompute=recompute).line)
    assert line.startswith(begins) and "--recompute-activations" not in line


def test_placeholders_are_filled_in(job) -> None:
    found = changed(job("torchrun train.py --batch {b=2:2,4} --workers {w=0:0,1}"), b=4)
    assert " ".join(found.line) == "torchrun train.py --batch 4 --workers 0"
    assert [(each.about, each.old, each.new) for each in found.changes] == [("b", "2", "4")]


def test_keys_of_files_are_among_the_changes(job) -> None:
    file = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    made = job(f"{TRAINER} --deepspeed ds.json", {"ds.json": json.dumps(file)})
    found = changed(made, zero_stage=3)
    assert [(each.about, each.old, each.new) for each in found.changes] == [("ds.json: zero_optimization.stage", "2", "3")]


def test_json_has_the_words_and_the_changes_without_secrets(job) -> None:
    values = changed(job(TRAINER), micro_batch=2).to_dict()
    assert values["words"][0] == "torchrun" and values["changes"][0]["new"] == "2"


def test_the_file_of_the_winner_is_the_users_own_with_its_keys(job, tmp_path) -> None:
    file = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "wall_clock_breakdown": False, "train_batch_size": "auto"}
    made = job(f"{TRAINER} --deepspeed ds.json", {"ds.json": json.dumps(file)})
    best = next(each for each in made.problem.candidates() if each.zero_stage == 3)
    (path,) = write_files(made, best, tmp_path / "best")
    assert json.loads(path.read_text()) == {**file, "zero_optimization": {"stage": 3, "overlap_comm": True}}
    assert json.loads((tmp_path / "ds.json").read_text()) == file


def test_what_only_trials_need_is_not_in_the_file_of_the_winner(job, tmp_path) -> None:
    made = job("torchrun --nproc-per-node 8 train.py --deepspeed --deepspeed_config ds.json", {"ds.json": '{"train_batch_size": 64}'})
    best = next(each for each in made.problem.candidates() if each.zero_stage == 1)
    (path,) = write_files(made, best, tmp_path / "best")
    assert json.loads(path.read_text()) == {"train_batch_size": 64, "zero_optimization": {"stage": 1}}


def test_placeholders_and_files_change_together(job) -> None:
    file = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
    line = "accelerate launch --config_file c.yaml --num_processes 8 t.py --batch {micro_batch=2:1,2,4}"
    made = job(line, {"c.yaml": file}, settings=["batch.global_batch=64"])
    assert (made.problem.baseline.micro_batch, made.problem.baseline.zero_stage) == (2, 3)
    found = changed(made, micro_batch=4, zero_stage=2)
    assert found.line == line.replace("{micro_batch=2:1,2,4}", "4").split()
    assert {each.about: (each.old, each.new) for each in found.changes} == {
        "micro_batch": ("2", "4"),
        "c.yaml: fsdp_config.fsdp_reshard_after_forward": ("true", "false"),
    }


def test_what_trials_alone_set_in_files_is_no_change(job) -> None:
    file = {"train_micro_batch_size_per_gpu": "auto", "tensorboard": {"enabled": True, "output_path": "/x"}}
    own = job(f"{TRAINER} --deepspeed ds.json", {"ds.json": json.dumps(file)})
    assert "tensorboard.output_path" in own.problem.command.files[0].trial_keys
    trainer = "python train.py fit --trainer.devices 8 --trainer.strategy ddp --data.batch_size 16 --config c.yaml"
    read_only = job(trainer, {"c.yaml": "trainer:\n  default_root_dir: /x\n"})
    assert read_only.problem.command.files and not read_only.meaning.files
    for made in (own, read_only):
        assert not changed_line(made, made.problem.baseline).changes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun --nproc-per-node 2 train.py", "BATCH_SIZE=16 torchrun --nproc-per-node 2 train.py"),
        ("BATCH_SIZE=4 torchrun --nproc-per-node 2 train.py", "BATCH_SIZE=16 torchrun --nproc-per-node 2 train.py"),
        ("env -u A B=1 torchrun --nproc-per-node 2 train.py", "env -u A BATCH_SIZE=16 B=1 torchrun --nproc-per-node 2 train.py"),
    ],
)
def test_a_variable_stands_in_front_of_the_program(line, expected, job) -> None:
    made = job(line, settings=['space.parameters.bs={values=[4,8,16],env="BATCH_SIZE"}'])
    found = changed_line(made, next(each for each in made.problem.candidates() if each["bs"] == 16))
    assert " ".join(found.line) == expected
    present = "4" if line.startswith("BATCH_SIZE=4") else ""
    assert [(each.about, each.old, each.new) for each in found.changes] == [("BATCH_SIZE", present, "16")]


@pytest.mark.parametrize(
    ("own", "exported", "sizes", "expected"),
    [
        ("", "", (2, 4), f"{CONNECTIONS}=1"),
        ("", "", (1, 2), f"{CONNECTIONS}=1"),
        ("", "", (2, 1), "torchrun"),
        ("", "8", (2, 4), "torchrun"),
        (f"{CONNECTIONS}=8 ", "", (2, 4), f"{CONNECTIONS}=8"),
    ],
)
def test_a_variable_that_megatron_requires_is_set_unless_the_user_has_set_it(own, exported, sizes, expected, job, monkeypatch) -> None:
    monkeypatch.setenv(CONNECTIONS, exported)
    line = MEGATRON.replace(f"{CONNECTIONS}=1 ", own).removesuffix("2") + str(sizes[0])
    assert changed(job(line), tp=sizes[1]).line[0] == expected
