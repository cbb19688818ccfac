"""Drive the training loop of Megatron-Bridge, from its own files, without the packages for GPUs that it imports.

Bridge's own are `pretrain`, `train`, `train_step`, the decision to save and exit, sampler, state, and the configuration of training and
checkpoints. Model, gradients, set-up, evaluation, logs and the content of a checkpoint have a stand-in.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.own_trainer.folders import TOTAL

ROOT = "megatron.bridge"
FOREIGN = ("modelopt", "nvidia_resiliency_ext", "omegaconf")
"""Packages that Bridge imports, but that its loop does not call here."""
LEFT_OUT = tuple(
    f"{ROOT}.{name}"
    for name in ("models", "peft.lora", "data.builders", "data.datasets", "data.utils", "training.setup", "training.tokenizers")
)
"""Modules of Bridge that import Transformer Engine, or packages of data and tokenizers."""


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes modules that have each name that is imported from them, as an empty class."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_one = any(fullname == name or fullname.startswith(f"{name}.") for name in (*FOREIGN, *LEFT_OUT))
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_one else None

    def exec_module(self, module: types.ModuleType) -> None:
        def empty(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = empty


@contextmanager
def imported() -> Iterator[SimpleNamespace]:
    """Yield Bridge's modules by their last names, and forget them all afterwards, or skip the tests."""
    found = importlib.util.find_spec(ROOT) if importlib.util.find_spec("megatron") else None
    if found is None or importlib.util.find_spec("megatron.core") is None:
        pytest.skip("NOT TESTED with Megatron-Bridge, which is not installed, or without megatron-core")
    stand_ins, before = _StandIns(), set(sys.modules)
    for name in (ROOT, f"{ROOT}.training", f"{ROOT}.data"):  # without what their `__init__` imports
        package = types.ModuleType(name)
        package.__path__ = [str(Path(str(found.origin)).parent.joinpath(*name.split(".")[2:]))]
        sys.modules[name] = package
    sys.meta_path.insert(0, stand_ins)
    try:
        wanted = ("training.pretrain", "training.train", "training.config", "training.state", "training.checkpointing", "data.samplers")
        yield SimpleNamespace(**{name.split(".")[1]: importlib.import_module(f"{ROOT}.{name}") for name in wanted})
    finally:
        sys.meta_path.remove(stand_ins)
        for name in set(sys.modules) - before:
            if name.split(".")[0] in FOREIGN or name.startswith(ROOT):
                del sys.modules[name]


def configuration(bridge: SimpleNamespace, save: Path, **changed: Any) -> SimpleNamespace:
    """Return what a user gives to `pretrain`; `changed` has values by the name of their part and their own."""
    train = {"micro_batch_size": 2, "global_batch_size": 8, "train_samples": TOTAL, "eval_interval": 3, "eval_iters": 1}
    model = {"seq_length": 1, "pipeline_model_parallel_size": 1, "cuda_graph_impl": "none", "fp16": False}
    absent = dict.fromkeys(("virtual_pipeline_model_parallel_size", "fp8", "param_sync_func"))
    ddp = dict.fromkeys(("use_megatron_fsdp", "use_distributed_optimizer", "overlap_param_gather"), False)
    optimizer = dict.fromkeys(("use_distributed_optimizer", "barrier_with_L1_time", "log_num_zeros_in_grad"), False)
    parts = dict.fromkeys(("straggler", "nvrx_straggler", "profiling", "tensor_inspect"))
    config = SimpleNamespace(
        train=bridge.config.TrainingConfig(**train),
        checkpoint=bridge.config.CheckpointConfig(save=str(save)),
        logger=bridge.config.LoggerConfig(),
        model=SimpleNamespace(**model, **absent),
        ddp=SimpleNamespace(**ddp),
        optimizer=SimpleNamespace(**optimizer, reuse_grad_buf_for_mxfp8_param_ag=False),
        dataset=SimpleNamespace(dataloader_type="single"),
        inprocess_restart=SimpleNamespace(enabled=False),
        dist=SimpleNamespace(use_decentralized_pg=True, distributed_timeout_seconds_after_init=None),
        **parts,
    )
    for name, value in changed.items():
        part, own = name.split("__")
        setattr(getattr(config, part), own, value)
    return config


class BridgeParts:
    """Stands for what needs a GPU or a model: each step takes samples of Bridge's loader, and a checkpoint has Bridge's state alone.

    Args:
        bridge: The modules.
        patch: Undoes what is replaced here, and what `supervise` wraps.
    """

    def __init__(self, bridge: SimpleNamespace, patch: pytest.MonkeyPatch) -> None:
        self.bridge, self.param_groups = bridge, [{"max_lr": 1.0, "min_lr": 0.0, "is_decoupled_lr": False}]
        self.taken: list[tuple[list[int], float]] = []
        """Numbers of the samples, and learning rate, of each step."""
        self._samples: list[int] = []
        self._unfinished: list[Callable[[], None]] = []
        replaced = {"runtime_config_update": self._update, "get_dataset_provider": lambda _: None, "setup": self._set_up}
        replaced |= {"save_checkpoint": self.save, "evaluate_and_print_results": lambda *_, **__: None}
        sources = [sys.modules[f"{ROOT}.{name}"] for name in ("data.utils", "training.eval", "training.setup")]
        for module in (bridge.pretrain, bridge.train, bridge.checkpointing, bridge.config, *sources):
            for name in filter(partial(hasattr, module), replaced):
                patch.setattr(module, name, replaced[name])
        for module, name in ((bridge.pretrain, "train"), (bridge.train, "train"), (bridge.train, "train_step")):
            patch.setattr(module, name, getattr(module, name))
        patch.setattr(bridge.train, "get_forward_backward_func", lambda **_: self._forward_backward)
        patch.setattr(bridge.train, "training_log", lambda *_: False)
        patch.setattr(bridge.train.flop_utils, "num_floating_point_operations", lambda *_: 0)
        for name in ("logical_and_across_model_parallel_group", "reduce_max_stat_across_model_parallel_group"):
            patch.setattr(bridge.train, name, lambda value, mp_group: value)
        patch.setattr(torch.cuda, "synchronize", lambda: None)
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")

    def zero_grad(self) -> None:
        """Stand for the optimizer's method."""

    def step(self) -> tuple[bool, float, int]:
        """Return whether a step of the optimizer took place, the norm of its gradient, and the number of zeros in it."""
        self.taken.append((self._samples, self.param_groups[0]["lr"]))
        return True, 1.0, 0

    def save(self, state: Any, *_: Any, **__: Any) -> None:
        """Save Bridge's state where Bridge does."""
        found, save, step = self.bridge.checkpointing, state.cfg.checkpoint.save, state.train_state.step
        folder, values = found.get_checkpoint_name(save, step), state.train_state.state_dict()
        found.ensure_directory_exists(folder, check_parent=False)

        def finalize() -> None:
            torch.save(values, found.get_checkpoint_train_state_filename(folder))
            shutil.copy(found.get_checkpoint_train_state_filename(folder), found.get_checkpoint_train_state_filename(save, prefix="latest"))
            Path(found.get_checkpoint_tracker_filename(save)).write_text(str(step))

        self._unfinished.append(finalize)
        if not state.cfg.checkpoint.async_save:
            self.maybe_finalize_async_calls()

    def get_num_unfinalized_calls(self) -> int:
        """Stand for the method of Bridge's queue of asynchronous checkpoints."""
        return len(self._unfinished)

    def maybe_finalize_async_calls(self, blocking: bool = True) -> None:
        """Complete the checkpoints, which takes until Bridge waits for them."""
        while blocking and self._unfinished:
            self._unfinished.pop(0)()

    def close(self) -> None:
        """Stand for the queue's method."""

    def _update(self, config: SimpleNamespace) -> None:
        config.train.finalize()
        config.checkpoint.finalize()
        config.data_parallel_size = 1

    def _set_up(self, state: Any, *_: Any, **__: Any) -> SimpleNamespace:
        from tests.client.megatron_loop import schedule

        config, found, model = state.cfg, self.bridge.checkpointing, torch.nn.Linear(1, 1)
        model.config, model.zero_grad_buffer = config.model, lambda: None
        if found.checkpoint_exists(config.checkpoint.load):
            iteration, _ = found._resolve_checkpoint_iteration(config.checkpoint.load, config.checkpoint.ckpt_step)
            folder = found.get_checkpoint_name(config.checkpoint.load, iteration)
            state.train_state = found.read_train_state(found.get_checkpoint_train_state_filename(folder))
        state.train_state.do_train = state.train_state.do_valid = True
        state._async_calls_queue = self
        done, size = state.train_state.consumed_train_samples, config.train.micro_batch_size
        loader = self.bridge.samplers.build_pretraining_data_loader(range(TOTAL), done, "single", size, 0, True, pin_memory=False)
        world = torch.distributed.group.WORLD
        given = {"state": state, "model": [model], "optimizer": self, "scheduler": schedule(self, done), "checkpointing_context": {}}
        given |= {"train_data_iterator": self.bridge.train.RerunDataIterator(iter(loader)), "valid_data_iterator": None}
        groups = SimpleNamespace(pp=world, dp=world, dp_cp=world, mp=world)
        return SimpleNamespace(**given, test_data_iterator=None, pg_collection=groups)

    def _forward_backward(self, data_iterator: Any, num_microbatches: int, **_: Any) -> list[dict[str, torch.Tensor]]:
        batches = [next(data_iterator) for _ in range(num_microbatches)]
        self._samples = torch.cat(batches).tolist()
        return [{"lm loss": torch.tensor([2.5 * len(batch), len(batch)])} for batch in batches]
