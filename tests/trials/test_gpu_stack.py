"""A trial records the software below torch if a program, the interpreter or the environment states it."""

import dataclasses
import json
import os

import pytest

from oppa import catalog
from oppa.problem.command import LaunchCommand
from oppa.problem.software import Software
from oppa.trials import gpu_stack
from oppa.trials.runner import load_runner
from oppa.trials.software import software_of
from tests.trials.conftest import make_environment, script

NVIDIA_SMI = """#!/bin/sh
case "$*" in
*driver_version*) printf '570.86.15\\n570.86.15\\n';;
*) exit 6;;
esac
"""
TORCH = {
    "version.py": "__version__ = '2.7.1+cu126'\ncuda = '12.6'\nhip = None\n",
    "__init__.py": "from . import cuda, version\n",
    "cuda/__init__.py": "from . import nccl\n",
    "cuda/nccl.py": "def version():\n    return (2, 27, 3)\n",
}
"""Files of a torch for CUDA that state its versions."""


@pytest.fixture
def cuda_build(tmp_path):
    """The programs of an environment whose torch is for CUDA."""
    folder = make_environment(tmp_path / "env", "2.7.1")
    (site,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    for name, text in TORCH.items():
        (site / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (site / "torch" / name).write_text(text)
    return folder


@pytest.fixture
def smi(tmp_path):
    """A folder with an `nvidia-smi`."""
    (tmp_path / "smi").mkdir()
    return script(tmp_path / "smi" / "nvidia-smi", NVIDIA_SMI).parent


def found(*words: str) -> Software:
    return software_of(load_runner(catalog.find("runners", "command")), LaunchCommand(argv=words))


def test_driver_cuda_and_nccl_are_those_of_the_programs_own_interpreter(cuda_build, smi, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{smi}:{cuda_build}:/usr/bin:/bin")
    software = found("torchrun", "train.py")
    assert (software.driver, software.cuda, software.nccl) == ("570.86.15", "12.6", "2.27.3")
    assert ("stack", "driver 570.86.15, CUDA 12.6, NCCL 2.27.3") in software.facts


def test_without_a_driver_torch_is_not_loaded_and_nothing_is_guessed(cuda_build, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{cuda_build}:/usr/bin:/bin")
    software = found("torchrun", "train.py")
    assert (software.driver, software.cuda, software.nccl, software.image) == ("", "12.6", "", "")


def test_a_driver_program_that_fails_states_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script(tmp_path / "nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    assert gpu_stack.driver() == ""


@pytest.mark.parametrize(
    ("environment", "words", "image"),
    [
        ({}, (), ""),
        ({"PYXIS_CONTAINER_IMAGE": "nvcr.io#nvidia/pytorch@sha256:12ab"}, (), "nvcr.io#nvidia/pytorch@sha256:12ab"),
        ({"APPTAINER_CONTAINER": "/gone/train.sif"}, (), "/gone/train.sif"),
        ({"SINGULARITY_CONTAINER": "docker://train"}, (), "docker://train"),
        ({"OPPA_IMAGE": "train@sha256:1", "APPTAINER_CONTAINER": "/gone/train.sif"}, (), "train@sha256:1"),
        ({"NVIDIA_PYTORCH_VERSION": "25.09", "NVIDIA_BUILD_ID": "7"}, (), "NVIDIA PyTorch 25.09, build 7"),
        ({"APPTAINER_CONTAINER": "/gone/train.sif"}, ("srun", "--container-image=mcore", "python"), "mcore"),
        ({}, ("srun", "--container-image", "mcore", "python"), "mcore"),
        ({}, ("srun", "--container-image"), ""),
        ({}, ("srun", "--container-name=kept", "python"), ""),
        ({}, ("apptainer", "exec", "--nv", "/gone/train.sif", "python"), "/gone/train.sif"),
        ({}, ("apptainer", "exec"), ""),
        ({}, ("python", "train.py", "--container-image=i"), ""),
    ],
)
def test_the_image_is_what_the_launch_line_or_the_environment_states(environment, words, image) -> None:
    assert gpu_stack.image(words, environment) == image


def stated(file) -> str:
    return gpu_stack.image((), {"PYXIS_CONTAINER_IMAGE": str(file)})


@pytest.mark.parametrize("at", [0, -1])
def test_a_new_image_under_an_old_name_is_another_image(tmp_path, at) -> None:
    file, content = tmp_path / "train.sqsh", bytearray(3 * gpu_stack.EDGE)
    file.write_bytes(content)
    before = stated(file)
    content[at] = 1
    file.write_bytes(content)
    assert before.startswith(f"{file} (sha256 of size and ends ") and stated(file) != before


def test_a_copied_image_is_the_same_one(tmp_path) -> None:
    file = tmp_path / "train.sqsh"
    file.write_bytes(b"1" * 100)
    before = stated(file)
    os.utime(file, (0, 0))
    assert stated(file) == before


def test_a_pipe_is_no_image(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert stated(tmp_path / "pipe") == str(tmp_path / "pipe")


def test_what_an_earlier_study_did_not_record_is_no_difference() -> None:
    now = Software(driver="580.65.06", nccl="2.28.1", cuda="13.0", image="a")
    earlier = {name: value for name, value in Software().to_dict().items() if name not in ("driver", "nccl", "cuda", "image")}
    assert not list(Software.from_dict(earlier).differences(now)) and not list(now.differences(Software()))
    then = dataclasses.replace(now, nccl="2.27.3")
    assert list(then.differences(now)) == [("NCCL", "2.27.3", "2.28.1")]


def test_software_of_a_later_version_is_read() -> None:
    later = {**Software(driver="580.65.06").to_dict(), "firmware": "9"}
    assert Software.from_dict(json.loads(json.dumps(later))) == Software(driver="580.65.06")
