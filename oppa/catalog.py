"""Find what an installation has: search spaces, priors, runners, files of web pages, published measurements; how to install an extra."""

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

from oppa.errors import EnvironmentLackingError, InputError, require_known

DISTRIBUTION = "oppa-tuner"
"""oppa's name on the package index, where another project is named `oppa`."""
_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """Return the folder that holds `search_spaces/`, `priors/`, `runners/` and `client/`: inside the wheel, else the checkout.

    Raises:
        EnvironmentLackingError: the installation has no such folder.
    """
    for folder in (_PACKAGE / "_catalog", _PACKAGE.parent):
        if (folder / "runners").is_dir():
            return folder
    raise EnvironmentLackingError(
        f"the installation in `{_PACKAGE}` has no `runners` folder",
        hint="install oppa again from its wheel or its checkout: `pip install --force-reinstall PATH`",
    )


def client() -> Path:
    """Return the folder that oppa adds to the PYTHONPATH of programs.

    It holds the package `oppa_client` and nothing else to import, so that no folder of oppa is imported in place of a framework.
    """
    return root() / "client"


def web(name: str) -> str:
    """Return the text of a file in `oppa/web`, which the pages for browsers are made of."""
    return (_PACKAGE / "web" / name).read_text(encoding="utf-8")


def charts_script() -> str:
    """Return the script that makes the figures of a page interactive: uPlot under its licence, and oppa's use of it."""
    return f"/*\n{web('uplot.LICENSE')}*/\n{web('uplot.js')}\n{web('charts.js')}"


def charts_style() -> str:
    """Return the style sheet of interactive figures, with the colours of all figures."""
    return "".join(map(web, ("colours.css", "uplot.css", "charts.css")))


def install_hint(extra: str, *, package: Path = _PACKAGE) -> str:
    """Return the command that installs one of oppa's extras.

    In an environment without pip, as `uv tool` makes it, uv installs the packages.

    Args:
        extra: Its name in `pyproject.toml`, such as `peers`.
        package: Folder of the installed package; if no `pyproject.toml` is above it, the hint names the extra's packages.
    """
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install" if importlib.util.find_spec("pip") else f"uv pip install --python {python}"
    if (package.parent / "pyproject.toml").is_file():
        return f"`{pip} -e '.[{extra}]'` in `{package.parent}`"
    return f"`{pip} {shlex.join(_requirements(extra))}`"


def _requirements(extra: str) -> list[str]:
    """Return the packages of an extra, as the installed metadata names them."""
    from importlib.metadata import requires

    named = (re.match(r"([^;]+);.*\bextra == ['\"]([\w-]+)['\"]", line) for line in requires(DISTRIBUTION) or ())
    return [found[1].strip() for found in named if found and found[2] == extra]


def data_folder() -> Path:
    """Return the folder of published measurements, which may not exist: OPPA_DATA, else `../shared/data`."""
    return Path(os.environ.get("OPPA_DATA") or "../shared/data")


def names(kind: str) -> list[str]:
    """Return the sorted names of a kind: `search_spaces`, `priors` (TOML files) or `runners` (folders with a runner.toml)."""
    folder = root() / kind
    if kind == "runners":
        return sorted(path.parent.name for path in folder.glob("*/runner.toml"))
    return sorted(path.stem for path in folder.glob("*.toml"))


def find(kind: str, name: str, *, base: Path | None = None) -> Path:
    """Return the file or folder of this name.

    Args:
        name: A path if it contains a `/` or a `.`, else a name of the catalogue.
        base: Folder to which a path is relative; None: the current one.

    Raises:
        InputError: there is none; the hint lists the known names, or the nearest.
    """
    if "/" in name or "." in name:
        path = (base or Path()) / name
        if not path.exists():
            raise InputError(f"`{path}` does not exist", hint=f"use one of the {kind.replace('_', ' ')} {', '.join(names(kind))}")
        return path.resolve()
    require_known(name, names(kind), f"`{name}` is not one of the {kind.replace('_', ' ')}")
    return root() / kind / (name if kind == "runners" else f"{name}.toml")
