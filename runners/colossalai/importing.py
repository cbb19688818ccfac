"""What ColossalAI asks for while it is imported, and this runner never uses.

Packages: 8-bit optimizers, GaLore and LoRA adapters. Where they are not installed, empty modules stand in.
CUDA: which device is current, and what it can do, for a default of Gemini's and for 8-bit floats. The answer would wake CUDA in the
process that imports, and what is awake cannot be forked.
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
    """ColossalAI can be imported inside, and leaves CUDA asleep; its accelerator must be set before it is used."""
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
    raise RuntimeError("CUDA is left asleep while ColossalAI is imported")
