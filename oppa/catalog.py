"""Finds the files that oppa reads or starts: search spaces, priors and runners, in a checkout and in a wheel alike."""

from pathlib import Path

from oppa.errors import EnvironmentLackingError, InputError, nearest


def root() -> Path:
    """The folder that holds `search_spaces/`, `priors/` and `runners/`: inside the wheel, else the checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_catalog", package.parent):
        if (folder / "runners").is_dir():
            return folder
    raise EnvironmentLackingError(
        f"the installation in `{package}` has no `runners` folder", hint="install oppa again: `pip install --force-reinstall oppa`"
    )


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
