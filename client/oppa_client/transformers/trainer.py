"""Extend the `Trainer` of Transformers: its loop takes each step from the plan of a run under oppa."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_callback import DefaultFlowCallback
from transformers.trainer_utils import rotate_checkpoints, seed_worker

from oppa_client import run_files
from oppa_client.loop.checkpoints import POSITION, require_same, require_step, resumed_at, seed_of, stated_in
from oppa_client.loop.position import Position
from oppa_client.loop.rates import follow, require_lambda
from oppa_client.loop.samples import SampleOrder, StepBatches
from oppa_client.loop.statistics import MeasuredSteps, peak_memory_bytes
from oppa_client.loop.support import ABILITIES
from oppa_client.plan import Plan
from oppa_client.run import Run, open_run
from oppa_client.run_files import ContractError
from oppa_client.transformers.checkpoints import require_steady
from oppa_client.transformers.loss_probe import is_divided
from oppa_client.transformers.progress import SampleFlow
from oppa_client.transformers.support import checkpoint_format, require_supported

PAUSES = ("on_save", "on_epoch_end", "on_train_end")
"""Events at which callbacks may take long, as an upload does; those of an evaluation are part of its pause."""


class OppaTrainer(transformers.Trainer):  # type: ignore[misc]
    """Follows the plan of a run under oppa; outside oppa it is the `Trainer` itself. See docs/how-to/transformers.md."""

    oppa_run: Run | None = None
    """The run, from the call of `train` on; None outside oppa."""
    control: Any
    model_accepts_loss_kwargs: bool
    loss_is_scaled_for_ga: bool | None
    _position: Position
    _batches: StepBatches
    _empty = False
    """True while the loss of an empty micro-batch is computed, which does not count."""
    _saved_at: tuple[int, int] | None = None
    """Step and log entries of the newest checkpoint of this process."""
    _measured = MeasuredSteps(None)
    _is_divided: bool | None = None
    """True if the loss is divided by the labels of a step, False if it is a mean over a micro-batch. None until the first step."""
    _due = False
    """True if the checkpoint to resume from was saved before an evaluation that was due."""

    def train(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """Train as `Trainer.train` does; under oppa from the checkpoint that oppa names.

        The program ends here, with exit code 0, if oppa asks it to leave before all samples are taken.

        Raises:
            ContractError: the arguments do not go with a changing batch, or the checkpoint does not belong to the run.
        """
        if self.oppa_run is not None:
            raise ContractError("a run under oppa is one training: call `train` once")
        self.oppa_run = run = open_run(ABILITIES)
        if run is None:
            require_steady(resume_from_checkpoint, self.args.output_dir)
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **options)
        require_supported(self)
        resume = run.resume
        self._position = self._found_position()
        flow = SampleFlow(self._position)
        handler = self.callback_handler
        handler.callbacks = [flow if type(each) is DefaultFlowCallback else each for each in handler.callbacks]
        for event in PAUSES:
            setattr(handler, event, run.paused(event)(getattr(handler, event)))
        output = super().train(resume_from_checkpoint=resume.checkpoint if resume else None, **options)
        if run.leaving and run.leaving.early:
            self.accelerator.end_training()
            raise SystemExit(0)
        return output

    def gradient_statistics(self, model: Any) -> Any:
        """Return the object that measures the gradients of the wrapped model under oppa: None, unless a subclass has one.

        It is `oppa.training.GradientStatistics(model)`, or has its methods. Policies that follow the noise scale require it.
        """
        return None

    # What Trainer calls before its loop

    def get_train_dataloader(self) -> Any:
        """Return the loader of training data; under oppa it loads the micro-batches of the plan."""
        if self.oppa_run is None or not self.is_in_train:
            return super().get_train_dataloader()
        args, dataset = self.args, self.train_dataset
        if hasattr(dataset, "column_names"):
            dataset, collate = self._remove_unused_columns(dataset, description="training"), self.data_collator
        else:
            collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
        self._batches = StepBatches(
            self._order(),
            dataset=dataset,
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            worker_init_fn=functools.partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
        )
        return self._batches.loader

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Return epochs, steps and samples of the training; under oppa in steps of the reference batch."""
        if self.oppa_run is None:
            return super().set_initial_training_values(args, dataloader)
        size, at = len(self.train_dataset), self._position
        steps, steps_in_epoch = math.ceil(at.total / at.reference), math.ceil(size / at.reference)
        return math.ceil(at.total / size), steps_in_epoch, size, at.total, round(at.reference), steps_in_epoch, steps

    def create_scheduler(self, *args: Any, **options: Any) -> Any:
        """Return the learning rate's schedule; under oppa it has to be a function of the progress."""
        scheduler = super().create_scheduler(*args, **options)
        if self.oppa_run is not None:
            require_lambda(scheduler)
        return scheduler

    def _init_training_state(self, *args: Any, **options: Any) -> Any:
        found = super()._init_training_state(*args, **options)
        if self.oppa_run is None:
            return found
        require_step(self.state.global_step, self.oppa_run.resume)
        return self._position.samples // len(self.train_dataset), 0

    # The loop

    def _run_epoch(self, **named: Any) -> None:
        run = self.oppa_run
        if run is None:
            super()._run_epoch(**named)
            return
        model, epoch, at = named["model"], named["epoch"], self._position
        further = [named[name] for name in ("trial", "epoch", "ignore_keys_for_eval", "start_time")]
        if at.samples == at.start:
            self._measure(model)
            self._load_rng_state(named["resume_from_checkpoint"])
            self.control.should_evaluate |= self._due
            self._due = False
            self._maybe_log_save_evaluate(self._tr_loss, None, model, *further)
        facts: tuple[Any, float | None] = (None, None)
        end = min(at.total, (epoch + 1) * len(self.train_dataset))
        while at.samples < end and run.leaving is None and not self.control.should_training_stop:
            facts = self._take_step(model, run)
            self._report(model, further, facts)
            if self.control.should_epoch_stop:
                raise ContractError("a callback ended the epoch, but under oppa each epoch takes all samples")
        if at.samples >= end or run.leaving is None:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._report(model, further, facts)
        self.control.should_training_stop |= run.leaving is not None

    def _measure(self, model: Any) -> None:
        resume = self.oppa_run.resume if self.oppa_run else None
        noise_scale = stated_in(Path(resume.checkpoint))["noise_scale"] if resume else None
        self._measured = MeasuredSteps(self.gradient_statistics(model), noise_scale, fp16=self.accelerator.scaler is not None)

    def _report(self, model: Any, further: list[Any], facts: tuple[Any, float | None]) -> None:
        """Log, evaluate and save if it is due. A run that leaves early leaves the evaluation to the next attempt; a trial saves nothing."""
        assert self.oppa_run is not None
        if self.oppa_run.in_trial:
            self.control.should_save = False
        if self.oppa_run.leaving and self.oppa_run.leaving.early:
            self._due |= self.control.should_evaluate
            self.control.should_evaluate = self.control.should_save = False
        self._maybe_log_save_evaluate(self._tr_loss, facts[0], model, *further, learning_rate=facts[1])

    def _take_step(self, model: Any, run: Run) -> tuple[Any, float]:
        """Take an optimizer step under the plan; return the norm of its gradient and its learning rate."""
        plan, replicas = run.plan, self.args.world_size
        rate = self._follow(plan)
        sizes, batches = self._batches.load(self._measured.begin(plan, replicas), self.args.process_index, replicas, plan)
        self._require_known_loss(model, batches[0])
        counts, items = self._items(sizes, batches)
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        losses = torch.zeros((), device=self.args.device)
        for index, (size, inputs) in enumerate(zip(sizes, batches)):
            if index:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
            self._empty = size == 0
            # `training_step` divides a mean loss by this, so a micro-batch counts by its share of the step's samples.
            self.current_gradient_accumulation_steps = plan.global_batch / (size * replicas) if size else 1
            losses += self._backward(model, inputs, items, is_last=index == len(sizes) - 1)
        tokens = None if items is None else int(items)
        self._measured.end(plan, sizes, counts, tokens)
        norm, skipped = self._update(model)
        self.state.global_step += 1
        self._position.take(plan.global_batch)
        # The shares of ranks differ by a sample: this makes the loss of rank 0's share a mean.
        loss = losses.item() * plan.global_batch / (max(1, sum(sizes)) * replicas)
        facts: dict[str, Any] = {"tokens": tokens, "skipped": skipped, "noise": self._measured.report(), "learning_rate": rate}
        run.step(samples=plan.global_batch, loss=loss, memory_bytes=peak_memory_bytes(run), **facts)
        self._step_ended(plan)
        return norm, rate

    def _backward(self, model: Any, inputs: Any, items: Any, *, is_last: bool) -> torch.Tensor:
        """Add the gradient of a micro-batch, averaged over ranks with the last one; return its loss."""
        gradients = self.accelerator.gradient_state
        gradients._set_sync_gradients(is_last)
        waits = is_last or gradients.plugin_kwargs.get("sync_each_batch", False)
        with contextlib.nullcontext() if waits else self.accelerator.no_sync(model=model):
            loss: torch.Tensor = self.training_step(model, inputs, items)
        if self.args.logging_nan_inf_filter and not torch.isfinite(loss):
            self._tr_loss += self._tr_loss / (1 + self.state.global_step - self._globalstep_last_logged)
        else:
            self._tr_loss += loss
        counted = {name: value[:0] for name, value in inputs.items() if torch.is_tensor(value) and value.dim()} if self._empty else inputs
        self.current_flos += 0.0 if self._empty else float(self.floating_point_ops(inputs))
        self._track_num_input_tokens(counted)
        return loss

    def _update(self, model: Any) -> tuple[Any, bool]:
        """Change the weights; return the norm of the gradient, and True if the step was skipped after an overflow."""
        clipped = self._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None
        norm = self._get_grad_norm(model, grad_norm=clipped)
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        model.zero_grad()
        return norm, bool(self.accelerator.optimizer_step_was_skipped)

    def _step_ended(self, plan: Plan) -> None:
        at, state = self._position, self.state
        state.epoch = at.samples / len(self.train_dataset)
        state.max_steps = state.global_step + math.ceil(max(0, at.total - at.samples) / plan.global_batch)
        self.control = self.callback_handler.on_step_end(self.args, state, self.control)

    def _follow(self, plan: Plan) -> float:
        """Set the learning rate of a step: the schedule at its progress, times the plan's factor; return that of the first group."""
        return follow(self.lr_scheduler, plan.progress / self._position.reference, plan.learning_rate_factor)

    def _require_known_loss(self, model: Any, inputs: Any) -> None:
        """Find out by a micro-batch whether the loss is a mean, unless the class states it; a mean counts by samples from then on."""
        takes_items = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if self._is_divided is not None or self.loss_is_scaled_for_ga is not None or not takes_items:
            return
        self._is_divided = is_divided(self, model, inputs)
        if self._is_divided is False:
            self.loss_is_scaled_for_ga = self.model_accepts_loss_kwargs = False

    def _items(self, sizes: list[int], batches: list[Any]) -> tuple[list[int] | None, Any]:
        """Return the predicted tokens of each micro-batch, by which its loss counts, and of the step over all ranks.

        The first is None if losses are means over micro-batches, the second one if no loss takes it.
        """
        names = ("labels", "shift_labels")
        hidden = [{name: torch.full_like(batch[name], -100) for name in names if name in batch} for batch in batches]
        counted = [batch if size else {**batch, **none} for size, batch, none in zip(sizes, batches, hidden)]
        items = None if self._is_divided is False else self._get_num_items_in_batch(counted, self.args.device)
        if items is None or self.loss_is_scaled_for_ga is False or not self._measured.is_measuring:
            return None, items  # a mean over a micro-batch counts by samples
        world, self.args.average_tokens_across_devices = self.args.average_tokens_across_devices, False
        own = [int(self._get_num_items_in_batch([batch], self.args.device)) for batch in counted]
        self.args.average_tokens_across_devices = world
        return own, items

    def compute_loss(self, *args: Any, **options: Any) -> Any:
        """Return the loss as `Trainer.compute_loss` does; that of an empty micro-batch is 0."""
        result = super().compute_loss(*args, **options)
        if not self._empty:
            return result
        return (result[0] * 0, *result[1:]) if isinstance(result, tuple) else result * 0

    # Evaluation, checkpoints and the end

    def _evaluate(self, *args: Any, **options: Any) -> Any:
        with self._paused("evaluation"):
            return super()._evaluate(*args, **options)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.oppa_run is None:
            super()._save_checkpoint(model, trial)
            return
        if self.oppa_run.in_trial or resumed_at(self.oppa_run, self._position):
            return
        with self._paused("saving"):
            # Older checkpoints go last: until this one is complete and stated, the run resumes from one of them.
            with self._no_limit():
                super()._save_checkpoint(model, trial)
            checkpoint = self._checkpoint(trial)
            if self.args.should_save:
                run_files.write(checkpoint, POSITION, self._stated())
            self.accelerator.wait_for_everyone()
            self.oppa_run.saved(checkpoint)
            if self.args.should_save:
                limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
                rotate_checkpoints(str(checkpoint.parent), limit, best, use_mtime=True)
        self._saved_at = self.state.global_step, len(self.state.log_history)

    @contextlib.contextmanager
    def _no_limit(self) -> Iterator[None]:
        """Keep all checkpoints inside the context."""
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            yield
        finally:
            self.args.save_total_limit = limit

    def _checkpoint(self, trial: Any = None) -> Path:
        return Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"

    def _paused(self, label: str) -> contextlib.AbstractContextManager[None]:
        """Return a context whose time is no step time."""
        return self.oppa_run.paused(label) if self.oppa_run else contextlib.nullcontext()

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random numbers of a rank; ranks in another number get streams of their own."""
        if self.oppa_run is None or checkpoint is None or stated_in(Path(checkpoint))["world_size"] == self.args.world_size:
            super()._load_rng_state(checkpoint)
        else:
            transformers.set_seed(seed_of(self.args.seed, self._position.samples, self.args.process_index))

    def _load_best_model(self) -> None:
        run = self.oppa_run
        if run is None or not (run.leaving and run.leaving.early):  # else the program ends, and another attempt may follow
            super()._load_best_model()

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: Any) -> Any:
        run = self.oppa_run
        if run is None:
            return super()._finalize_training(trial, num_train_samples, start_time)
        at, state = self._position, self.state
        checkpoint = resumed_at(run, at)
        if not run.in_trial and checkpoint is None:
            if self._saved_at != (state.global_step, len(state.log_history)):
                self._save_checkpoint(self.model_wrapped, trial)
                self.control = self.callback_handler.on_save(self.args, state, self.control)
            checkpoint = self._checkpoint(trial)
        taken = (at.samples - at.start) * state.max_steps / max(1, state.global_step - self._initial_global_step)
        with self._no_limit():  # with a limit of 1, the Trainer would now remove all checkpoints but the best one
            output = super()._finalize_training(trial, taken, start_time)
        self._measured.close()
        run.leave(checkpoint, finished=at.finishes(run))
        return output

    # What holds for the run

    def _found_position(self) -> Position:
        run, args = self.oppa_run, self.args
        assert run is not None
        own = args.max_steps * run.reference_batch if args.max_steps > 0 else args.num_train_epochs * len(self.train_dataset)
        at = Position.of(run, own)
        if run.resume:
            stated, order = stated_in(Path(run.resume.checkpoint)), self._order()
            require_same(stated, samples=at.samples, size=order.size, seed=order.seed, format=checkpoint_format(self))
            self._due = stated["evaluation_due"]
        return at

    def _stated(self) -> dict[str, Any]:
        order = self._order()
        facts = {"samples": self._position.samples, "size": order.size, "seed": order.seed, "format": checkpoint_format(self)}
        state = {"evaluation_due": self._due, "noise_scale": self._measured.to_dict()}
        return {**facts, "world_size": self.args.world_size, **state}

    def _order(self) -> SampleOrder:
        args = self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        return SampleOrder(len(self.train_dataset), None if args.train_sampling_strategy == "sequential" else seed)
