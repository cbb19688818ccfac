"""Split a locked list of requirements (stdin), with the hashes of PyPI, into the files that `make setup` installs one after the other.

packages.txt    all packages but the two below
torch.txt       torch: the files of PyPI, and the CPU builds of PyTorch's own index, whose hashes are in torch-cpu.sha256
cuda.txt        the packages that only PyPI's builds of torch need

With the argument `ray.txt`, write this file: the packages of the list that packages.txt has not.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEADER = "# Written by `make lock`.\n"
_CUDA = re.compile(r"(triton|cuda|nvidia)\b")


def main() -> None:
    """Write the files."""
    entries = _entries(sys.stdin.read())
    if sys.argv[1:]:
        installed = {_name(entry) for entry in _entries((HERE / "packages.txt").read_text())}
        (HERE / sys.argv[1]).write_text(HEADER + "".join(entry for entry in entries if _name(entry) not in installed))
        return
    torch = [entry for entry in entries if entry.startswith("torch==")]
    if not torch:
        sys.exit("there is no torch in the list: uv has failed")
    cuda = [entry for entry in entries if _CUDA.match(entry)]
    packages = [entry for entry in entries if entry not in torch and entry not in cuda]
    files = {"packages.txt": packages, "torch.txt": [_with_cpu_builds(entry) for entry in torch], "cuda.txt": cuda}
    for name, found in files.items():
        (HERE / name).write_text(HEADER + "".join(found))


def _entries(text: str) -> list[str]:
    """Return the packages of a locked list, each with its hashes."""
    return re.findall(r"^\S.*(?:\n +.*)*\n", text, re.MULTILINE)


def _name(entry: str) -> str:
    return entry.partition("==")[0]


def _with_cpu_builds(entry: str) -> str:
    """Return torch's entry with the hashes of the CPU builds of its version."""
    version = entry.partition("==")[2].split()[0]
    lines = [line.split() for line in (HERE / "torch-cpu.sha256").read_text().splitlines()]
    if any(not name.startswith(f"torch-{version}+cpu-") for _, name in lines):
        sys.exit(f"torch-cpu.sha256 is not about torch {version}: take the hashes from https://download.pytorch.org/whl/cpu/torch/")
    return entry.rstrip("\n") + "".join(f" \\\n    --hash=sha256:{digest}" for digest, _ in lines) + "\n"


main()
