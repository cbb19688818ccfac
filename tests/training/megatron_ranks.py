"""Measure gradients in the buffers of Megatron's DDP on some ranks, and check them against gradients of each sample by plain torch."""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer import TransformerConfig

from oppa.training import GradientStatistics

MICRO_BATCHES, SAMPLES = 3, 4


def plain_norms(model, inputs):
    """Return the squared norms of each replica's mean gradient and of their mean; shape of the inputs (replicas, samples, features)."""
    gradients = []
    for of_replica in inputs:
        model.zero_grad()
        model(of_replica).square().mean().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).clone())
    mean = torch.stack(gradients).mean(0)
    return [float(each.double().square().sum()) for each in gradients], float(mean.double().square().sum())


def a_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def measured(rank, ranks, options, steps):
    """Require the norms that plain torch computes in each of some steps, and return the report of the last one."""
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    buffers = DistributedDataParallelConfig(bucket_size=40, **options)
    chunk = DistributedDataParallel(config, buffers, a_model())
    statistics = GradientStatistics([chunk])
    for step in range(steps):
        inputs = torch.randn(ranks, MICRO_BATCHES * SAMPLES, 5, generator=torch.Generator().manual_seed(step))
        chunk.zero_grad_buffer()
        for number, part in enumerate(inputs[rank].split(SAMPLES)):
            loss = chunk(part).square().mean() / MICRO_BATCHES
            if number < MICRO_BATCHES - 1:
                with chunk.no_sync():
                    loss.backward()
            else:
                loss.backward()
        chunk.finish_grad_sync()
        statistics.step([SAMPLES] * MICRO_BATCHES)
        (norms,), (each, mean) = statistics.norms, plain_norms(a_model(), inputs)
        torch.testing.assert_close(norms.small, sum(each) / ranks, rtol=1e-5, atol=0)
        torch.testing.assert_close(norms.big, mean, rtol=1e-5, atol=0)
        assert (norms.small_tokens, norms.big_tokens) == (MICRO_BATCHES * SAMPLES, ranks * MICRO_BATCHES * SAMPLES)
    report = statistics.report()
    statistics.close()
    assert "start_grad_sync" not in vars(chunk.bucket_groups[0])
    return report


def main(rank, ranks, folder):
    """Measure under each way in which Megatron reduces gradients."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    torch.cuda.current_device = lambda: "cpu"  # Megatron places its buffers there
    parallel_state.initialize_model_parallel()
    for options in (
        {},
        {"overlap_grad_reduce": True},
        {"use_distributed_optimizer": True},
        {"use_distributed_optimizer": True, "overlap_grad_reduce": True},
    ):
        assert measured(rank, ranks, options, steps=2)["noise"] is not None
    Path(folder, f"done-{rank}").touch()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
