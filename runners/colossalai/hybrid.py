"""Build one rank's part of the model under ColossalAI's HybridParallelPlugin, ready to take optimizer steps."""

import contextlib

import torch
import torch.nn.functional as F
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin
from colossalai.shardformer.layer import cross_entropy_1d
from llama import build_llama

from oppa.errors import InputError
from oppa.training.parallel.optimizer import groups_of, update_rule
from oppa.training.parallel.supported_layouts import require_random_start, require_supported
from oppa.training.profiler.memory import beyond_the_limit

_BYTES_PER_ELEMENT = 2  # ZeRO works in half precision only


class Hybrid:
    """Holds this rank's part of the model and its optimizer; raises InputError for a job that the plugin does not support."""

    def __init__(self, spec, mesh):
        require_supported(spec.model, spec.configuration.tp)
        require_random_start(spec.training)
        require_runnable(spec.configuration)
        self._configuration = spec.configuration
        with beyond_the_limit(mesh.device):
            self._plugin = plugin_for(spec)
        network = build_llama(spec, self._plugin.shard_config, mesh.device)
        make, options = update_rule(spec.training)
        optimizer = make(groups_of(network.parameters(), spec.training), **options)
        self._booster = Booster(plugin=self._plugin)
        self._model, self._optimizer, *_ = self._booster.boost(network, optimizer)

    def step(self, batch):
        """Take one optimizer step on this replica's share of the global batch; return its mean loss on the last stage."""
        loss = self._pipelined(batch) if self._configuration.pp > 1 else self._accumulated(batch)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._optimizer.optim.zero_grad()  # with ZeRO, the plugin's own `zero_grad` does not reach it
        if torch.autograd._profiler_enabled():  # while memory is measured, on a CPU
            self._model._force_wait_all_gather()  # an overlapped gather that outlives the profiler crashes the process
        return loss

    def _pipelined(self, batch):
        data = iter([{"input_ids": batch.tokens, "targets": batch.targets}])
        result = self._booster.execute_pipeline(data, self._model, self._criterion, self._optimizer, return_loss=True)
        return result["loss"]

    def _accumulated(self, batch):
        """Run micro-batches one after the other, and return their mean loss.

        Replicas communicate in the last micro-batch, or in each with ZeRO 2, which keeps no whole gradients.
        """
        size, count = self._configuration.micro_batch, self._configuration.num_microbatches
        total = torch.zeros((), device=batch.tokens.device)
        for start in range(0, len(batch.tokens), size):
            tokens, targets = batch.tokens[start : start + size], batch.targets[start : start + size]
            silent = start + size < len(batch.tokens) and self._configuration.zero_stage < 2
            with self._booster.no_sync(self._model, self._optimizer) if silent else contextlib.nullcontext():
                loss = self._criterion(self._model(input_ids=tokens), {"targets": targets}) / count
                self._booster.backward(loss, self._optimizer)
            total += loss.detach()
        return total

    def _criterion(self, outputs, batch):
        """Return the mean negative log-likelihood; with tensor parallelism each rank holds the logits of a slice of the vocabulary."""
        logits, targets = outputs.logits.float().flatten(0, 1), batch["targets"].flatten()
        if self._configuration.tp == 1:
            return F.cross_entropy(logits, targets)
        rows = self._model.unwrap().lm_head.out_features
        group = self._plugin.tp_group
        # Summed and divided here, because its mean ignores tokens whose loss is exactly 0.
        return cross_entropy_1d(logits, targets, process_group=group, vocab_size=rows, dtype=logits.dtype, mode="sum") / len(targets)


def require_runnable(configuration):
    """Raise InputError for configurations that the plugin would not reject itself; it asserts the other rules."""
    rules = {
        "ep must be 1, because experts are not distributed": configuration.ep == 1,
        "dp * micro_batch must divide global_batch": configuration.global_batch % (configuration.dp * configuration.micro_batch) == 0,
        "recompute must be none or full": configuration.recompute in ("none", "full"),
    }
    for rule, holds in rules.items():
        if not holds:
            raise InputError(f"ColossalAI's HybridParallelPlugin cannot run `{configuration.id}`: {rule}")


def plugin_for(spec):
    """Return the plugin with every knob of a configuration. Ranks have oppa's order (`oppa.training.parallel`), stages furthest apart."""
    configuration = spec.configuration
    return HybridParallelPlugin(
        tp_size=configuration.tp,
        pp_size=configuration.pp,
        dp_outside=False,
        precision=spec.training.precision,
        zero_stage=configuration.zero_stage,
        ddp_bucket_cap_mb=configuration.dp_bucket_mb,
        zero_bucket_size_in_m=configuration.zero_bucket_mb / _BYTES_PER_ELEMENT,
        overlap_communication=configuration.overlap_zero_comm,
        overlap_allgather=configuration.overlap_zero_allgather,
        microbatch_size=configuration.micro_batch,
        pp_style=configuration.schedule,
        num_model_chunks=configuration.model_chunks,
        overlap_p2p=configuration.overlap_p2p,
        max_norm=spec.training.gradient_clipping,
    )
