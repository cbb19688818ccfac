"""The launch lines of public repositories, by which recognition is judged, are well formed and agree with themselves."""

import dataclasses
import math
import os
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from oppa.problem.model import HEAD_DIM, Model

ROOT = Path(__file__).parents[2]
CASES = sorted((Path(__file__).parent / "launch_lines").glob("*.toml"))
SPACES = [tomllib.loads(file.read_text()) for file in sorted((ROOT / "search_spaces").glob("*.toml"))]
FEWEST = {
    "megatron": 8,
    "megatron-bridge": 3,
    "torchtitan": 5,
    "deepspeed": 5,
    "accelerate": 5,
    "transformers": 5,
    "lightning": 2,
    "plain": 2,
}
"""Names of frameworks, and the cases that there are at least."""
DEGREES = ("dp", "tp", "pp", "cp", "sp")
"""Degrees whose product is the number of devices; experts are spread over the ranks of dp."""
SOURCE = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/blob/[0-9a-f]{40}/\S+")
STARTERS = ("torchrun", "srun", "deepspeed", "accelerate", "python", "python3", "uv", "ray", "kubectl")
"""Commands that a test replaces by ones that note their words; `sbatch` becomes the shell."""
BY_SLURM = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4"}
KEYS = {"source", "line", "note", "files", "expected"}
MODEL_KEYS = {field.name for field in dataclasses.fields(Model)} | {HEAD_DIM}


def loaded(file: Path) -> dict:
    return tomllib.loads(file.read_text())


def allowed_values(name: str) -> set | None:
    """The values that the search spaces list for a parameter; None if one of them states a range or leaves it open."""
    declared = [space["parameters"][name] for space in SPACES if name in space.get("parameters", {})]
    if any("values" not in each or each.get("open") for each in declared):
        return None
    return {value for each in declared for value in each["values"]}


every_case = pytest.mark.parametrize("case", [pytest.param(loaded(file), id=file.stem) for file in CASES])


def test_there_are_enough_cases_of_each_framework() -> None:
    expected = [loaded(file)["expected"] for file in CASES]
    counts = Counter(each.get("framework", "refused") for each in expected)
    assert len(CASES) >= 30
    assert all(counts[name] >= fewest for name, fewest in FEWEST.items()), counts
    assert counts["refused"] >= 2


def test_no_two_cases_are_the_same_line_with_the_same_files() -> None:
    seen = Counter(f"{case['line']} {case.get('files')}" for case in map(loaded, CASES))
    assert seen.most_common(1)[0][1] == 1


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_a_case_is_short(file) -> None:
    assert len(file.read_text().splitlines()) <= 60


@every_case
def test_a_case_has_a_line_and_the_commit_of_its_source(case) -> None:
    assert case.keys() <= KEYS
    assert SOURCE.fullmatch(case["source"])
    assert case["line"].strip() and "\n" not in case["line"]


@every_case
def test_a_file_lies_inside_the_folder_of_the_case(case) -> None:
    names = [Path(name) for name in case.get("files", {})]
    assert not [name for name in names if name.is_absolute() or ".." in name.parts]


@every_case
def test_a_case_names_a_framework_or_why_it_is_refused(case) -> None:
    expected = case["expected"]
    if "refused" in expected:
        assert expected.keys() == {"refused"} and expected["refused"]
    else:
        assert expected["framework"] in FEWEST
        assert expected.keys() <= {"framework", "devices", "global_batch", "baseline", "model"}


@every_case
def test_expected_parameters_are_those_of_a_search_space(case) -> None:
    for name, value in case["expected"].get("baseline", {}).items():
        assert any(name in space.get("parameters", {}) for space in SPACES), name
        allowed = allowed_values(name)
        assert allowed is None or value in allowed or name in DEGREES, f"{name} = {value!r}"


@every_case
def test_expected_dimensions_are_those_of_a_model(case) -> None:
    model = case["expected"].get("model", {})
    assert model.keys() <= MODEL_KEYS
    if {"heads", "kv_heads"} <= model.keys():
        assert model["heads"] % model["kv_heads"] == 0


@every_case
def test_the_product_of_the_degrees_is_the_number_of_devices(case) -> None:
    expected = case["expected"]
    baseline = expected.get("baseline", {})
    if "devices" in expected and {"dp", "tp", "pp"} <= baseline.keys():
        assert math.prod(baseline.get(name, 1) for name in DEGREES) == expected["devices"]


@every_case
def test_every_rank_takes_a_whole_number_of_micro_batches(case) -> None:
    expected = case["expected"]
    baseline = expected.get("baseline", {})
    if "global_batch" in expected and {"dp", "micro_batch"} <= baseline.keys():
        assert expected["global_batch"] % (baseline["dp"] * baseline["micro_batch"]) == 0


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    for name in STARTERS:
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> "$STARTED"\n')
    for name in ("scontrol", "dcgmi"):
        (folder / name).write_text("#!/bin/sh\n")
    (folder / "sbatch").write_text('#!/bin/sh\ncase $1 in --*) shift ;; esac\nexec bash "$@"\n')
    for file in folder.iterdir():
        file.chmod(0o755)
    return folder


def starts(case, stand_ins: Path, folder: Path) -> list[str]:
    """The trainings that a shell starts for the line of a case; a look-up of a host's name is none."""
    files = {"activateEnvironment.sh": "", "megatron-training.sqsh": ""} | case.get("files", {})
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    started = folder / "started"
    started.touch()
    environment = BY_SLURM | {"PATH": f"{stand_ins}:{os.environ['PATH']}", "HOME": str(folder), "STARTED": str(started)}
    subprocess.run(["bash", "-c", case["line"]], cwd=folder, env=environment, check=True, capture_output=True, timeout=60)
    return [line for line in started.read_text().splitlines() if "hostname" not in line]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@every_case
def test_the_shell_starts_one_training_unless_that_is_why_it_is_refused(case, stand_ins, tmp_path) -> None:
    assert len(starts(case, stand_ins, tmp_path)) == (2 if "two trainings" in case["expected"].get("refused", "") else 1)
