"""Read what a batch script requests of Slurm: the lines that begin with `#SBATCH`, and the options of `sbatch`."""

import re
from collections.abc import Mapping, Sequence

from oppa.problem.bounded_text import whole_number

SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus-per-task", "p": "partition", "D": "chdir"}
"""Short options of sbatch and srun, by the letter."""
BINDING = ("cpu-bind", "gpu-bind", "mem-bind")
"""Options of srun that bind the tasks of a step to CPUs, GPUs and memory."""
_LINE = re.compile(r"#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?")


def header_of(text: str) -> tuple[str, ...]:
    """Return the options in a script's header, which ends at the first command."""
    found: list[str] = []
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if match := _LINE.fullmatch(line):
            found += match[1].split()
    return tuple(found)


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return options by their long names; of two equal ones the later counts."""
    found: dict[str, str] = {}
    previous = ""
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            found[previous] = word
        elif word.startswith("--"):
            previous = name
            found[name] = value if equals else ""
        else:
            previous = SHORT.get(name[:1], name[:1])
            found[previous] = name[1:]
    return found


def gpus_of(stated: str) -> int | None:
    """Return the GPUs in the value of `--gres` or `--gpus-per-node`, such as `gpu:h100:8,nvme:1` or `8`; None if there are none."""
    total = 0
    for each in stated.split(","):
        kind, *rest = re.sub(r"\(.*", "", each).split(":")
        if whole_number(kind) is not None and not rest:
            total += int(kind)
        elif kind == "gpu" or "gpu:" not in stated:
            total += (whole_number(rest[-1]) or 0) if rest and rest[-1].isdigit() else kind == "gpu"
    return total or None


def exported_by(value: str | None) -> tuple[bool, Mapping[str, str]]:
    """Return whether the value of `--export` passes the environment on, and the variables that it sets."""
    words = (value or "ALL").split(",")
    return "ALL" in words, dict(word.split("=", 1) for word in words if "=" in word)


def variables_of(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that Slurm sets in a script or a step with these options."""
    nodes, tasks = options.get("nodes", ""), options.get("ntasks-per-node", "")
    found = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS_PER_NODE": tasks, "SLURM_NTASKS": options.get("ntasks", "")}
    gpus = gpus_of(options.get("gpus-per-node") or options.get("gres", ""))
    found |= {"SLURM_GPUS_ON_NODE": str(gpus or ""), "SLURM_CPUS_PER_TASK": options.get("cpus-per-task", "")}
    return {name: value for name, value in found.items() if value.isdigit()}
