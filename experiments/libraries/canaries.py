"""Fill a folder with canaries, which launch lines write and their trials must not, and with the programs that write them."""

import hashlib
import shutil
from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / "tests" / "trials" / "canaries"
MOVES = ("canary", "wandb", "mlruns", "runs", "lightning_logs", "trainer_output")
"""Folders below the current one that programs may write."""


def fill(folder: Path) -> None:
    """Copy the programs into a folder, and make canaries there."""
    shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("out/checkpoint-1", "export", "logs", "tb", "root"):
        (folder / "canary" / name).mkdir(parents=True)
        (folder / "canary" / name / "mine.bin").write_bytes(name.encode())


def digest(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of the canary, and of folders that programs make by themselves."""
    files = (path for name in MOVES for path in (folder / name).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
