"""Read what a batch script requests of Slurm: the lines that begin with `#SBATCH`, and the options of `sbatch`."""

import re
from collections.abc import Mapping, Sequence

SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus-per-task", "p": "partition"}
"""Short options of sbatch and srun, by the letter."""
_LINE = re.compile(r"^#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", re.MULTILINE)


def header_of(text: str) -> tuple[str, ...]:
    """Return the options in a script's header."""
    return tuple(word for line in _LINE.findall(text) for word in line.split())


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


def variables_of(words: Sequence[str]) -> Mapping[str, str]:
    """Return the variables that Slurm sets in a script with these options."""
    options = options_of(words)
    nodes, tasks = options.get("nodes", ""), options.get("ntasks-per-node", "")
    found = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS_PER_NODE": tasks, "SLURM_NTASKS": options.get("ntasks", "")}
    gpus = (options.get("gpus-per-node") or options.get("gres", "")).rpartition(":")[2]
    found |= {"SLURM_GPUS_ON_NODE": gpus, "SLURM_CPUS_PER_TASK": options.get("cpus-per-task", "")}
    return {name: value for name, value in found.items() if value.isdigit()}
