"""A program of nobody's framework, which saves into a folder that is only the default of an option."""

import argparse
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--accumulate", type=int)
parser.add_argument("--out-dir", default="canary/out")
given = parser.parse_args()
folder = Path(given.out_dir)
for step in range(8):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.bin").write_text("overwritten")
    print(f"step {step} 20.0 ms", flush=True)
    time.sleep(0.02)
