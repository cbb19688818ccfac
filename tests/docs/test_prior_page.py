"""The page on the prior lists every column and key that there is, and its files and rows are predicted."""

import io
import re
import tomllib

import pandas as pd
import pytest

from oppa import api, catalog
from oppa.cost.beliefs import beliefs_of_job, framework_of
from oppa.cost.framework import COLUMNS as SPACE_COLUMNS
from oppa.cost.framework import frameworks
from oppa.cost.prediction import COLUMNS, predict_rows
from oppa.cost.rows import OPTIONAL, REQUIRED, check_rows
from oppa.errors import InputError
from oppa.problem.job import load_job
from oppa.problem.space import FRAMEWORKS
from oppa.study import Study
from tests.docs.conftest import DOCS, blocks

PAGE = "reference/prior"
TEXT = (DOCS / f"{PAGE}.md").read_text()
(CSV,) = blocks(PAGE, "csv")
OWN, JOB = blocks(PAGE, "toml")
CODE = re.compile(r"`([^`]+)`")


def table(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its first two lines."""
    lines = TEXT.split(f"{heading}\n", 1)[1].split("\n|", 1)[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def names(cells: str) -> list[str]:
    return CODE.findall(cells)


@pytest.fixture
def rows() -> pd.DataFrame:
    return pd.read_csv(io.StringIO(CSV), dtype=str, keep_default_na=False)


@pytest.mark.parametrize(
    ("heading", "columns"), [("### Required columns", REQUIRED), ("### Optional columns", OPTIONAL), ("### Columns of the output", COLUMNS)]
)
def test_the_tables_have_every_column_once(heading, columns) -> None:
    listed = [name for cells in table(heading) for name in names(cells[0])]
    assert sorted(listed) == sorted(columns)


def test_the_rows_are_predicted(rows) -> None:
    found = predict_rows(rows)
    assert found["predicted_step_time_s"].notna().all() and found["name"].tolist() == ["dense", "long", "sharded"]


@pytest.mark.slow
def test_the_words_of_an_optional_column_and_its_default_are_accepted(rows) -> None:
    for column, values, default, _ in table("### Optional columns"):
        (name,) = names(column)
        for word in names(values):
            check_rows(rows.assign(**{name: word}))
        given = [word for word in names(default) if word in names(values)] or [word for word in [default] if word.isdecimal()]
        for word in given:
            assert check_rows(rows.drop(columns=name, errors="ignore"))[name].astype(str).str.lower().unique().tolist() == [word], name


def test_every_framework_and_every_key_of_their_files_is_listed() -> None:
    assert sorted(names(" ".join(cells[0] for cells in table("## Frameworks")))) == frameworks()
    listed = set(names(" ".join(cells[0] for cells in table("### What a file declares"))))
    for name in frameworks():
        file = tomllib.loads((catalog.root() / FRAMEWORKS / f"{name}.toml").read_text())
        keys = {key for key in file if not isinstance(file[key], dict)} | {*file["bytes_per_weight"], *file["sharding"]}
        keys |= {key for column in file.get("columns", {}).values() for key in column}
        assert keys - {"source"} <= listed
    assert all(f"`{name}`" in TEXT for name in SPACE_COLUMNS)


def test_every_space_is_listed_with_its_framework() -> None:
    for framework, _, spaces in table("## Frameworks"):
        for space in names(spaces):
            assert f'framework = "{names(framework)[0]}"' in _with_base(space), space


def _with_base(space: str) -> str:
    text = (catalog.root() / "search_spaces" / f"{space}.toml").read_text()
    base = tomllib.loads(text).get("extends")
    return text + (_with_base(base) if base else "")


@pytest.fixture
def job(tmp_path):
    """Write the job of the page and its framework's file; return the job's path."""
    (tmp_path / "ours.toml").write_text(OWN)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path / "job.toml"


def test_a_job_with_a_framework_of_its_own_is_predicted(job) -> None:
    problem = load_job(job)
    framework, candidates = framework_of(problem), problem.candidates()
    assert (framework.name, framework.gradient_bytes) == ("ours", 2)
    assert (framework.columns(candidates)["shard"] == candidates.column("dp") // candidates.column("replicas")).all()
    assert beliefs_of_job(problem)[1]["fixed_bytes"].median == 1e9
    assert api.predict(problem)[0].probability_fits > 0.5


def test_a_search_space_file_names_a_framework_next_to_it(job) -> None:
    (job.parent / "spaces").mkdir()
    (job.parent / "ours.toml").rename(job.parent / "spaces" / "ours.toml")
    (job.parent / "spaces" / "mine.toml").write_text('extends = "command"\nframework = "./ours.toml"\n')
    job.write_text(JOB.replace('name = "command"\nframework = "./ours.toml"', 'name = "./spaces/mine.toml"'))
    assert framework_of(load_job(job)).description.startswith("our trainer")


@pytest.mark.parametrize(("named", "message"), [("fsdq", "`fsdq` is not one of the priors/frameworks"), ("./no.toml", "does not exist")])
def test_a_framework_that_there_is_not_is_refused(job, named, message) -> None:
    job.write_text(JOB.replace("./ours.toml", named))
    with pytest.raises(InputError, match=message):
        load_job(job)


def test_a_study_keeps_the_framework_of_its_job(job, tmp_path) -> None:
    problem = load_job(job)
    with Study.create(tmp_path / "s", problem.to_dict(), problem.fingerprint):
        pass
    (tmp_path / "ours.toml").unlink()
    with Study(tmp_path / "s") as study:
        assert framework_of(study.problem) == framework_of(problem)
