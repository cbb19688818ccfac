"""Name the copies of the configuration files that a launch line names."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePath


def copies_of(files: Mapping[str, PurePath], folder: Path) -> dict[str, Path]:
    """Return where in a folder the copy of each file is; files of one name have a subfolder each.

    Args:
        files: Paths of the files by placeholder, which also names the subfolder.
    """
    count = Counter(path.name for path in files.values())
    return {name: (folder if count[path.name] == 1 else folder / name) / path.name for name, path in files.items()}
