"""The options of sbatch and srun count as Slurm reads them."""

import shlex
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.problem.launch_line.batch_header import gpus_of, header_of
from oppa.problem.launch_line.line import LaunchLine, read_line
from oppa.problem.launch_line.words import texts


@pytest.fixture
def batch(tmp_path, monkeypatch):
    """Read a line after its script `job.sh` is written."""
    monkeypatch.chdir(tmp_path)

    def made(line: str, script: str, **environment: str) -> LaunchLine:
        (tmp_path / "job.sh").write_text(script)
        return read_line(shlex.split(line), environment=environment)

    return made


def test_a_header_ends_at_the_first_command() -> None:
    assert header_of("#!/bin/bash\n#SBATCH -N 2\n\n# a comment\n#SBATCH -n 4\nexport A=1\n#SBATCH -N 64\n") == ("-N", "2", "-n", "4")


@pytest.mark.parametrize(
    ("stated", "number"),
    [
        ("gpu:8,nvme:1", 8),
        ("nvme:1,gpu:h100:4", 4),
        ("gpu:a:2,gpu:b:2", 4),
        ("gpu", 1),
        ("gpu:8(S:0-1)", 8),
        ("8", 8),
        ("h100:8", 8),
        ("", None),
    ],
)
def test_other_resources_are_no_gpus(stated, number) -> None:
    assert gpus_of(stated) == number


@pytest.mark.parametrize(
    "line", ["sbatch --export=ALL,MICRO=2 job.sh", "srun --export=ALL,MICRO=2 bash job.sh", "MICRO=2 sbatch --export=ALL job.sh"]
)
def test_export_sets_variables_of_the_script(line, batch) -> None:
    made = batch(line, "python train.py --micro ${MICRO:-4} $OTHER\n", OTHER="o")
    assert (texts(made.arguments), made.environment[0][1].text) == (["--micro", "2", "o"], "2")


def test_export_in_a_header_counts_and_that_of_the_line_wins(batch) -> None:
    script = "#SBATCH --export=ALL,MICRO=8\npython train.py --micro ${MICRO:-4}\n"
    assert texts(batch("sbatch job.sh", script).arguments) == ["--micro", "8"]
    assert texts(batch("sbatch --export=ALL,MICRO=2 job.sh", script).arguments) == ["--micro", "2"]


def test_without_all_other_variables_are_not_passed_on(batch) -> None:
    made = batch("MICRO=2 sbatch --export=NONE job.sh", "python train.py --micro ${MICRO:-4}\n", MICRO="3")
    assert (texts(made.arguments), made.environment) == (["--micro", "4"], ())


@pytest.mark.parametrize("option", ["--chdir=/somewhere", "-D /somewhere"])
def test_chdir_is_the_folder_of_the_program_but_not_of_the_script(option, batch) -> None:
    assert batch(f"sbatch {option} job.sh", "python train.py\n").folder == Path("/somewhere")
    assert batch(f"sbatch {option} job.sh", "cd proj\npython train.py\n").folder == Path("/somewhere/proj")


def test_chdir_of_a_step_is_the_folder_of_its_program(batch) -> None:
    assert batch("srun --chdir=/somewhere python train.py", "").folder == Path("/somewhere")
    with pytest.raises(InputError, match="depends on the folder"):
        batch("srun --chdir=somewhere python train.py", "")


def test_a_step_has_the_hosts_of_its_own_options(batch) -> None:
    made = batch("srun -N 2 bash job.sh", "torchrun --nnodes $SLURM_NNODES train.py\n", SLURM_NNODES="4")
    launcher = made.stage("launcher")
    assert launcher is not None and launcher.value("nnodes") is not None and launcher.words[-1].text == "2"
