"""The Python script of a launch line exists where trials start it."""

import pytest

from oppa.errors import InputError
from oppa.problem.command import LaunchCommand
from oppa.trials.line_script import require_script


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the launch line, with one script."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def require(line, *, on_this_host=True):
    require_script(LaunchCommand(argv=tuple(line.split())), on_this_host=on_this_host)


STARTERS = ["python", "python -u", "torchrun --nproc-per-node 2", "python -m torch.distributed.run", "accelerate launch", "deepspeed"]


@pytest.mark.parametrize("starter", [*STARTERS, "env A=1 numactl -N 0 python"])
def test_a_script_that_does_not_exist_is_refused_with_one_of_a_like_name(starter):
    require(f"{starter} train.py --batch 4")
    with pytest.raises(InputError, match=r"starts `trian\.py`, which does not exist") as refused:
        require(f"{starter} trian.py --batch 4")
    assert "did you mean `train.py`?" in refused.value.hint


def test_a_recipe_of_torchtune_by_its_path_is_checked(folder):
    require("tune run train.py --config c.yaml")
    with pytest.raises(InputError, match=r"starts `trian\.py`, which does not exist"):
        require("tune run trian.py --config c.yaml")


def test_a_script_is_sought_in_the_folder_to_which_the_line_changes(folder):
    (folder / "runs").mkdir()
    require(f"env -C {folder} python train.py")
    with pytest.raises(InputError, match=r"starts `runs/train\.py`"):
        require("env -C runs python train.py")


@pytest.mark.parametrize(
    "line",
    [
        "python -m package.train",
        "torchrun -m package.train",
        "torchrun --no-python no-such-program",
        "no-such-program no-such.py",
        "python {script}",
        "uv run --directory elsewhere python no-such.py",
        "mpirun -wdir elsewhere python no-such.py",
        "sh no-such.sh",
        "tune run --nproc_per_node 2 full_finetune_distributed --config c.yaml",
    ],
)
def test_a_module_another_program_and_an_unknown_folder_are_not_checked(line, caplog):
    require(line)
    assert not caplog.records


@pytest.mark.parametrize(
    ("line", "on_this_host"),
    [
        ("python no-such.py", False),
        ("apptainer exec image.sif python no-such.py", True),
        ("srun --container-image=image.sqsh python no-such.py", True),
    ],
)
def test_a_script_that_may_exist_on_another_host_or_in_a_container_is_a_warning(line, on_this_host, caplog):
    require(line, on_this_host=on_this_host)
    assert "starts `no-such.py`, which this host does not have" in caplog.text
