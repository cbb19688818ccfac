"""The Trainer in one process uses every GPU that it sees: such a line has one device only if it sees one."""

import dataclasses
import shlex

import pytest

from oppa.errors import InputError
from oppa.tuning.launch_line.understand import understand
from tests.tuning.launch_line.conftest import CPUS, GPUS

ONE_PROCESS = "python train.py --per_device_train_batch_size 4 --output_dir out"


def test_a_trainer_in_one_process_on_several_gpus_is_refused_with_both_ways(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="one process, in which the Trainer splits each batch over all 8 GPUs") as refused:
        understand(shlex.split(ONE_PROCESS), environment={}, machine=GPUS)
    assert "`torchrun --nproc-per-node 8 train.py ...`" in refused.value.hint and "`CUDA_VISIBLE_DEVICES=0`" in refused.value.hint
    with pytest.raises(InputError, match="over all 2 GPUs"):
        understand(shlex.split(f"CUDA_VISIBLE_DEVICES=2,3 {ONE_PROCESS}"), environment={}, machine=GPUS)


@pytest.mark.parametrize(
    ("line", "environment", "machine"),
    [
        (f"CUDA_VISIBLE_DEVICES=0 {ONE_PROCESS}", {}, GPUS),
        (ONE_PROCESS, {"CUDA_VISIBLE_DEVICES": "3"}, GPUS),
        (f"{ONE_PROCESS} --use_cpu", {}, GPUS),
        (ONE_PROCESS, {}, dataclasses.replace(GPUS, gpus=1)),
        (ONE_PROCESS, {}, CPUS),
    ],
)
def test_a_trainer_in_one_process_has_one_device(line, environment, machine) -> None:
    found = understand(shlex.split(line), environment=environment, machine=machine)[1]
    assert (found.devices.count, found.global_batch) == (1, 4)
