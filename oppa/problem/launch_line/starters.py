"""Declare the programs that start other programs, and which of their options take a value.

A name of a long option is written with dashes; the programs of Python's world accept underscores as well.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Literal

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
"""A word that sets a variable of the program after it."""
Kind = Literal["wrapper", "step", "launcher"]
"""A wrapper starts one process; a step of a cluster starts several, on its hosts; a launcher starts the ranks of one host."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Describes a program that starts another one."""

    name: str
    kind: Kind = "wrapper"
    begins: tuple[str, ...] = ()
    """Words that follow its name, such as `launch` of accelerate."""
    leading_values: frozenset[str] = frozenset()
    """Options with a value that may stand in front of `begins`; all others there have none."""
    flags: frozenset[str] = frozenset()
    """Options without a value. All others take one, in the next word or after `=`."""
    short_flags: str = ""
    """Letters of short options without a value."""
    pairs: frozenset[str] = frozenset()
    """Options with two values, such as `--mca KEY VALUE`."""
    operands: int = 0
    """Words between its options and the program, such as the image of apptainer."""
    long_by_one_dash: bool = False
    """True if one dash may stand before a whole name, as in `-np 8`."""
    module: bool = False
    """True if `-m` or `--module` means that the program is a module of Python."""


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TORCHRUN = _flags("standalone no-python run-path virtual-local-rank use-env help module m")
_ACCELERATE = _flags(
    """
    cpu multi-gpu tpu use-deepspeed use-fsdp use-megatron-lm use-xpu use-mps-device mps ipex use-parallelism-config quiet q debug module m
    no-python tpu-cluster no-tpu-cluster tpu-use-sudo enable-cpu-affinity same-network use-tpu-cluster use-cpu
    """
)
_DEEPSPEED = _flags("no-python no-local-rank no-ssh no-ssh-check module m force-multi save-pid elastic-training bind-cores-to-rank")
_COMPOSER = _flags("verbose v module-mode m command-mode c version help")
_SRUN = _flags(
    """
    label unbuffered overcommit no-kill verbose quiet pty multi-prog preserve-env disable-status exclusive overlap exact contiguous
    container-writable no-container-mount-home container-mount-home container-remap-root no-container-remap-root container-readonly
    no-container-entrypoint container-entrypoint oversubscribe spread-job use-min-nodes whole no-allocate mpi-combine
    """
)
_MPIRUN = _flags(
    """
    allow-run-as-root oversubscribe nooversubscribe tag-output display-map report-bindings quiet verbose nolocal pernode
    bycore bynode byslot
    """
)
_MPIRUN_PAIRS = _flags("mca gmca pmca omca env genv")
_APPTAINER = _flags(
    """
    nv rocm cleanenv e containall C contain c fakeroot writable-tmpfs writable no-home userns pid ipc compat unsquash nvccli no-init
    """
)
_UV = _flags(
    """
    all-extras no-dev only-dev no-default-groups all-groups active inexact exact no-sync locked frozen isolated offline no-project quiet q
    verbose v no-cache n no-config managed-python no-managed-python no-env-file no-editable refresh upgrade U reinstall no-build no-index s
    """
)

STARTERS: Mapping[str, Starter] = {
    starter.name: starter
    for starter in (
        Starter(name="env", flags=_flags("ignore-environment null debug"), short_flags="i0v"),
        Starter(name="nohup"),
        Starter(name="time", short_flags="pv"),
        Starter(name="exec"),
        Starter(name="setsid", short_flags="cfw"),
        Starter(name="nice"),
        Starter(name="ionice", short_flags="t"),
        Starter(name="stdbuf"),
        Starter(name="timeout", operands=1, flags=_flags("preserve-status foreground verbose"), short_flags="v"),
        Starter(name="taskset", operands=1, short_flags="a"),
        Starter(name="numactl", flags=_flags("localalloc all touch show hardware"), short_flags="lasH"),
        Starter(name="uv", begins=("run",), flags=_UV, short_flags="qvnUs"),
        Starter(name="poetry", begins=("run",)),
        Starter(name="pdm", begins=("run",)),
        Starter(name="pixi", begins=("run",)),
        Starter(name="conda", begins=("run",), flags=_flags("no-capture-output live-stream verbose dev"), short_flags="v"),
        Starter(name="mamba", begins=("run",), flags=_flags("no-capture-output live-stream")),
        Starter(name="micromamba", begins=("run",)),
        Starter(name="apptainer", begins=("exec",), leading_values=_flags("config c"), flags=_APPTAINER, short_flags="eCcfu", operands=1),
        Starter(name="singularity", begins=("exec",), leading_values=_flags("config c"), flags=_APPTAINER, short_flags="eCcfu", operands=1),
        Starter(name="srun", kind="step", flags=_SRUN, short_flags="lukOQvsXEZI"),
        Starter(name="mpirun", kind="step", flags=_MPIRUN, short_flags="vq", pairs=_MPIRUN_PAIRS, long_by_one_dash=True),
        Starter(name="mpiexec", kind="step", flags=_MPIRUN, short_flags="vq", pairs=_MPIRUN_PAIRS, long_by_one_dash=True),
        Starter(name="torchrun", kind="launcher", long_by_one_dash=True, flags=_TORCHRUN, module=True),
        Starter(
            name="accelerate", begins=("launch",), kind="launcher", long_by_one_dash=True, flags=_ACCELERATE, short_flags="q", module=True
        ),
        Starter(name="deepspeed", kind="launcher", long_by_one_dash=True, flags=_DEEPSPEED, module=True),
        Starter(name="composer", kind="launcher", flags=_COMPOSER, short_flags="vmc", module=True),
    )
}
STARTERS = {**STARTERS, "tune": dataclasses.replace(STARTERS["torchrun"], begins=("run",))}  # torchtune hands its options on to torchrun
MODULES: Mapping[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic.multiprocessing": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Modules that `python -m` starts, with the launcher that each is."""
FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(("docker", "podman", "podman-hpc", "nerdctl"), "the processes of its container are no children of its own"),
    "kubectl": "it starts the ranks in a cluster of its own",
    "ray": "it starts the ranks in a cluster of its own",
    "sky": "it starts the ranks on machines of its own",
    "ssh": "ranks that are started by ssh cannot be ended surely",
    "pdsh": "ranks that are started by ssh cannot be ended surely",
}
"""Programs whose ranks oppa cannot end, with the reason."""
PYTHON = re.compile(r"python[0-9.]*|pypy[0-9.]*|\$\{?PYTHON\w*\}?")
SHELLS = ("bash", "sh", "zsh", "dash")
_PYTHON_VALUES = frozenset("XWQ")


def launcher_options_at(words: Sequence[str]) -> int | None:
    """Return the index at which further options of the launcher of a launch line may stand; None if it names no launcher."""
    for index, word in enumerate(words):
        is_module = index > 0 and words[index - 1] == "-m" and word in MODULES
        starter = STARTERS.get(MODULES[word] if is_module else PurePath(word).name)
        if starter is None or starter.kind != "launcher":
            continue
        begins = () if is_module and word != starter.name else starter.begins
        end = index + 1 + len(begins)
        if tuple(words[index + 1 : end]) == begins:
            return end
    return None


def options_at(starter: Starter, behind: Sequence[str]) -> int:
    """Return the index of a starter's options among the words that follow its name, after `begins` and the options in front of it."""
    at = 0
    while starter.begins and at < len(behind) and behind[at].startswith("-"):
        at += 2 if name_of(behind[at]) in starter.leading_values and "=" not in behind[at] else 1
    return at + len(starter.begins)


def name_of(option: str) -> str:
    """Return an option's name without dashes in front and without its value; underscores count as dashes."""
    return option.lstrip("-").partition("=")[0].replace("_", "-")


def takes_value(starter: Starter, option: str) -> bool:
    """Return whether an option of a starter takes its value from the next word."""
    if "=" in option:
        return False
    if option.startswith("--") or (len(name_of(option)) > 1 and starter.long_by_one_dash):
        return name_of(option) not in starter.flags
    if len(option) > 2:
        return False  # `-N64`, or several flags in one word
    return option[1:] not in starter.short_flags and name_of(option) not in starter.flags


def python_option_takes_value(option: str) -> bool:
    """Return whether an option of the interpreter takes its value from the next word, as `-X` and `-W` do."""
    return len(option) == 2 and option[1] in _PYTHON_VALUES
