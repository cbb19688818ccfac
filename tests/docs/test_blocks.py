"""Every block of code in the documents is legal: Python compiles, TOML and JSON are read, jobs load, and each page is in the site."""

import ast
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from oppa.problem.job import load_job

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
LANGUAGES = {"", "console", "csv", "dockerfile", "json", "python", "sh", "text", "toml", "yaml"}
PAGES = re.compile(r"^```\{toctree\}\n(?P<entries>.*?)^```", re.DOTALL | re.MULTILINE)


def _id(document: Path) -> str:
    return str(document.relative_to(ROOT))


def _blocks(document: Path, language: str) -> list[str]:
    return [block["code"] for block in FENCE.finditer(document.read_text()) if block["language"] == language]


@pytest.mark.parametrize("document", DOCUMENTS, ids=_id)
def test_a_block_is_legal_in_its_language(document: Path) -> None:
    for code in _blocks(document, "python"):
        ast.parse(code)
    for code in _blocks(document, "toml"):
        tomllib.loads(code)
    for code in _blocks(document, "json"):
        for line in code.splitlines():
            json.loads(line.replace("{...}", "{}").replace("[...]", "[]"))
    assert {block["language"] for block in FENCE.finditer(document.read_text())} <= LANGUAGES


@pytest.mark.parametrize("page", ["how-to/job-file", "how-to/add-a-parameter", "tutorials/own-script"])
def test_a_job_of_a_guide_loads(page: str, tmp_path: Path) -> None:
    jobs = [code for code in _blocks(DOCS / f"{page}.md", "toml") if "[cluster]" in code]
    lines = [line for code in _blocks(DOCS / f"{page}.md", "sh") for line in code.splitlines() if line.startswith("oppa tune job.toml -- ")]
    assert jobs
    argv = shlex.split(lines[0].partition(" -- ")[2]) if lines else ("python", "train.py", "--workers", "{num_workers=4:2,4,8}")
    for job in jobs:
        (tmp_path / "job.toml").write_text(job)
        assert len(load_job(tmp_path / "job.toml", argv=() if "[model]" in job else argv).candidates()) > 1


def test_every_page_is_in_the_site() -> None:
    listed = set()
    for document in DOCS.rglob("*.md"):
        for table in PAGES.finditer(document.read_text()):
            names = [line.strip() for line in table["entries"].splitlines() if line.strip() and not line.startswith((":", ".."))]
            listed |= {path.resolve() for name in names for path in document.parent.glob(f"{name}.md")}
    assert set(DOCS.rglob("*.md")) - listed == {DOCS / "index.md"}


def test_every_schema_is_linked() -> None:
    page = (DOCS / "reference" / "schemas.md").read_text()
    assert set(re.findall(r"\(schemas/(.+?)\.json\)", page)) == {path.stem for path in (DOCS / "reference" / "schemas").glob("*.json")}
