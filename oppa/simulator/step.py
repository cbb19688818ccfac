"""Predict the seconds and bytes of one optimizer step: micro-batches through the pipeline, gradients, and the optimizer."""

from oppa.pipeline.registry import folded
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.simulator.collectives import all_reduce_s
from oppa.simulator.data_parallel import DataParallel
from oppa.simulator.degrees import replicas
from oppa.simulator.framework import Framework
from oppa.simulator.kernels import Kernels
from oppa.simulator.memory import States
from oppa.simulator.pipelines import Pipelines, PipelineSettings, Rank
from oppa.simulator.topology import Topology


class StepSimulator:
    """Predicts the steps of all configurations of one job."""

    def __init__(self, model: Model, kernels: Kernels, topology: Topology, framework: Framework, *, balanced: bool = False) -> None:
        self.model, self.kernels, self.topology, self.framework = model, kernels, topology, framework
        self.pipelines = Pipelines(model, kernels, topology, framework, balanced=balanced)

    def seconds(self, configuration: Configuration) -> float:
        """Return the seconds from a step's first forward pass to its last updated weight.

        All ranks wait for the gradient norm, so the slowest rank determines the time before it and again after it.
        """
        ranks, data_parallel = self._ranks(configuration), self.data_parallel(configuration)
        backward_s = max(rank.finish_s + self._gradients_s(rank, data_parallel) for rank in ranks)
        update_s = max(data_parallel.optimizer_s(dense=rank.dense, experts=rank.experts, layers=rank.layers) for rank in ranks)
        gather_s = max(data_parallel.weights_s(dense=rank.dense, experts=rank.experts, forward_s=rank.forward_s) for rank in ranks)
        return backward_s + self._tied_s(configuration) + update_s + gather_s

    def memory_bytes(self, configuration: Configuration) -> float:
        """Return the peak bytes allocated on the fullest device."""
        data_parallel = self.data_parallel(configuration)
        return max(self._rank_bytes(rank, data_parallel) for rank in self._ranks(configuration))

    def data_parallel(self, configuration: Configuration) -> DataParallel:
        """Return the data-parallel ranks of a configuration."""
        return DataParallel(configuration=configuration, topology=self.topology, kernels=self.kernels, framework=self.framework)

    def _ranks(self, configuration: Configuration) -> list[Rank]:
        return self.pipelines.ranks(PipelineSettings.of(configuration, self.framework))

    def _gradients_s(self, rank: Rank, data_parallel: DataParallel) -> float:
        """Return the exposed seconds of communicating gradients.

        ZeRO 2 may send them after every micro-batch. The backward passes of ZeRO 3 include the communication within a group of shards.
        FSDP sends gradients in the last backward pass, while it gathers nothing.
        """
        pc = data_parallel.configuration
        if pc.zero_stage == 3 and not data_parallel.by_layer:
            return data_parallel.copied_s(weights=rank.dense + rank.experts, layers=rank.layers, window_s=rank.backward_s)
        window_s = max(rank.backward_s - rank.gather_s, 0.0)
        each = data_parallel.gradients_s(dense=rank.dense, experts=rank.experts, layers=rank.layers, window_s=window_s)
        return each * (pc.num_microbatches if pc.zero_stage == 2 and self.framework.reduces_every_micro_batch else 1)

    def _tied_s(self, configuration: Configuration) -> float:
        """Return the seconds to add the gradients of a tied embedding on the first and the last stage.

        It is 0 if no two ranks hold copies of the embedding.
        """
        pc = configuration
        if not self.model.tied or pc.pp == 1 or folded(pc.schedule, pc.model_chunks):
            return 0.0
        group = self.topology.group(2, (pc.pp - 1) * replicas(pc) * pc.tp)
        return all_reduce_s(group, self.model.vocab * self.model.hidden / pc.tp * self.data_parallel(pc).gradient_bytes)

    def _rank_bytes(self, rank: Rank, data_parallel: DataParallel) -> float:
        states = States(data_parallel=data_parallel, dense=rank.dense, experts=rank.experts)
        gathered = 0.0
        if data_parallel.configuration.zero_stage == 3:  # the weights of this layer and of the next
            gathered = 2 * rank.dense / max(rank.layers, 1) * self.kernels.bytes_per_element
        return states.bytes + max(rank.activation_bytes + gathered, states.step_bytes)
