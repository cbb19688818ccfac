"""The arguments of programs that tests start as ranks: a folder, the name of what they write, and options."""

import argparse
import json
from pathlib import Path
from typing import Any


def rank_arguments() -> tuple[Path, str, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("options", type=json.loads)
    given = parser.parse_args()
    return given.folder, given.name, given.options
