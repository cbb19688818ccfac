"""A container of a launch line has the folders of oppa's client and of the study in trials; its image may be a tag."""

import shlex
from pathlib import Path

import pytest

from oppa.problem.containers import containers, with_mounts

CLIENT, STUDY = Path("/shared/client"), Path("/home/me/studies/s")
BOTH = f"{CLIENT},{STUDY}"


def mounted(line: str) -> str:
    return shlex.join(with_mounts(shlex.split(line), client=CLIENT, study=STUDY))


@pytest.mark.parametrize(
    ("line", "trial"),
    [
        ("srun -N2 --container-image=i.sqsh --container-mounts=/lustre python t.py", f"--container-mounts=/lustre,{BOTH}"),
        ("srun --container-image i.sqsh --container-mounts /lustre:/data python t.py", f"--container-mounts /lustre:/data,{BOTH}"),
        ("srun -N2 --container-image=i.sqsh --cpu-bind=none python t.py", f"srun --container-mounts={BOTH} -N2"),
        ("env -C /x A=b srun --container-name=c -N 2 python t.py", f"srun --container-mounts={BOTH} --container-name=c"),
        ("apptainer exec --nv i.sif python t.py", f"apptainer exec --bind={BOTH} --nv i.sif python t.py"),
        ("apptainer -q exec --nv i.sif python t.py", f"apptainer -q exec --bind={BOTH} --nv i.sif python t.py"),
        ("apptainer --debug -c a.conf run i.sif t.py", f"apptainer --debug -c a.conf run --bind={BOTH} i.sif t.py"),
        ("apptainer --config=a.conf exec -B/data i.sif python t.py", f"-B/data,{BOTH} i.sif"),
        ("singularity exec -B /data i.sif python t.py", f"-B /data,{BOTH} i.sif"),
        ("apptainer exec -B/data i.sif python t.py", f"-B/data,{BOTH} i.sif"),
        ("timeout 60 apptainer exec --bind=/data i.sif torchrun t.py", f"--bind=/data,{BOTH} i.sif"),
    ],
)
def test_folders_that_the_mounts_lack_are_added(line, trial) -> None:
    assert trial in mounted(line)


@pytest.mark.parametrize(
    ("mounts", "added"),
    [
        ("/shared", f",{STUDY}"),
        ("/shared:/shared,/home", ""),
        ("/shared:/shared:ro,/home:/home:rw", ""),
        ("/shared,/home:/home:ro", f",{STUDY}"),
        ("/shared,/home:/elsewhere", f",{STUDY}"),
        ("/shared,/hom", f",{STUDY}"),
        ("/", ""),
    ],
)
def test_a_folder_that_a_mount_covers_is_not_added_again(mounts, added) -> None:
    line = f"srun --container-image=i.sqsh --container-mounts={mounts} python t.py"
    assert mounted(line) == f"srun --container-image=i.sqsh --container-mounts={mounts}{added} python t.py"


def test_each_container_of_a_line_has_the_folders() -> None:
    line = mounted("srun --container-image=i.sqsh apptainer exec i.sif python t.py")
    assert line == f"srun --container-mounts={BOTH} --container-image=i.sqsh apptainer exec --bind={BOTH} i.sif python t.py"


@pytest.mark.parametrize("line", ["srun -N2 python t.py", "python t.py srun --container-image=i.sqsh", "torchrun t.py", "env A=b"])
def test_a_line_without_a_container_stays(line) -> None:
    assert mounted(line) == line


@pytest.mark.parametrize(
    ("line", "tags"),
    [
        ("srun --container-image=nvcr.io#nvidia/pytorch:25.09-py3 python t.py", [True]),
        ("srun --container-image ubuntu python t.py", [True]),
        ("srun --container-image=nvcr.io#nvidia/pytorch@sha256:12ab python t.py", [False]),
        ("srun --container-image=/images/train python t.py", [False]),
        ("srun --container-image=train.sqsh python t.py", [False]),
        ("srun --container-name=kept python t.py", [False]),
        ("apptainer exec docker://pytorch/pytorch:2.8 python t.py", [True]),
        ("apptainer exec --nv i.sif python t.py", [False]),
        ("apptainer exec sandbox python t.py", [False]),
        ("apptainer exec instance://running python t.py", [False]),
        ("singularity exec docker://pytorch@sha256:12ab python t.py", [False]),
        ("python t.py --container-image=a:b", []),
    ],
)
def test_an_image_that_a_registry_may_replace_has_a_tag(line, tags) -> None:
    assert [each.has_tag for each in containers(shlex.split(line))] == tags
