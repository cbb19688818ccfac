"""The parts of a launch line: environment, wrappers, step, launcher, program and arguments."""

import shlex

import pytest

from oppa.errors import InputError
from oppa.problem.launch_line.line import LaunchLine, read_line
from oppa.problem.launch_line.words import texts


def read(line: str, **environment: str) -> LaunchLine:
    return read_line(shlex.split(line), environment=environment)


@pytest.mark.parametrize(
    ("line", "stages", "program", "is_module"),
    [
        ("python train.py --x 1", [], "train.py", False),
        ("python -u -m package.train", [], "package.train", True),
        ("torchrun --standalone --nproc_per_node=4 train.py", ["torchrun"], "train.py", False),
        ("torchrun --nproc-per-node 8 -m torchtitan.train", ["torchrun"], "torchtitan.train", True),
        ("python -m torch.distributed.run --nnodes 2 train.py", ["torchrun"], "train.py", False),
        ("python -W ignore -m torch.distributed.launch --use_env --nproc_per_node 2 train.py", ["torchrun"], "train.py", False),
        ("accelerate launch --config_file c.yaml --multi_gpu train.py", ["accelerate"], "train.py", False),
        ("python -m accelerate.commands.launch --num_processes 2 train.py", ["accelerate"], "train.py", False),
        ("deepspeed --num_gpus 2 train.py --deepspeed", ["deepspeed"], "train.py", False),
        ("uv run --frozen torchrun train.py", ["uv", "torchrun"], "train.py", False),
        ("numactl -N 0 -l conda run -n e python train.py", ["numactl", "conda"], "train.py", False),
        ("apptainer exec --nv --bind /a:/b image.sif python train.py", ["apptainer"], "train.py", False),
        ("apptainer -q -c a.conf exec --nv image.sif python train.py", ["apptainer"], "train.py", False),
        ("env -C /data A=1 nice -n 5 python train.py", ["env", "nice"], "train.py", False),
        ("srun -N64 -l --ntasks-per-node=8 python -u train.py", ["srun"], "train.py", False),
        ("timeout -k 5 1h mpirun -np 4 --allow-run-as-root python train.py", ["timeout", "mpirun"], "train.py", False),
        ("./main.exe --steps 3", [], "./main.exe", False),
    ],
)
def test_programs_that_start_others_are_taken_off(line, stages, program, is_module) -> None:
    found = read(line)
    assert [stage.name for stage in found.stages] == stages
    assert (found.program.text, found.is_module) == (program, is_module)


def test_options_of_a_stage_are_read_with_their_values() -> None:
    step = read("srun -N64 --ntasks-per-node=8 -l --container-image img.sqsh python train.py --nodes 3").stage("step")
    assert step is not None
    assert step.value("N", "nodes").text == "64"
    assert step.value("container-image").text == "img.sqsh"
    assert step.has("l") and not step.has("nodes")


def test_assignments_in_front_are_the_environment() -> None:
    line = read("A=1 B='x y' torchrun train.py")
    assert [(name, word.text, word.origin) for name, word in line.environment] == [("A", "1", "line"), ("B", "x y", "line")]


def test_arguments_of_the_program_are_its_own() -> None:
    line = read("torchrun train.py --nproc-per-node 3 -m")
    assert texts(line.arguments) == ["--nproc-per-node", "3", "-m"]


def test_a_string_for_a_shell_is_a_script() -> None:
    line = read("""srun sh -c 'exec torchrun train.py --tp "$TP"'""", TP="4")
    assert [stage.name for stage in line.stages] == ["srun", "torchrun"]
    assert texts(line.arguments) == ["--tp", "4"]


def test_words_behind_a_string_for_a_shell_begin_with_its_name() -> None:
    assert texts(read("""bash -c 'torchrun train.py "$0" "$1"' x y""").arguments) == ["x", "y"]
    assert texts(read("""bash -c 'torchrun train.py "$@"' x y z""").arguments) == ["y", "z"]


@pytest.mark.parametrize("inner", ["sh -c '$LAUNCHER t.py $MORE'", 'sh -c "$LAUNCHER t.py $MORE"', "sh inner.sh"])
def test_a_shell_inherits_the_words_of_a_variable_of_which_a_part_is_unknown(inner, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    launcher = 'export LAUNCHER="torchrun --nproc_per_node 4 --rdzv_endpoint $(head_node):6000"\nexport MORE="--tp 4"\n'
    (tmp_path / "run.sh").write_text(f"{launcher}srun {inner}\n")
    (tmp_path / "inner.sh").write_text("$LAUNCHER t.py $MORE\n")
    line = read("bash run.sh")
    assert line.stage("torchrun").value("nproc-per-node").text == "4" and texts(line.arguments) == ["--tp", "4"]
    assert line.stage("torchrun").value("rdzv-endpoint").missing == ("$(head_node)",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("docker run image python train.py", "docker"),
        ("podman-hpc run --rm image python train.py", "`podman-hpc` cannot start trials"),
        ("nerdctl run image python train.py", "`nerdctl` cannot start trials"),
        ("ssh host python train.py", "ssh"),
        ("torchrun train.py '|' tee log", "only a shell understands"),
        ("A=1", "starts no program"),
        ("python", "without a program"),
        ("python -c print(1)", "without a program"),
        ("bash missing.sh", "cannot be read"),
        ("sh -c 'torchrun a.py; torchrun b.py'", "several things"),
    ],
)
def test_what_cannot_be_one_launch_is_refused(line, message) -> None:
    with pytest.raises(InputError, match=message):
        read(line)


def test_variables_in_front_reach_the_script(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text('NGPU=${NGPU:-8}\ntorchrun --nproc_per_node=$NGPU -m torchtitan.train --file ${FILE:-a.toml} "$@"\n')
    line = read("NGPU=2 ./run.sh --more 1")
    launcher = line.stage("launcher")
    assert launcher is not None and launcher.value("nproc-per-node").text == "2"
    assert launcher.value("nproc-per-node").origin == "line"
    assert [(word.text, word.origin) for word in line.arguments][1:] == [("a.toml", "run.sh:2"), ("--more", "line"), ("1", "line")]
    assert line.takes_arguments


def test_a_batch_script_has_the_variables_of_its_header(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun --nnodes $SLURM_NNODES train.py\n")
    line = read("sbatch -N 4 job.sh")
    assert line.stage("launcher").value("nnodes").text == "4"
    assert line.header == ("--nodes=2", "-N", "4")
