"""Data parallelism as one rank sees it, with peers that never answer."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from oppa.problem.configuration import Configuration
from oppa.training.parallel.data_parallel import shard_module


@pytest.fixture
def mesh() -> Iterator[SimpleNamespace]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    replicas = SimpleNamespace(size=2, index=0, group=dist.group.WORLD)
    yield SimpleNamespace(
        replicas=replicas,
        shard=replicas,
        copies=SimpleNamespace(size=1, group=None),
        ep=SimpleNamespace(size=1),
        layout=0,
        device=torch.device("cpu"),
    )
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_shards_are_float32_and_are_gathered_in_the_precision_of_the_job(
    mesh: SimpleNamespace, zero_stage: int, dtype: torch.dtype
) -> None:
    module, gathered = nn.Linear(8, 8), list[torch.dtype]()
    shard_module(module, Configuration(dp=2, zero_stage=zero_stage, global_batch=2, micro_batch=1), mesh, dtype)  # type: ignore[arg-type]
    module.register_forward_pre_hook(lambda part, _: gathered.append(part.weight.dtype))
    out = module(torch.ones(2, 8, dtype=dtype))
    out.sum().backward()
    assert module.weight.grad is not None
    assert (gathered, out.dtype) == ([dtype], dtype)
    assert (module.weight.dtype, module.weight.grad.dtype) == (torch.float32, torch.float32)
