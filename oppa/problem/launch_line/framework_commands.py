"""Declare commands of frameworks that start their own ranks, each with the launch line of torchrun or accelerate that does the same.

Sources: swift/cli/main.py (ms-swift 4), llamafactory/launcher.py (0.9), axolotl/cli/main.py (0.13), trl/cli/commands/training.py (1.0),
litgpt/__main__.py (0.5), colossalai/cli/launcher (0.5) and llmfoundry/cli/cli.py (0.22).
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

_TORCHRUN, _ACCELERATE = "torchrun --nproc-per-node {count}", "accelerate launch --num_processes {count}"
_OF_SWIFT = ("pt", "sft", "rlhf")
_SWIFT_RANKS = ("NPROC_PER_NODE", "NNODES")
"""Variables of which ms-swift starts torchrun if one is set, and otherwise one process (swift/cli/main.py, use_torchrun)."""
_OF_TRL = ("sft", "dpo", "grpo", "kto", "reward", "rloo")
_LINES: Mapping[tuple[str, str], str] = {
    **{("swift", name): f"{_TORCHRUN} -m swift.cli.{name}" for name in _OF_SWIFT},
    **{("megatron", name): f"{_TORCHRUN} -m swift.cli._megatron.{name}" for name in _OF_SWIFT},
    **{("trl", name): f"{_ACCELERATE} -m trl.scripts.{name}" for name in _OF_TRL},
    **{("litgpt", name): f"{_TORCHRUN} -m litgpt {name}" for name in ("pretrain", "finetune", "finetune_lora", "finetune_full")},
    ("llamafactory-cli", "train"): f"{_TORCHRUN} -m llamafactory.launcher",
    ("axolotl", "train"): f"{_ACCELERATE} -m axolotl.cli.train",
    ("colossalai", "run"): _TORCHRUN,
}
"""Launch lines by the command's name and its first argument."""


def line_of_command(words: Sequence[str], *, count: str = "8", variables: Mapping[str, str] | None = None) -> str:
    """Return how the launch line begins that does the same as a command; empty for any other command.

    Args:
        count: Ranks of a host.
        variables: Those of the line and of the environment, of which some commands take their ranks; None: they are not known.
    """
    named = (PurePath(words[0]).name, words[1]) if len(words) > 1 else ("", "")
    line = _LINES.get(named, "").format(count=count)
    if named[0] == "swift" and line and variables is not None:
        if not any(variables.get(name) for name in _SWIFT_RANKS):
            return line.replace(_TORCHRUN.format(count=count), "python")
        if hosts := variables.get("NNODES"):
            return line.replace("torchrun", f"torchrun --nnodes {hosts}")
    return line
