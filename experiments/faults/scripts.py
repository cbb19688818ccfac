"""Export jobs with hostile names, run every generated script with programs that do nothing, and count the names that became code."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from experiments.faults.inputs import imports
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.tuning.formats import exports

CANARY = "PWNED"
"""File that a name makes if it is run."""
STEMS = (
    f"evil\ntouch {CANARY}\n#",
    f"evil\r\ntouch {CANARY}",
    f'"""\nimport os; os.mknod("{CANARY}")\n"""',
    f"'''\nimport os; os.mknod('{CANARY}')\n'''",
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"x; touch {CANARY} #",
    f"' ; touch {CANARY} ; '",
    f'" ; touch {CANARY} ; "',
    "{id} {name} %s \\",
    f"a: [b\n- !!python.os.mknod [{CANARY}]",
    f"\u2028touch {CANARY}",
    "x" * 200,
    "...",
)
"""Names of job files, without the suffix."""
JOB = imports.JOB.decode()
CONFIGURATION = Configuration(dp=8, global_batch=64, micro_batch=2)
PROGRAMS = ("torchrun", "accelerate", "deepspeed", "colossalai", "python", "python3")


def stubs(folder: Path) -> dict[str, str]:
    """Make programs that do nothing in a folder, and return the environment that finds no others."""
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        (folder / name).chmod(0o755)
    needed = {"MEGATRON": "megatron", "RECIPE": "recipe", "BASE": "base:one"}
    return {"PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin", **needed}


def export(stem: str, folder: Path) -> Mapping[str, Mapping[str, str]]:
    """Return the generated files of a job file with this name, by format; raises InputError if a format refuses the job."""
    path = folder / f"{stem}.toml"
    path.write_text(JOB)
    found = {}
    for name, files in exports(load_job(path), CONFIGURATION).items():
        if isinstance(files, InputError):
            raise files
        found[name] = files
    return found


def run(files: Mapping[str, str], folder: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Write the files of a format into a new folder, and run its script there."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return subprocess.run(["sh", "run.sh", "train.py"], cwd=folder, env=dict(environment), capture_output=True, text=True)


def executed(folder: Path) -> tuple[int, int]:
    """Return the number of scripts that ran, and of canaries that they left."""
    environment, ran = stubs(folder / "bin"), 0
    for number, stem in enumerate(STEMS):
        for name, files in export(stem, folder).items():
            if name not in ("torchrun", "kubernetes"):  # they start the Python that they name by its path, which trains
                run(files, folder / str(number) / name, environment)
                ran += 1
    return ran, len(list(folder.rglob(CANARY)))
