"""Write where a file of settings or an override of it states, else into folders that only the program knows, as such programs do."""

import sys
import time
from pathlib import Path

import yaml


def values(words: list[str]) -> dict[str, object]:
    """Return the settings of a file, with the overrides of the words."""
    found: dict[str, object] = {}
    for index, word in enumerate(words):
        name, equals, value = word.lstrip("-").partition("=")
        if word.endswith(".yaml"):
            found = {**(yaml.safe_load(Path(name if not equals else value).read_text()) or {}), **found}
        elif equals:
            found[name] = value
        elif word.startswith("--"):
            found[name] = words[index + 1]
    return found


def run(words: list[str], defaults: dict[str, str], printed: str) -> None:
    """Write a file into each folder, remove what was there before, and print steps."""
    stated = {key: value for key, value in values(words).items() if value is not None}
    for key, default in defaults.items():
        folder = Path(str(stated.get(key, default)))
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("mine*"):
            earlier.unlink()  # as programs that keep the last checkpoints do
        (folder / "checkpoint.bin").write_text("new")
    for step in range(1, 9):
        print(printed.format(step=step), flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    run(sys.argv[1:], {"output_dir": "model-out"}, "step {step} 20.0 ms")
