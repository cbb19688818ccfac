"""The image follows the documents, and the release is made without a stored secret."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from oppa import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
needs_checkout = pytest.mark.skipif(not WORKFLOWS.is_dir(), reason="a source distribution has no workflows")


@pytest.fixture(scope="module")
def release() -> dict:
    return yaml.safe_load((WORKFLOWS / "release.yml").read_text())


def test_the_image_is_installed_as_the_guide_says() -> None:
    (step,) = re.findall(r"^RUN (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    shown = {line.partition("  #")[0].strip() for line in (ROOT / "docs/how-to/install.md").read_text().splitlines()}
    assert step in shown


def test_what_the_documents_and_the_makefile_install_are_extras() -> None:
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/how-to/install.md", "Dockerfile", "Makefile")]
    named = {extra for text in texts for list_ in re.findall(r"(?:\.whl\)|\.|tuner)\[([\w,]+)\]|EXTRAS \?= (\S+)", text) for extra in list_}
    assert {extra for names in named for extra in names.split(",") if extra} <= set(EXTRAS)
    rows = set(re.findall(r"^\| `\[(\w+)\]` \|", (ROOT / "docs/how-to/install.md").read_text(), re.MULTILINE))
    assert set(EXTRAS) - {"dev"} <= rows


def test_the_lowest_torch_that_is_tested_is_the_lowest_that_is_allowed() -> None:
    (tested,) = re.findall(r"^VERSIONS_TORCH \?= torch==([\d.]+)\.\*$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"torch>={tested}" in PROJECT["dependencies"]


@needs_checkout
def test_a_release_is_smoked_before_it_is_published(release: dict) -> None:
    jobs = release["jobs"]
    assert (jobs["smoke"]["needs"], jobs["publish"]["needs"], jobs["page"]["needs"]) == ("build", "smoke", "publish")
    steps = "".join(step.get("run", "") for step in jobs["smoke"]["steps"])
    assert "pipx install" in steps and "uv tool install" in steps and "oppa tune" in steps
    assert "make wheelhouse" in steps and "--no-index --find-links wheelhouse" in steps and "unshare --net" in steps


@needs_checkout
def test_only_the_job_that_publishes_gets_a_token_of_the_index_and_no_job_a_stored_secret(release: dict) -> None:
    may = {name: job.get("permissions", {}) for name, job in release["jobs"].items()}
    assert may == {"build": {}, "smoke": {}, "publish": {"id-token": "write"}, "page": {"contents": "write"}}
    assert release["jobs"]["publish"]["strategy"]["matrix"]["distribution"] == ["oppa-tuner", "oppa-client"]
    assert "secrets." not in (WORKFLOWS / "release.yml").read_text()


@needs_checkout
def test_the_tag_has_to_be_the_version(release: dict) -> None:
    (command,) = [step["run"] for step in release["jobs"]["build"]["steps"] if step.get("name") == "Compare the tag with the version"]
    pattern = re.search(r"s/(\^__version__.*\$)/", command)[1].replace(r"\(", "(").replace(r"\)", ")")
    assert re.findall(pattern, (ROOT / "oppa" / "__init__.py").read_text(), re.MULTILINE) == [__version__]


@needs_checkout
def test_the_tools_of_the_workflows_are_pinned() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        for names in re.findall(r"pip install --quiet ([a-z][\w.=-]*)$", path.read_text(), re.MULTILINE):
            assert "==" in names, f"{path}: {names}"
