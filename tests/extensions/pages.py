"""Follow a how-to page outside the repository: write its files, install its packages, and run its commands."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(\w+)\n(?:# (\S+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of code; one that belongs into a file begins with a comment, the name of the file."""


class Page:
    """Writes the files of one page to a folder, and runs its commands."""

    def __init__(self, name: str, folder: Path) -> None:
        blocks = BLOCK.findall((HOW_TO / f"{name}.md").read_text())
        self.folder = folder
        self.commands = [line for language, _, text in blocks if language == "sh" for line in text.splitlines()]
        self._installed: list[Path] = []
        for _, title, text in blocks:
            if title:
                path = folder / title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def run(self, command: str, *, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """Run a command of the page in its folder; the exit code must be `code`."""
        program, *words = shlex.split(command)
        if (program, words[0]) == ("pip", "install"):
            self._install(self.folder / words[1])
            return subprocess.CompletedProcess(words, 0)
        assert program == "oppa"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(map(str, self._installed))}
        argv = [sys.executable, "-P", "-m", "oppa", *words]
        done = subprocess.run(argv, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def _install(self, package: Path) -> None:
        """Install a package as pip does, without a network: put its folder on the path, and its metadata next to its modules."""
        project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
        metadata = package / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
        groups = [[f"[{group}]", *(f"{name} = {value}" for name, value in each.items())] for group, each in project["entry-points"].items()]
        (metadata / "entry_points.txt").write_text("\n".join(line for group in groups for line in group) + "\n")
        self._installed.append(package)
