"""Make ColossalAI importable without things that it requires on import and this runner never uses.

Packages: ColossalAI imports 8-bit optimizers, GaLore and LoRA adapters. Empty modules replace those that are not installed.

CUDA: ColossalAI queries the current device and its capability, for a default of Gemini's and for 8-bit floats. The query would initialise
CUDA in the importing process, and a process with CUDA initialised cannot be forked.
"""

import contextlib
import importlib.machinery
import importlib.util
import sys
import types

import torch
from colossalai.accelerator import set_accelerator

_PACKAGES = {
    "bitsandbytes": {"__version__": "0"},
    "bitsandbytes.optim": {},
    "bitsandbytes.optim.optimizer": {"Optimizer2State": type("Optimizer2State", (), {})},
    "galore_torch": {"GaLoreAdafactor": None, "GaLoreAdamW": None},
    "peft": {"PeftModel": type("PeftModel", (), {}), "PeftType": None},
    "peft.utils": {},
    "peft.utils.other": {"EMBEDDING_LAYER_NAMES": (), "check_file_exists_on_hf_hub": None},
    "peft.utils.save_and_load": {"get_embedding_layer_name": None, "has_valid_embedding_base_layer": None},
}


@contextlib.contextmanager
def undemanding():
    """Allow ColossalAI to be imported inside without initialising CUDA; its accelerator must be set before it is used."""
    _stand_in()
    set_accelerator("cpu")
    wake, torch.cuda._lazy_init = torch.cuda._lazy_init, _refuse
    try:
        yield
    finally:
        torch.cuda._lazy_init = wake


def _stand_in():
    lacking = {name for name in _PACKAGES if "." not in name and importlib.util.find_spec(name) is None}
    for name, values in _PACKAGES.items():
        if name.partition(".")[0] in lacking:
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
            module.__path__ = []
            module.__dict__.update(values)
            sys.modules[name] = module


def _refuse():
    raise RuntimeError("ColossalAI must not initialise CUDA during its import")
