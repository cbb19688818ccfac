"""Find what a program of Megatron-LM or Megatron-Bridge states, and connect its loop to the run."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from oppa_client.run import Run, open_run
from oppa_client.run_files import ContractError

GROWING = {"batch": "up", "whole_steps": True}
"""Megatron's loop asserts that the number of micro-batches never falls, and drops the samples that fill no step."""
RESHARDING = {"restart": True, "elastic": True}
"""Abilities with a checkpoint that another layout can load."""


def supervise(config: Any = None, *, statistics: Callable[[Any], Any] | None = None) -> Run | None:
    """Connect the loop that the program is about to start to its run, or its trial; return None outside oppa, where nothing changes.

    Args:
        config: The `ConfigContainer` of Megatron-Bridge; None for Megatron-LM, which reads the command line.
        statistics: Returns what measures the gradients of the model's chunks, as `oppa.training.GradientStatistics` does.

    Raises:
        ContractError: the version of Megatron is not supported, or the checkpoint to resume is none of Megatron.
    """
    able = {**GROWING, **(RESHARDING if _reshards(config) else {})}
    run = open_run(able)
    if run is None:
        return None
    from oppa_client.megatron.loop import SupervisedLoop

    resume = run.resume
    if config is None:
        sys.argv += [] if resume is None else resume_words(resume.checkpoint, resume.step)
        program: Any = MegatronLM()
    else:
        if resume is not None:
            load, step = _parts_of(resume.checkpoint, resume.step)
            config.checkpoint.load, config.checkpoint.ckpt_step, config.checkpoint.exit_on_missing_checkpoint = load, step, True
        program = MegatronBridge()
    SupervisedLoop(run, program, statistics).connect()
    return run


def resume_words(checkpoint: str, step: int) -> list[str]:
    """Return the options with which Megatron-LM resumes a checkpoint, and fails without it; raises ContractError for another path."""
    load, iteration = _parts_of(checkpoint, step)
    return ["--load", load, "--ckpt-step", str(iteration), "--exit-on-missing-checkpoint"]


def checkpoint_path(save: str, iteration: int) -> Path:
    """Return the folder in which Megatron saves an iteration."""
    return Path(save) / f"iter_{iteration:07d}"


def completed_iteration(save: str) -> int:
    """Return the newest iteration that Megatron states as completely saved; 0 if there is none."""
    tracker = Path(save) / "latest_checkpointed_iteration.txt"
    try:
        text = tracker.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def _parts_of(checkpoint: str, step: int) -> tuple[str, int]:
    path = Path(checkpoint)
    found = re.fullmatch(r"iter_(\d+)", path.name)
    if found is None or int(found[1]) != step:
        raise ContractError(f"the checkpoint `{checkpoint}` is not Megatron's folder of iteration {step}, `iter_{step:07d}`")
    return str(path.parent), step


def _reshards(config: Any) -> bool:
    """Return True if the checkpoints that the program saves can be loaded in another layout."""
    if config is None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--ckpt-format", default="torch_dist")
        parser.add_argument("--use-distributed-optimizer", action="store_true")
        parser.add_argument("--dist-ckpt-optim-fully-reshardable", action="store_true")
        stated, _ = parser.parse_known_args()
        sharded, fully = stated.use_distributed_optimizer, stated.dist_ckpt_optim_fully_reshardable
        return bool(stated.ckpt_format == "torch_dist" and (fully or not sharded))
    saved = config.checkpoint
    sharded = config.optimizer.use_distributed_optimizer or config.ddp.use_distributed_optimizer
    return bool(saved.ckpt_format == "torch_dist" and (saved.dist_ckpt_optim_fully_reshardable or not sharded))


def _captures_iterations(stated: Any) -> bool:
    """Return True if a CUDA graph has a whole iteration: it would be replayed with the number of micro-batches of its capture."""
    return any(getattr(scope, "name", scope) == "full_iteration" for scope in getattr(stated, "cuda_graph_scope", None) or ())


class MegatronLM:
    """Reads and sets what counts in the global arguments of Megatron-LM."""

    title = "Megatron-LM"
    modules = ("megatron.training.training",)
    names: Mapping[str, str] = MappingProxyType(
        {"total": "--train-samples", "save": "--save", "load": "--load", "micro_batch": "--micro-batch-size {micro_batch}"}
    )

    def attach(self, *_: Any) -> None:
        """Take up the arguments, which exist once the loop begins."""
        args = self.args = importlib.import_module("megatron.training").get_args()
        self.iteration, self.samples = args.iteration, args.consumed_train_samples
        self.micro_batch, self.replicas, self.stages = args.micro_batch_size, args.data_parallel_size, args.pipeline_model_parallel_size
        self.total, self.save, self.scaled = args.train_samples, args.save, args.fp16

    def obstacles(self, *, resumes: bool) -> dict[str, bool]:
        """Return what does not go with a plan, by its option, and whether it is set."""
        args = self.args
        names = ["rampup_batch_size", "step_batch_size_schedule", "decrease_batch_size_if_needed", "iterations_to_skip"]
        names += ["phase_transition_iterations", "perform_rl_step", "hybrid_context_parallel", "non_persistent_save_interval"]
        names += ["finetune", "no_load_optim", "no_save_optim"] if resumes else ["no_save_optim"]
        found = {f"--{name.replace('_', '-')}": bool(getattr(args, name, None)) for name in names}
        found["--cuda-graph-scope full_iteration"] = _captures_iterations(args)
        return {**found, f"--dataloader-type {args.dataloader_type}": args.dataloader_type != "single"}

    def end_at(self, iteration: int) -> None:
        """End the training after an iteration, with Megatron's own last checkpoint and evaluation."""
        self.args.train_iters = iteration

    def exit_at(self, iteration: int) -> None:
        """Save and exit after an iteration."""
        self.args.exit_interval = iteration

    def finalize(self) -> None:
        """Wait until asynchronous checkpoints are complete."""
        importlib.import_module(self.modules[0]).maybe_finalize_async_save(blocking=True)


class MegatronBridge:
    """Reads and sets what counts in the configuration and the state of Megatron-Bridge."""

    title = "Megatron-Bridge"
    modules = ("megatron.bridge.training.train", "megatron.bridge.training.pretrain")
    names: Mapping[str, str] = MappingProxyType(
        {
            "total": "train.train_samples",
            "save": "checkpoint.save",
            "load": "checkpoint.load",
            "micro_batch": "train.micro_batch_size={micro_batch}",
        }
    )

    def attach(self, *arguments: Any) -> None:
        """Take up the state, which is the seventh argument of the loop."""
        state = self.state = arguments[6]
        config = self.config = state.cfg
        self.iteration, self.samples = state.train_state.step, state.train_state.consumed_train_samples
        self.micro_batch, self.replicas = config.train.micro_batch_size, config.data_parallel_size
        self.stages, self.total = config.model.pipeline_model_parallel_size, config.train.train_samples
        self.save, self.scaled = config.checkpoint.save, bool(config.model.fp16)

    def obstacles(self, *, resumes: bool) -> dict[str, bool]:
        """Return what does not go with a plan, by its name in the configuration, and whether it is set."""
        train, checkpoint, kind = self.config.train, self.config.checkpoint, self.config.dataset.dataloader_type
        names = ("rampup_batch_size", "decrease_batch_size_if_needed", "iterations_to_skip")
        found = {f"train.{name}": bool(getattr(train, name, None)) for name in names}
        found["checkpoint.save_optim = False"] = checkpoint.save_optim is False
        found["checkpoint.save_interval = 0"] = checkpoint.save_interval == 0  # Bridge then saves nothing at the end
        found["checkpoint.non_persistent_save_interval"] = bool(checkpoint.non_persistent_save_interval)
        if resumes:
            found |= {"checkpoint.finetune": checkpoint.finetune, "checkpoint.load_optim = False": checkpoint.load_optim is False}
        found["inprocess_restart"] = bool(getattr(self.config.inprocess_restart, "enabled", False))
        found["model.cuda_graph_scope = full_iteration"] = _captures_iterations(self.config.model)
        return {**found, f"dataset.dataloader_type = {kind!r}": kind != "single"}

    def end_at(self, iteration: int) -> None:
        """End the training after an iteration, with Bridge's own last checkpoint and evaluation."""
        self.config.train.train_iters = iteration

    def exit_at(self, iteration: int) -> None:
        """Save and exit after an iteration."""
        self.config.train.exit_interval = iteration

    def finalize(self) -> None:
        """Wait until asynchronous checkpoints are complete."""
        module = importlib.import_module(self.modules[0])
        module.maybe_finalize_async_save(global_state=self.state, ckpt_cfg=self.config.checkpoint, blocking=True)
