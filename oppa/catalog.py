"""Finds what an installation has, in a checkout and in a wheel alike: search spaces, priors, runners, and what installs an extra."""

import re
import shlex
import sys
from pathlib import Path

from oppa.errors import EnvironmentLackingError, InputError, nearest

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """The folder that holds `search_spaces/`, `priors/` and `runners/`: inside the wheel, else the checkout."""
    for folder in (_PACKAGE / "_catalog", _PACKAGE.parent):
        if (folder / "runners").is_dir():
            return folder
    raise EnvironmentLackingError(
        f"the installation in `{_PACKAGE}` has no `runners` folder",
        hint="install oppa again, from its wheel or its checkout: `pip install --force-reinstall PATH`",
    )


def client() -> Path:
    """Return the folder that programs have on PYTHONPATH: it holds `report.py` alone, so that no framework seems to be installed."""
    return root() / "runners" / "client"


def install_hint(extra: str, *, package: Path = _PACKAGE) -> str:
    """Return how to install one of oppa's extras. The public index has another project under oppa's name, so no hint names that.

    Args:
        extra: Its name in `pyproject.toml`, such as `peers`.
        package: Where oppa is installed; without a `pyproject.toml` above, the hint names the extra's packages.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if (package.parent / "pyproject.toml").is_file():
        return f"`{pip} -e '.[{extra}]'` in `{package.parent}`"
    return f"`{pip} {shlex.join(_requirements(extra))}`"


def _requirements(extra: str) -> list[str]:
    """Return the packages of an extra, as the installed metadata names them."""
    from importlib.metadata import requires

    named = (re.match(r"([^;]+);.*\bextra == ['\"]([\w-]+)['\"]", line) for line in requires("oppa") or ())
    return [found[1].strip() for found in named if found and found[2] == extra]


def names(kind: str) -> list[str]:
    """What there is of a kind: `search_spaces`, `priors` (TOML files) or `runners` (folders with a runner.toml)."""
    folder = root() / kind
    if kind == "runners":
        return sorted(path.parent.name for path in folder.glob("*/runner.toml"))
    return sorted(path.stem for path in folder.glob("*.toml"))


def find(kind: str, name: str, *, beside: Path | None = None) -> Path:
    """The file or folder that `name` means: a path (relative to `beside`) if it holds a `/` or a `.`, else a name of the catalog.

    Raises:
        InputError: if there is none; the hint names the nearest.
    """
    if "/" in name or "." in name:
        path = (beside or Path()) / name
        if not path.exists():
            raise InputError(f"`{path}` does not exist", hint=f"known {kind.replace('_', ' ')}: {', '.join(names(kind))}")
        return path.resolve()
    if name not in names(kind):
        raise InputError(f"`{name}` is none of the {kind.replace('_', ' ')}", hint=nearest(name, names(kind)))
    return root() / kind / (name if kind == "runners" else f"{name}.toml")
