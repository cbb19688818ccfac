"""A user's program around torchtitan's trainer. It requests what oppa would, and saves what it saw; it runs under torchrun."""

import dataclasses
import json
import os

import torch
import torch.distributed as dist
from oppa_client import run_files
from oppa_client.torchtitan import OppaTrainer

from oppa.training import GradientStatistics
from tests.client.attempts_in_turn import folders_and_options, run_in_turn
from tests.client.titan_model import SEED, UNLABELLED, Samples, config_of
from tests.own_trainer.folders import TOTAL, prepare


class Watched(OppaTrainer):
    """Notes the samples and the norms of each step, and writes oppa's requests before given steps."""

    def watch(self, folder, asked, leave_at, first_number):
        self.folder, self.asked, self.leave_at, self.first_number = folder, asked, leave_at, first_number
        self.seen, self.norms, self.counts = [], [], []

    def train_step(self, data_iterator):
        step = self.step - 1
        if dist.get_rank() == 0 and step in self.asked:
            batch, micro_batch = self.asked[step]
            number = self.first_number + sorted(self.asked).index(step)
            request = {"number": number, "global_batch": batch, "micro_batch": micro_batch, "accumulation": 1}
            run_files.write(self.folder, run_files.ASKED.format(number), request)
        if dist.get_rank() == 0 and step == self.leave_at:
            run_files.write(self.folder, run_files.LEAVE, {"reason": "layout", "deadline_s": 60.0})
        self.seen.append([])
        super().train_step(data_iterator)
        self.counts.append(self._counts)
        if self._measured.is_measuring and not self._measured.statistics.paused:
            self.norms.append([dataclasses.asdict(each) for each in self._measured.statistics.norms])

    def forward_backward_step(self, *, input_dict, labels, **rest):
        labelled = (labels != UNLABELLED).any(dim=1)
        self.seen[-1].append(input_dict["input"][labelled, 0].tolist())
        return super().forward_backward_step(input_dict=input_dict, labels=labels, **rest)


def run(folder, options):
    """Train one attempt; save what this rank saw."""
    if options.get("outside"):
        os.environ.pop("OPPA_TRIAL", None)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        os.environ["OPPA_TRIAL"] = str(folder)
        if dist.get_rank() == 0:
            before, tp = options.get("before"), options.get("tp", 1)
            ranks, total = dist.get_world_size() // tp, options.get("total", TOTAL)
            prepare(folder, ranks=ranks, before=before and folder.parent / before, total_samples=total)
            values = json.loads((folder / "trial.json").read_text())
            (folder / "trial.json").write_text(json.dumps({**values, "configuration": {**values["configuration"], "tp": tp}}))
            if options.get("trial"):
                (folder / run_files.ATTEMPT).unlink()
    dist.barrier()
    config = config_of(folder.parent / options.get("shares", folder.name), **options.get("config", {}))
    if "initial" in options:
        config.checkpoint.initial_load_path = str(folder.parent / options["initial"])
    statistics = GradientStatistics if options.get("measured") else None
    data = torch.utils.data.Subset(Samples(), range(40)) if options.get("smaller") else Samples()
    trainer = Watched(config, data, seed=SEED, save_every=options.get("save_every"), statistics=statistics)
    begun = weights_of(trainer.model_parts[0])
    asked = {int(step): tuple(sizes) for step, sizes in options.get("asked", {}).items()}
    trainer.watch(folder, asked, options.get("leave_at"), options.get("first_number", 2))
    try:
        trainer.train()
    except SystemExit as end:
        assert end.code == 0
    seen = {"steps": trainer.seen, "norms": trainer.norms, "counts": trainer.counts, "samples": trainer.dataloader.samples}
    torch.save({**seen, "begun": begun, "weights": weights_of(trainer.model_parts[0])}, folder / f"seen-{dist.get_rank()}.pt")


def weights_of(model):
    """Return the whole weights in the order of the parameters."""
    return [each.full_tensor().detach().clone() for each in model.parameters()]


def main():
    cases = folders_and_options()
    dist.init_process_group("gloo")
    run_in_turn(cases, run)


if __name__ == "__main__":
    main()
