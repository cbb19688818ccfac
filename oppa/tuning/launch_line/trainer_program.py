"""Describe programs that read the arguments of Transformers' Trainer with defaults of their own, or with other names.

Sources: trl/trainer/base_config.py and trl/experimental (TRL 1.0 to 1.16); llamafactory/hparams/ and model/model_utils/checkpointing.py
(LLaMA-Factory 0.9); swift/trainers/arguments.py and arguments/base_args/model_args.py (ms-swift 4);
internvl/train/internvl_chat_finetune.py (InternVL 2.5).
"""

import dataclasses
import math
import re
from collections.abc import Sequence

from oppa.errors import InputError
from oppa.tuning.formats.transformers import ACCUMULATED, DEFAULTS, MICRO, RECOMPUTE
from oppa.tuning.launch_line.program_source import always_recomputes
from oppa.tuning.launch_line.sources import LineSources

_TRL = re.compile(
    r"\b(SFT|DPO|(Async)?GRPO|RLOO|KTO|ORPO|CPO|PPO|BCO|GKD|XPO|OnlineDPO|NashMD|Reward|PRM"
    r"|(Async|Server)?Distillation|A2PO|GMPO|GOLD|IWOPD|SDFT|SDPO|TPO)Config\b"
)
"""Arguments of TRL's trainers, which extend those of Transformers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProgram:
    """Describes how a program's arguments differ from those of Transformers."""

    title: str = "Transformers"
    recomputes: bool = False
    """True if layers are recomputed unless an argument decides it."""
    recompute: Sequence[str] = RECOMPUTE
    """Arguments that decide whether layers are recomputed; trials state the first one. Empty: the program itself decides."""
    recompute_on: bool = True
    """The value of these arguments with which layers are recomputed."""
    pure: str = ""
    """Switch for training in bf16 alone, with weights and moments of 16 bits."""
    is_bf16: bool = False
    """True if the precision is bf16 unless an argument states it."""
    micro: int = DEFAULTS[MICRO]
    """Micro-batch that is not stated."""
    step: int = 0
    """Sequences of a step that are accumulated if no argument states how many; 0: none are accumulated."""
    model: str = "model_name_or_path"
    """Argument that names the model."""
    tuner: str = ""
    """Argument that names the weights to train, which are those of LoRA if it is not stated."""
    takes_keys: bool = False
    """True if arguments after a file have the form `key=value`."""
    dtype: str = ""
    """Argument that names the type of the weights, and thereby the precision."""
    presets: str = ""
    """Folder of the program's package with files of DeepSpeed that `--deepspeed` names without `.json`."""

    def default(self, name: str, *, micro: int | None, devices: int | None) -> int:
        """Return the value of an argument of the batch that is not stated."""
        if name == MICRO:
            return self.micro
        if name == ACCUMULATED and self.step:
            return max(1, math.ceil(self.step / (micro or self.micro) / (devices or 1)))
        return DEFAULTS[name]

    @property
    def is_named(self) -> bool:
        """Return whether the program is one that is known by its name or its imports."""
        return self not in (TRANSFORMERS, _RECOMPUTING)

    def require_own_file(self, name: str) -> None:
        """Raise InputError if `--deepspeed` names a file in the program's package."""
        if self.presets and re.fullmatch(r"zero\d\w*", name):
            message = f"`--deepspeed {name}` names a file in the package of {self.title}, of which trials get no copies"
            hint = f"copy `{self.presets}/{name}.json` into this folder, and name the copy: `--deepspeed {name}.json`"
            raise InputError(message, hint=hint)

    @property
    def recompute_words(self) -> dict[str, list[str]]:
        """Return the words of trials with and without recomputation, as far as arguments decide it."""
        if not self.recompute:
            return {"full" if self.recomputes else "none": []}
        name, values = f"--{self.recompute[0]}", ("false", "true") if self.recompute_on else ("true", "false")
        return {"none": [name, values[0]], "full": [name, values[1]]}


TRANSFORMERS = TrainerProgram()
_RECOMPUTING = TrainerProgram(title="the program", recomputes=True, recompute=())
_OF_TRL = TrainerProgram(title="TRL", recomputes=True, is_bf16=True)
_LLAMA_FACTORY = TrainerProgram(
    title="LLaMA-Factory",
    recomputes=True,
    recompute=("disable_gradient_checkpointing",),
    recompute_on=False,
    takes_keys=True,
    tuner="finetuning_type",
    pure="pure_bf16",
)
_SWIFT = TrainerProgram(
    title="ms-swift",
    recomputes=True,
    is_bf16=True,
    micro=1,
    step=16,
    model="model",
    tuner="tuner_type",
    dtype="torch_dtype",
    presets="swift/config",
)
_INTERN_VL = TrainerProgram(title="InternVL", recomputes=True, recompute=("grad_checkpoint",))
_NAMES = {
    re.compile(r"trl[./]scripts[./]\w+(\.py)?"): _OF_TRL,
    re.compile(r"llamafactory[./](launcher|cli)(\.py)?"): _LLAMA_FACTORY,
    re.compile(r"swift[./]cli[./](pt|sft|rlhf)(\.py)?"): _SWIFT,
    re.compile(r"internvl_chat_(finetune|pretrain)\w*\.py"): _INTERN_VL,
}
"""Programs by the end of their path, or by their module."""


def program_of(sources: LineSources) -> TrainerProgram:
    """Return what the program of a line is known to do with the Trainer's arguments; that of Transformers for any other one."""
    named = sources.line.program.text
    for pattern, program in _NAMES.items():
        if re.search(rf"(^|/){pattern.pattern}$", named):
            return program
    if sources.imports("llamafactory"):
        return _LLAMA_FACTORY
    if sources.imports(r"\bswift\.(llm|pipelines)"):
        return _SWIFT
    if sources.imports(r"\btrl\b") and _TRL.search(sources.script):
        return _OF_TRL
    return _RECOMPUTING if always_recomputes(sources.script) else TRANSFORMERS
