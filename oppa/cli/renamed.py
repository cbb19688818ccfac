"""Refuse removed names of commands and options, and name their replacements."""

import shlex
from collections.abc import Mapping, Sequence

from oppa.errors import InputError

COMMANDS = {"why": "explain", "schedule": "pipeline-schedule", "netlab": "emulate", "learn": "train-policy"}
VALUE = "{value}"
SCALING = {
    "--threshold": "scaling.threshold={value}",
    "--window-hours": "scaling.window={value} h",
    "--counted-gpus": "scaling.counted={value}",
    "--counted-hosts": "scaling.counted={value}",
    "--most": "scaling.max_scale={value}",
    "--max-scale": "scaling.max_scale={value}",
    "--first": "scaling.growth_order={value}",
    "--growth-order": "scaling.growth_order={value}",
}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "tune": {
        "--time": "limits.wall_time={value}",
        "--task": "task={value}",
        "--table": "replay.table={value}",
        "--runner": "runner.name={value}",
        "--parallel": "launcher.parallel={value}",
        "--sbatch": "launcher.options.{value}",
        "--transfer": "designer.transfer={value}",
    },
    "profile": {"--time": "limits.wall_time={value}"},
    "train": {
        "--samples": "train.samples={value}",
        "--seed": "training.seed={value}",
        "--hosts": "cluster.hosts={value}",
        "--launcher": "launcher.name={value}",
        "--sbatch": "launcher.options.{value}",
    },
    "train-policy": {
        "--curve": "learning.curve={value}",
        "--window": "learning.window={value}",
        "--form": "reward.form={value}",
        "--reward": "reward.{value}",
        "--samples": "train.samples={value}",
    },
    "pipeline-schedule": {
        "--model": "times.model={value}",
        "--weight-memory": "times.weight_memory={value}",
        "--chunks": "search.chunks=[{value}]",
        "--recompute": "search.recompute=true",
        "--no-recompute": "search.recompute=false",
    },
    "cluster simulate": {
        **SCALING,
        "--gpus-per-node": "cluster.gpus_per_node={value}",
        "--backfill": "cluster.backfill=true",
        "--fails-days": "cluster.failure_interval={value} d",
        "--replicas": "elastic.replicas=true",
        "--start-s": "elastic.start={value} s",
    },
    "cluster run": {**SCALING, "--sbatch": "{value}"},
}
"""The `--set` that replaces a removed option, by command."""
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "train": {
        "--recorded": "--eval-run {value}",
        "--in-force": "--policy rl,baseline={value}",
        "--baseline-policy": "--policy rl,baseline={value}",
    },
    "control": {"--every": "--decision-interval {value}"},
    "import": {"--set": "--values {value}"},
}
"""The options that replace a removed option, by command."""


def refuse_renamed(words: Sequence[str]) -> None:
    """Check the words after `oppa` for removed names; words after `--` are the user's own launch line.

    Raises:
        InputError: a command or an option was removed.
    """
    own = list(words[: words.index("--")] if "--" in words else words)
    while own and own[0].startswith("-"):
        own.pop(0)
    if own and own[0] in COMMANDS:
        raise InputError(f"`oppa {own[0]}` has a new name", hint=f"use `oppa {COMMANDS[own[0]]}` with the same arguments")
    for command in (" ".join(own[:count]) for count in (1, 2)):
        for number, word in enumerate(own):
            option, _, value = word.partition("=")
            if words_now := replaced(command, option, value or next(iter(own[number + 1 :]), "...")):
                raise InputError(f"`oppa {command}` has no option `{option}` any more", hint=f"use `{words_now}`")


def replaced(command: str, option: str, value: str) -> str:
    """Return the words that replace a removed option with its value; empty if the option was not removed."""
    if setting := SETTINGS.get(command, {}).get(option):
        return f"--set {shlex.quote(setting.replace(VALUE, value.removeprefix('--')))}"
    return OPTIONS.get(command, {}).get(option, "").replace(VALUE, value)
