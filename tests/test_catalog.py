"""The catalog: names and paths find files; what is missing is answered with the nearest."""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from oppa import catalog
from oppa.errors import InputError

ROOT = Path(__file__).parents[1]


def test_the_catalog_has_a_space_for_each_framework() -> None:
    assert {"torch", "deepspeed", "colossalai", "megatron"} <= set(catalog.names("search_spaces"))


@pytest.mark.parametrize("kind", ["search_spaces", "runners"])
def test_every_name_is_found(kind: str) -> None:
    for name in catalog.names(kind):
        assert catalog.find(kind, name).exists()


def test_a_path_is_relative_to_the_folder_given(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert catalog.find("runners", "./mine", base=tmp_path) == tmp_path / "mine"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError) as raised:
        catalog.find("search_spaces", "megatorn")
    assert raised.value.message == "`megatorn` is not one of the search spaces"
    assert raised.value.hint == "did you mean `megatron`?"


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        catalog.find("runners", "./no", base=tmp_path)


# What installs an extra

EXTRAS = sorted(set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) - {"dev"})
TEXTS = (
    ".ci",
    "client",
    "docs",
    "examples",
    "oppa",
    "priors",
    "runners",
    "search_spaces",
    "tests",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "LOG.md",
    "Makefile",
    "README.md",
)
SUFFIXES = (".py", ".md", ".toml", ".html", ".j2", ".js", ".sh", "")


@pytest.mark.parametrize("extra", EXTRAS)
def test_in_a_checkout_an_extra_is_the_checkout_s_own(extra: str) -> None:
    hint = catalog.install_hint(extra)
    assert f"pip install -e '.[{extra}]'" in hint and f"`{ROOT}`" in hint and sys.executable in hint


@pytest.mark.parametrize("extra", EXTRAS)
def test_of_a_wheel_the_hint_names_the_extra_s_packages(extra: str, tmp_path: Path) -> None:
    hint = catalog.install_hint(extra, package=tmp_path / "oppa")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    assert hint == f"`{sys.executable} -m pip install {shlex.join(declared)}`"


def test_every_extra_that_a_hint_asks_for_is_there() -> None:
    asked = {name for path in (ROOT / "oppa").rglob("*.py") for name in re.findall(r"install_hint\([\"'](\w+)[\"']\)", path.read_text())}
    asked |= set(tomllib.loads((ROOT / "experiments" / "baselines" / "designers.toml").read_text())["extras"].values())
    assert asked <= set(EXTRAS) and asked >= {"command", "learn", "peers"}


def test_every_package_that_the_tests_install_is_pinned() -> None:
    """Packages that torch alone requires are left out: a build for CUDA has others than one for CPUs."""
    pinned = {canonicalize_name(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    installed: set[tuple[str, str]] = set()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    waiting = [Requirement(text) for text in declared]
    while waiting:
        package = waiting.pop()
        name = canonicalize_name(package.name)
        for extra in {"", *package.extras} - {of for each, of in installed if each == name}:
            installed.add((name, extra))
            required = [Requirement(text) for text in (requires(name) or () if name != "torch" else ())]
            waiting += [each for each in required if each.marker is None or each.marker.evaluate({"extra": extra})]
    assert not {name for name, _ in installed} - pinned - {catalog.DISTRIBUTION}


def test_no_text_installs_oppa_from_an_index() -> None:
    """There, somebody else's project has that name. Only the checkout's own extras may name each other."""
    index = re.compile(r"pip3? install[^`\n]*[\s'\"]oppa(?![\w/.-])|['\"]oppa\[")
    for path in texts():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            assert not index.search(line), f"{path}:{number}: {line.strip()}"


def texts() -> Iterator[Path]:
    """Yield what people read or run, but for this file; `pyproject.toml` has `oppa[...]` for its own extras."""
    for name in TEXTS:
        for path in [ROOT / name, *sorted((ROOT / name).rglob("*"))]:
            if path.is_file() and path.suffix in SUFFIXES and path != Path(__file__) and "__pycache__" not in path.parts:
                yield path
