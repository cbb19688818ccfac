"""A user's program around `EngineLoop`: a tiny model on distinguishable samples. It requests what oppa would, and saves what it saw.

It runs under torchrun in DeepSpeed's environment.
"""

import dataclasses
import json
import os

import torch
import torch.distributed as dist

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.ops import __compatible_ops__
from deepspeed.pipe import PipelineModule
from deepspeed.utils import groups, safe_get_full_fp32_param
from oppa_client import run_files
from oppa_client.deepspeed import EngineLoop
from torch import nn

from oppa.training import GradientStatistics
from tests.client.attempts_in_turn import folders_and_options, run_in_turn
from tests.client.engine_model import RATE, SEED, SIZE, Samples, groups_of, layers
from tests.own_trainer.folders import TOTAL, prepare

CUTS = [{"patterns": [r".*inner\.0\.weight"], "partition_type": "column"}, {"patterns": [r".*inner\.2\.weight"], "partition_type": "row"}]
"""Patterns by which AutoTP cuts the inner layers of a block."""


def engine_for(options, micro_batch):
    """Return DeepSpeed's engine in the layout of the options."""
    tp, pp = options.get("tp", 1), options.get("pp", 1)
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": options.get("zero_stage", 0), "stage3_param_persistence_threshold": 10},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": options.get("clipping", 0.0),
        "steps_per_print": 2**31,
        **options.get("config", {}),
    }
    if tp > 1:
        config["tensor_parallel"] = {"autotp_size": tp, "partition_config": {"use_default_specs": False, "layer_specs": CUTS}}
    loss = nn.functional.cross_entropy
    model = PipelineModule(layers(), num_stages=pp, loss_fn=loss, partition_method="uniform") if pp > 1 else nn.Sequential(*layers())
    optimizer = torch.optim.AdamW(groups_of(model.parameters()), lr=RATE, eps=1e-4)
    schedule = None
    if options.get("schedule") == "lambda":
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: min(1.0, (at + 1) / 3))
    if options.get("schedule") == "plateau":
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)[0]


class Requests:
    """Writes oppa's requests before given steps, as its supervisor does between two steps."""

    def __init__(self, folder, asked, leave_at, first_number):
        self.folder, self.asked, self.leave_at, self.first_number = folder, asked, leave_at, first_number

    def write(self, step):
        if step in self.asked:
            batch, micro_batch = self.asked[step]
            number = self.first_number + sorted(self.asked).index(step)
            request = {"number": number, "global_batch": batch, "micro_batch": micro_batch, "accumulation": 1}
            run_files.write(self.folder, run_files.ASKED.format(number), request)
        if step == self.leave_at:
            run_files.write(self.folder, run_files.LEAVE, {"reason": "layout", "deadline_s": 60.0})


def train(loop, requests, *, lazy=False, eager=False):
    """Train to the end; return the samples of each micro-batch of this rank, and the norms that were measured."""
    steps, norms = [], []
    try:
        for step in loop:
            if dist.get_rank() == 0:
                requests.write(step.plan.step)
            seen = []
            if isinstance(loop.engine.module, PipelineModule):
                step.train_batch()
            elif lazy:
                next(iter(step))
                step.update()
            else:
                for size, (inputs, labels) in zip(step._sizes, step, strict=True):
                    seen.append([round(each) for each in (inputs[:size, 0] * SIZE).tolist()])
                    step.backward(nn.functional.cross_entropy(loop.engine(inputs), labels))
                if eager:
                    step.backward(torch.zeros(()))
                step.update()
                if loop.measured.is_measuring and not loop.measured.statistics.paused:
                    norms.append([dataclasses.asdict(each) for each in loop.measured.statistics.norms])
            steps.append(seen)
    except SystemExit as end:
        assert end.code == 0
    return steps, norms


def run(folder, options):
    """Train one attempt; save what this rank saw."""
    os.environ["OPPA_TRIAL"] = str(folder)
    if dist.get_rank() == 0:
        before, total = options.get("before"), options.get("total", TOTAL)
        prepare(folder, ranks=options.get("dp", dist.get_world_size()), before=before and folder.parent / before, total_samples=total)
        values = json.loads((folder / "trial.json").read_text())
        degrees = {name: options.get(name, 1) for name in ("tp", "pp")}
        (folder / "trial.json").write_text(json.dumps({**values, "configuration": {**values["configuration"], **degrees}}))
        for name in options.get("left_over", ()):
            (folder / "output" / name).parent.mkdir(parents=True)
            (folder / "output" / name).touch()
    dist.barrier()
    groups.mpu = groups.mesh_device = None  # of the attempt before
    engine = engine_for(options, 2)
    statistics = GradientStatistics(engine) if options.get("measured") else None
    loop = EngineLoop(engine, Samples(), checkpoints=folder / "output", samples=TOTAL, seed=SEED, statistics=statistics)
    asked = {int(step): tuple(sizes) for step, sizes in options.get("asked", {}).items()}
    requests = Requests(folder, asked, options.get("leave_at"), options.get("first_number", 2))
    steps, norms = train(loop, requests, lazy=options.get("lazy", False), eager=options.get("eager", False))
    torch.save({"steps": steps, "norms": norms, "weights": weights_of(engine)}, folder / f"seen-{dist.get_rank()}.pt")


def weights_of(engine):
    """Return the weights by name, flat; under tensor or pipeline parallelism those of this rank."""
    whole = safe_get_full_fp32_param if engine.zero_optimization_stage() else torch.Tensor.detach
    return {name: whole(parameter).clone().view(-1) for name, parameter in engine.module.named_parameters()}


def main():
    cases = folders_and_options()
    os.environ.setdefault("LOCAL_SIZE", os.environ["LOCAL_WORLD_SIZE"])
    __compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    run_in_turn(cases, run)


if __name__ == "__main__":
    main()
