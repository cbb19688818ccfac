"""The hosts and ranks that launchers start: counted where options state them, and otherwise not known."""

import shlex

import pytest

from oppa.errors import InputError
from oppa.tuning.launch_line.understand import understand
from tests.tuning.launch_line.conftest import CPUS, GPUS

BATCH = "--bs '{micro_batch=4:1,2,4}' --acc '{num_microbatches}'"
NODES = f"torchrun --nproc-per-node 8 --nnodes $NNODES --node_rank $NODE_RANK train.py {BATCH}\n"


def devices(line: str, **settings: int) -> tuple[int, int | None]:
    """Return the hosts, and the ranks on each."""
    found = understand(shlex.split(line), environment={}, settings={"cluster": settings}, machine=GPUS)[1].devices
    return found.hosts, found.per_host


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-np 16", (1, 16)),
        ("-np 16 -N 8", (2, 8)),
        ("-np 16 --hostfile hosts -npernode 8", (2, 8)),
        ("-np 16 --map-by ppr:8:node:PE=4", (2, 8)),
        ("-np 2 -pernode", (2, 1)),
        ("-np 16 -H a:8,b:8", (2, 8)),
        ("-np 16 --host a,b", (2, 8)),
        ("-H a:8,b:8", (2, 8)),
        ("-hosts a,b -ppn 4", (2, 4)),
        ("--mca btl tcp,self -x A=b -np 8", (1, 8)),
    ],
)
def test_options_of_mpirun_state_hosts_and_ranks(options, expected) -> None:
    assert devices(f"mpirun {options} python train.py {BATCH}") == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-np 8 -H a:8,b:8", "8 ranks do not fill 2 hosts of 8"),
        ("-np 12 -H a:8,b:4", "different numbers of ranks"),
        ("-np 9 -N 8", "9 ranks do not fill 2 hosts of 8"),
        ("-np 16 --hostfile hosts", "a file names them"),
    ],
)
def test_hosts_of_mpirun_that_its_options_do_not_state_are_not_guessed(options, message) -> None:
    with pytest.raises(InputError, match=message):
        devices(f"mpirun {options} python train.py {BATCH}")


def test_the_user_states_the_hosts_of_a_file_of_mpirun() -> None:
    assert devices(f"mpirun -np 16 --hostfile hosts python train.py {BATCH}", hosts=2) == (2, 8)


def test_a_number_of_hosts_that_nothing_states_is_asked_for(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(NODES)
    with pytest.raises(InputError, match=r"the number of hosts is not known, because nothing states `\$NNODES`") as refused:
        devices("bash run.sh")
    assert "--set cluster.hosts=2" in refused.value.hint
    assert devices("bash run.sh", hosts=4) == (4, 8)
    assert devices("NNODES=2 bash run.sh") == (2, 8)
    (tmp_path / "run.sh").write_text(f"#SBATCH --nodes=4\n{NODES.replace('NNODES', 'SLURM_NNODES')}")
    assert devices("bash run.sh") == (4, 8)
    (tmp_path / "run.sh").write_text(f"srun -N 3 {NODES.replace('$NNODES', '$COUNT')}")
    assert devices("bash run.sh") == (3, 8)


@pytest.mark.parametrize(
    "line",
    [
        "NPROC_PER_NODE=4 swift sft --per_device_train_batch_size 1 --output_dir out",
        f"horovodrun -np 8 train.py {BATCH}",
        f"python deepy.py train.py {BATCH}",
        f"./train {BATCH}",
        f"python train.py --devices 4 {BATCH}",
        f"python -m train --nproc-per-node=4 {BATCH}",
        f"python -m main_ppo trainer.n_gpus_per_node=8 {BATCH}",
    ],
)
def test_a_program_that_may_start_ranks_itself_is_not_taken_for_one_process(line) -> None:
    with pytest.raises(InputError, match="may start ranks of its own") as refused:
        devices(line)
    assert "launch line of torchrun or accelerate" in refused.value.hint
    assert devices(line, devices_per_host=4) == (1, 4)


def test_a_profiler_in_front_of_a_launcher_is_named() -> None:
    with pytest.raises(InputError, match="`nsys` profiles the program") as refused:
        devices("nsys profile -o report torchrun --nproc-per-node 8 train.py")
    assert refused.value.hint == "give the line without it and its options"


def test_a_program_whose_source_starts_ranks_is_not_taken_for_one_process(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start.py").write_text("import deepspeed.launcher.runner\ndeepspeed.launcher.runner.main()\n")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "main.py").write_text("from jobs.ranks import run\nrun()\n")
    (tmp_path / "jobs" / "ranks.py").write_text("def run():\n    torch.multiprocessing.spawn(train)\n")
    for program in ("start.py", "jobs/main.py", "-m jobs.main"):
        with pytest.raises(InputError, match="may start ranks of its own"):
            devices(f"python {program} {BATCH}")


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("NPROC_PER_NODE=4 swift sft --model m", "`torchrun --nproc-per-node 4 -m swift.cli.sft ...`"),
        ("NNODES=2 NPROC_PER_NODE=4 swift sft --model m", "`torchrun --nnodes 2 --nproc-per-node 4 -m swift.cli.sft ...`"),
        ("NNODES=2 CUDA_VISIBLE_DEVICES=0,1 swift sft --model m", "`torchrun --nnodes 2 --nproc-per-node 2 -m swift.cli.sft ...`"),
        ("CUDA_VISIBLE_DEVICES=0 swift sft --model m", "`python -m swift.cli.sft ...`"),
        ("llamafactory-cli train sft.yaml", "`torchrun --nproc-per-node 8 -m llamafactory.launcher ...`"),
        ("axolotl train sft.yml", "`accelerate launch --num_processes 8 -m axolotl.cli.train ...`"),
        ("axolotl train sft.yml --num-processes=3", "`accelerate launch --num_processes 3 -m axolotl.cli.train ...`"),
        ("trl sft --num_processes 2 --model_name_or_path m", "`accelerate launch --num_processes 2 -m trl.scripts.sft ...`"),
    ],
)
def test_the_command_of_a_framework_is_answered_with_the_line_that_starts_the_same_ranks(line, same, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"export TOKENIZERS_PARALLELISM=false\n{line}\n")
    for typed in (line, "bash run.sh"):
        with pytest.raises(InputError, match="may start ranks of its own") as refused:
            devices(typed)
        assert f"such as {same}" in refused.value.hint


@pytest.mark.parametrize(("command", "module"), [("swift", "swift.cli.sft"), ("megatron", "swift.cli._megatron.sft")])
def test_a_file_that_a_command_of_ms_swift_expands_is_written_out_as_options(command, module, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = "ENV: {NPROC_PER_NODE: 4, USE_HF: 1}\nmodel: m\ndataset: [a.jsonl, 'b c']\nsave_only_model: true\nmodel_kwargs: {a: 1}\n"
    (tmp_path / "c.yaml").write_text(file)
    with pytest.raises(InputError, match="may start ranks of its own") as refused:
        devices(f"{command} sft c.yaml --seed 1")
    options = "--model m --dataset a.jsonl 'b c' --save_only_model True --model_kwargs '{\"a\": 1}' --seed 1"
    assert f"`USE_HF=1 torchrun --nproc-per-node 4 -m {module} {options}`" in refused.value.hint
    with pytest.raises(InputError, match=f"`{module}` of ms-swift takes options alone") as refused:
        devices(f"torchrun --nproc-per-node 4 -m {module} c.yaml --seed 1")
    assert f"`-m {module} {options}`" in refused.value.hint


def test_a_number_of_ranks_that_nothing_states_is_asked_for(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"torchrun --nproc-per-node $(count_gpus) train.py {BATCH}\n")
    with pytest.raises(
        InputError, match=r"the number of processes of a host is not known, because nothing states `\$\(count_gpus\)`"
    ) as refused:
        devices("bash run.sh")
    assert "--set cluster.devices_per_host=8" in refused.value.hint
    assert devices("bash run.sh", devices_per_host=4) == (1, 4)


@pytest.mark.parametrize("option", ["--nproc-per-node $(count_gpus)", "--nproc_per_node=$(count_gpus)"])
def test_trials_start_the_ranks_that_the_user_states_for_a_number_of_the_host(option, job) -> None:
    settings = ["cluster.devices_per_host=4", "batch.global_batch=16"]
    made = job(f"bash run.sh {BATCH}", {"run.sh": f'torchrun {option} train.py "$@"\n', "train.py": ""}, settings=settings)
    name = option.partition("$")[0]
    assert " ".join(made.problem.command.argv).startswith(f"torchrun {name}{{devices_per_host}} train.py")
    assert made.problem.cluster.devices == 4


@pytest.mark.parametrize("role", ["--role $(hostname -s):", "--role=$(hostname -s|tr -dc '0-9'):"])
def test_trials_have_no_label_of_logs_whose_value_is_unknown(role, job) -> None:
    files = {"run.sh": f'torchrun --nproc-per-node 8 {role} --tee 3 train.py "$@"\n', "train.py": ""}
    made = job(f"bash run.sh {BATCH}", files, settings=["batch.global_batch=32"])
    assert " ".join(made.problem.command.argv).startswith("torchrun --nproc-per-node 8 --tee 3 train.py")


@pytest.mark.parametrize("line", [f"python train.py {BATCH}", f"python -m train --devices 1 {BATCH}", f"./train.py {BATCH}"])
def test_a_program_of_python_without_a_launcher_is_one_process(line) -> None:
    assert devices(line) == (1, 1)


def test_a_command_with_arguments_of_the_trainer_has_defaults_of_its_own() -> None:
    line = "swift sft --per_device_train_batch_size 1 --output_dir out"
    assert (
        understand(shlex.split(line), environment={}, settings={"cluster": {"devices_per_host": 4}}, machine=CPUS)[1].framework == "plain"
    )
