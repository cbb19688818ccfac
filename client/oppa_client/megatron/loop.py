"""Extend the training loop of Megatron: it follows the plan of a run, reports its steps, and leaves with a checkpoint.

The loop calls its parts by their names in its module: `train`, `train_step`, `save_checkpoint` and `evaluate_and_print_results`. Each is
wrapped. The number of micro-batches comes from Megatron's own calculator, which the loop asks at the beginning of each iteration.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import num_microbatches_calculator  # type: ignore[import-not-found]
from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator  # type: ignore[import-not-found]

from oppa_client import run_files
from oppa_client.loop.statistics import peak_memory_bytes
from oppa_client.megatron.programs import checkpoint_path, completed_iteration
from oppa_client.run import Run
from oppa_client.run_files import ContractError

ESTIMATE = "oppa_noise_scale.json"
"""File of a checkpoint with the noise scale so far."""
HINT = "see docs/how-to/megatron-lm.md"


class PlannedMicroBatches(ConstantNumMicroBatchesCalculator):  # type: ignore[misc]
    """Returns the number of micro-batches of the plan, which changes only where the loop asks: at the beginning of an iteration."""

    def __init__(self, run: Run, program: Any) -> None:
        self._run, self._replicas, self._option = run, program.replicas, program.names["micro_batch"]
        self._follow(program.micro_batch)

    def update(self, consumed_samples: int, consistency_check: bool, verbose: bool = False) -> None:
        """Take up the plan of the iteration that begins."""
        self._follow(self.micro_batch_size)

    def _follow(self, micro_batch: int) -> None:
        plan = self._run.plan
        if plan.micro_batch != micro_batch or plan.global_batch % (micro_batch * self._replicas):
            asked = f"the plan has batches of {plan.global_batch} in micro-batches of {plan.micro_batch}"
            given = f"Megatron has micro-batches of {micro_batch} on {self._replicas} replicas"
            raise ContractError(f"{asked}, but {given}: give the launch line `{self._option}`")
        super().__init__(plan.global_batch, micro_batch, self._replicas, False, 1)  # rank 0 alone would log each call


class SupervisedLoop:
    """Connects the loop of a program to its run.

    Args:
        run: The run, or the trial.
        program: Reads and sets what the program states, as `MegatronLM` does.
        statistics: Returns what measures the gradients of the model's chunks; None measures nothing.
    """

    def __init__(self, run: Run, program: Any, statistics: Callable[[Any], Any] | None) -> None:
        self._run, self._program, self._make = run, program, statistics
        self._statistics: Any = None
        self._saved = run.resume.step if run.resume else 0
        """Iteration of the newest checkpoint that was begun."""
        self._pending: dict[int, int] = {}
        """Samples of each checkpoint that may not be complete yet, by its iteration."""
        self._has_left = False

    def connect(self) -> None:
        """Wrap the parts of the loop; raise ContractError if this version of Megatron has others."""
        wrapped = set()
        parts = {"train": self.train, "train_step": self.train_step}
        parts |= {"save_checkpoint": self.save_checkpoint, "evaluate_and_print_results": self.evaluate}
        modules = [importlib.import_module(name) for name in self._program.modules]  # all before a part that one has of another is wrapped
        for module in modules:
            for name, wrapper in parts.items():
                if hasattr(module, name):
                    original = getattr(module, name)
                    setattr(module, name, functools.wraps(original)(functools.partial(wrapper, original)))
                    wrapped.add(name)
        if missing := sorted(parts.keys() - wrapped):
            raise ContractError(f"the loop of this version of {self._program.title} has no `{missing[0]}`: {HINT}")

    def train(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run the loop from the present position of the run."""
        run, program = self._run, self._program
        program.attach(*arguments)
        if not run.in_trial:
            self._require_supported()
            run.total_samples = program.total
        num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR = PlannedMicroBatches(run, program)
        self._follow_rate(arguments[3])
        if self._make is not None:
            if program.scaled:
                raise ContractError("gradients are not measured under fp16, whose loss scale changes: train in bf16")
            self._statistics = self._make(arguments[1])
            self._resume_estimate()
        self._aim()
        if run.leaving:  # fewer samples are left than a step takes
            self._leave()
        try:
            return original(*arguments, **options)
        except SystemExit as end:
            if not end.code and not self._has_left:  # the loop has ended a trial, or has saved by a limit or a signal of the user's
                self._leave()
            raise

    def train_step(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Take an optimizer step under the plan, and report it."""
        run, program, (model, scheduler) = self._run, self._program, (arguments[2], arguments[4])
        scheduler.step(increment=0)  # the rate of this step's plan
        self._state_saved()
        count = num_microbatches_calculator.get_num_microbatches()
        if self._statistics is not None:
            self._statistics.begin(run.plan, program.replicas)
        result = original(*arguments, **options)
        losses, skipped, must_exit = result[0], result[1], result[3]
        if must_exit:  # Megatron restarts by itself, and the step does not count
            return result
        noise = None
        if self._statistics is not None:
            self._statistics.step([program.micro_batch] * count)
            noise = self._statistics.report()
        facts: dict[str, Any] = {"loss": self._loss(losses, model), "noise": noise, "skipped": bool(skipped)}
        facts["memory_bytes"] = peak_memory_bytes(run)
        rate = next((float(group["lr"]) for group in scheduler.optimizer.param_groups if "lr" in group), None)
        run.step(samples=count * program.micro_batch * program.replicas, learning_rate=rate, **facts)
        self._aim()
        return result

    def save_checkpoint(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Save once per iteration, and not at all in a trial; state the checkpoint once it is complete."""
        run = self._run
        plan = run.plan
        if run.in_trial or plan.step == self._saved:
            return None
        with run.paused("saving"):
            result = original(*arguments, **options)
            self._saved, self._pending[plan.step] = plan.step, plan.progress
            self._save_estimate(plan.step)
            self._state_saved()
        if run.leaving:
            self._leave()
        return result

    def evaluate(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Evaluate, which counts as no step time."""
        with self._run.paused("evaluation"):
            return original(*arguments, **options)

    def _aim(self) -> None:
        """Set the iteration after which the loop ends, or saves and exits."""
        run, program, plan = self._run, self._program, self._run.plan
        if run.leaving and run.leaving.early:
            program.exit_at(plan.step)
        elif run.leaving:
            program.end_at(plan.step)
        elif program.total is not None:
            program.end_at(plan.step + max(1, (program.total - plan.progress) // plan.global_batch))

    def _follow_rate(self, scheduler: Any) -> None:
        rate_of = scheduler.get_lr
        scheduler.get_lr = lambda group: rate_of(group) * self._run.plan.learning_rate_factor

    def _loss(self, losses: dict[str, Any], model: Any) -> float | None:
        """Return the loss on all ranks; a pipeline has it on its last stage alone, which the last rank is in."""
        loss = losses.get("lm loss", next(iter(losses.values()), None))
        if self._program.stages > 1:
            held = torch.full((1,), float("nan") if loss is None else float(loss), device=next(model[0].parameters()).device)
            dist.broadcast(held, src=dist.get_world_size() - 1)
            loss = held
        return None if loss is None else float(loss)

    def _save_estimate(self, iteration: int) -> None:
        """Write the noise scale so far into the checkpoint of an iteration."""
        if self._statistics is not None and dist.get_rank() == 0:
            folder = checkpoint_path(self._program.save, iteration)
            run_files.write(folder, ESTIMATE, dataclasses.asdict(self._statistics.noise_scale))

    def _resume_estimate(self) -> None:
        """Go on from the noise scale of the checkpoint to resume, if it has one."""
        resume = self._run.resume
        if resume is not None and (Path(resume.checkpoint) / ESTIMATE).is_file():
            stated = run_files.read(Path(resume.checkpoint), ESTIMATE)
            self._statistics.noise_scale = type(self._statistics.noise_scale).from_dict(stated)

    def _state_saved(self) -> None:
        """State the checkpoints that Megatron has completed, on the rank that reports."""
        if not self._pending or dist.get_rank():
            self._pending = {}
            return
        newest = completed_iteration(self._program.save)
        for iteration in [each for each in self._pending if each <= newest]:
            self._run.saved(checkpoint_path(self._program.save, iteration), step=iteration, samples=self._pending.pop(iteration))

    def _leave(self) -> None:
        self._has_left = True
        if self._statistics is not None:
            self._statistics.close()  # gloo waits for groups whose model is still referred to
        run, iteration = self._run, self._run.plan.step
        if run.in_trial:
            run.leave()
            return
        self._program.finalize()
        self._state_saved()
        if iteration != self._saved or self._pending:
            raise ContractError(f"Megatron has ended after iteration {iteration} without a complete checkpoint of it: {HINT}")
        resumed = run.resume is not None and run.resume.step == iteration
        run.leave(run.resume.checkpoint if run.resume and resumed else checkpoint_path(self._program.save, iteration))

    def _require_supported(self) -> None:
        """Raise ContractError if an option does not go with a plan, or the program is not where the run is."""
        run, program, plan = self._run, self._program, self._run.plan
        if found := [name for name, present in program.obstacles(resumes=run.resume is not None).items() if present]:
            raise ContractError(f"the batch cannot follow a plan with `{found[0]}`: {HINT}")
        total, save, load = (program.names[name] for name in ("total", "save", "load"))
        if program.total is None:
            raise ContractError(f"`{total}` is required: with a batch that changes, the training has no number of iterations")
        if run.total_samples not in (None, program.total):
            raise ContractError(f"`{total} {program.total}` differs from `samples = {run.total_samples}` of [train]")
        if not program.save:
            raise ContractError(f"`{save}` is required: a run under oppa leaves with a checkpoint")
        if (program.iteration, program.samples) != (plan.step, plan.progress):
            there, due = f"iteration {program.iteration} with {program.samples} samples", f"step {plan.step} with {plan.progress}"
            raise ContractError(f"Megatron begins at {there}, but the run is at {due}: give a new run a `{save}` and `{load}` of its own")
