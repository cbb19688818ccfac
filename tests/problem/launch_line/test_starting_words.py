"""A script's commands are divided into those that may start a training job and those that do not."""

import pytest

from oppa.problem.launch_line.starting_words import starts_something


@pytest.mark.parametrize(
    "command",
    [
        "torchrun train.py",
        "python3.12 -u train.py",
        "accelerate launch train.py",
        "nice -n 5 torchrun train.py",
        "numactl --cpunodebind 0 python train.py",
        "timeout 600 nohup bash run.sh",
        "conda run -n env python train.py",
        "srun -N2 python train.py",
        "./run.sh",
    ],
)
def test_a_command_that_may_start_a_job(command) -> None:
    assert starts_something(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "",
        "echo torchrun",
        "python -c pass",
        "python -m pip install torch",
        "accelerate config",
        "accelerate env",
        "conda activate env",
        "uv sync",
        "numactl --hardware",
        "timeout 5 ls",
        "srun hostname",
        "nvidia-smi",
    ],
)
def test_a_command_that_starts_none(command) -> None:
    assert not starts_something(command.split())
