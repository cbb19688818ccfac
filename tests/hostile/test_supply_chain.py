"""The inputs that build and check oppa are named by content: packages by the hashes of their files, actions by their commits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
NAMES = ("packages.txt", "torch.txt", "cuda.txt")
needs_checkout = pytest.mark.skipif(not (ROOT / ".github").is_dir(), reason="a source distribution has no workflows")


def entries(name: str) -> dict[str, tuple[str, set[str]]]:
    """Version and hashes of each package of a file."""
    found = {}
    for entry in re.findall(r"^[^\s#].*(?:\n +.*)*", (FOLDER / name).read_text(), re.MULTILINE):
        first, *hashes = [line.strip().removesuffix("\\").strip() for line in entry.splitlines()]
        requirement = Requirement(first)
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in hashes) and hashes, first
        (pinned,) = requirement.specifier
        assert pinned.operator == "==" and canonicalize_name(requirement.name) not in found
        found[canonicalize_name(requirement.name)] = (pinned.version, set(hashes))
    return found


def pinned() -> dict[str, str]:
    lines = (line.strip().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    return {canonicalize_name(name): version for name, version in lines}


def test_every_package_that_is_pinned_has_hashes_and_no_other_version() -> None:
    """`make lock` has run since the last change of constraints.txt."""
    locked = {name: version for file in NAMES for name, (version, _) in entries(file).items()}
    assert {name: locked.get(name) for name in pinned()} == pinned()
    elsewhere = {"colorama", "pywin32", "httpx2-jsfetch"}  # for Windows and for browsers: never installed on Linux
    assert not entries("packages.txt").keys() - pinned().keys() - elsewhere


def test_the_three_files_are_disjoint_and_torch_has_its_cpu_builds() -> None:
    packages, torch, cuda = map(entries, NAMES)
    assert torch.keys() == {"torch"} and not packages.keys() & cuda.keys() and "torch" not in packages
    builds = [line.split() for line in (FOLDER / "torch-cpu.sha256").read_text().splitlines()]
    version, hashes = torch["torch"]
    assert all(name.startswith(f"torch-{version}+cpu-cp3") for _, name in builds)
    assert {f"--hash=sha256:{digest}" for digest, _ in builds} < hashes, "and those of PyPI"


def test_splitting_the_list_again_gives_the_same_files(tmp_path: Path) -> None:
    """As uv writes it, in alphabetical order, with the hashes of PyPI alone."""
    texts = {name: (FOLDER / name).read_text() for name in NAMES}
    cpu = [line.split()[0] for line in (FOLDER / "torch-cpu.sha256").read_text().splitlines()]
    whole = "".join(text.partition("\n")[2] for text in texts.values())
    for digest in cpu:
        whole = whole.replace(f" \\\n    --hash=sha256:{digest}", "")
    for name in ("split.py", "torch-cpu.sha256"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    subprocess.run([sys.executable, str(tmp_path / "split.py")], input=whole, text=True, check=True)
    assert {name: (tmp_path / name).read_text() for name in NAMES} == texts


def test_an_empty_list_and_the_hashes_of_another_torch_are_refused(tmp_path: Path) -> None:
    (tmp_path / "split.py").write_text((FOLDER / "split.py").read_text())
    (tmp_path / "torch-cpu.sha256").write_text("0" * 64 + "  torch-1.0.0+cpu-cp311-cp311-linux_x86_64.whl\n")
    for text, said in (("", "uv has failed"), ("torch==2.13.0 \\\n    --hash=sha256:0\n", "not about torch 2.13.0")):
        done = subprocess.run([sys.executable, str(tmp_path / "split.py")], input=text, text=True, capture_output=True)
        assert done.returncode == 1 and said in done.stderr
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".txt"]


def test_setup_installs_nothing_without_a_hash() -> None:
    recipe = (ROOT / "Makefile").read_text().replace("\\\n", " ").partition("\n$(DONE):")[2].partition("\n\n")[0]
    installs = re.findall(r"\$\(INSTALL\)(.*?)(?:&&|;|\n)", recipe) + re.findall(r"pip install[^\n]*", recipe)
    assert len(installs) == 4
    assert all("--require-hashes" in each or each.split() == ["--no-build-isolation", "--editable", "."] for each in installs)


@needs_checkout
def test_every_action_is_named_by_its_commit() -> None:
    lines = [line.strip() for path in (ROOT / ".github").rglob("*.yml") for line in path.read_text().splitlines() if "uses:" in line]
    assert len(lines) >= 4
    for line in lines:
        assert re.fullmatch(r"- uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+", line), line


@needs_checkout
def test_every_workflow_states_what_its_token_may_do() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert re.search(r"^permissions:\n  contents: read$", path.read_text(), re.MULTILINE), path
