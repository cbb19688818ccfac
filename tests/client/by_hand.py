"""Train the tests' model by a plain loop on given batches, and prepare the attempts that `OppaTrainer` is compared in."""

import functools
import itertools
import json
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from oppa_client import run_files

from oppa.training import GradientStatistics
from tests.client import trainer_program
from tests.client.trainer_program import DEFAULTS, SEED, SIZE, Samples
from tests.own_trainer.folders import REFERENCE, TOTAL, reported
from tests.own_trainer.folders import prepare as prepare
from tests.training.rank_exits import LIMIT_S
from tests.training.server_process import ServerProcess

SAME = {"rtol": 2e-4, "atol": 2e-6}
"""Tolerance of float32 numbers that are summed in another order, over some ten steps of Adam."""


@functools.cache
def _server(program: str) -> ServerProcess:
    """Return the process whose forks are a program's ranks; it ends with this one, whose end of the pipe closes."""
    root = Path(__file__).parents[2]
    alone = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}  # a fork keeps one thread
    environment = {**os.environ, **alone, "PYTHONPATH": f"{root}:{root / 'client'}"}
    command = [sys.executable, "-P", str(Path(__file__).with_name("rank_server.py")), program]
    return ServerProcess(command, environment)


def run_ranks(folder: Path, ranks: int, name: str = "seen", *, program: Any = trainer_program, **options: Any) -> list[dict[str, Any]]:
    """Train with ranks in an attempt's folder, as under torchrun; return what each rank saw."""
    server, log = _server(program.__name__), folder / f"{name}.log"
    words = [str(folder), name, json.dumps(options)]
    environment = {"OPPA_TRIAL": str(folder)}
    codes = server.request(words=words, world=ranks, log=str(log), environment=environment, limit_s=LIMIT_S)
    assert codes == [0] * ranks, log.read_text()[-5000:]
    return [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(ranks)]


def order(numbers: range) -> list[int]:
    """Return the elements that samples are, in the shuffled orders of their epochs."""
    return [torch.randperm(SIZE, generator=torch.Generator().manual_seed(SEED + n // SIZE)).tolist()[n % SIZE] for n in numbers]


def batches(sizes: Sequence[int]) -> list[range]:
    """Return the numbers of the samples of consecutive batches."""
    ends = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


def rate(progress: int, batch: int) -> float:
    """Return the learning rate of a step: warm-up over 3 steps and a linear decay to the end, both by samples, and the square-root rule."""
    at, end = progress / REFERENCE, TOTAL / REFERENCE
    linear = at / 3 if at < 3 else (end - at) / (end - 3)
    return float(DEFAULTS["learning_rate"] * linear * (batch / REFERENCE) ** 0.5)


def loss_of(model: torch.nn.Module, numbers: Sequence[int], data: Samples) -> torch.Tensor:
    """Return the mean loss over all tokens that have a label."""
    inputs, labels = data.tokens[list(numbers)], data.labels[list(numbers)]
    logits = model(input_ids=inputs).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


def train_by_hand(sizes: Sequence[int], full: Sequence[int], evaluate_at: Collection[int] = ()) -> dict[str, Any]:
    """Train on batches of given sizes, each in one pass; return weights, moments, and what a Trainer logs, by name and step.

    Args:
        sizes: Samples of each step.
        full: Batch of each step's plan, which the learning rate follows; the last step may have fewer samples.
        evaluate_at: Steps after which the evaluation loss is measured.
    """
    model, data, held_out = trainer_program.model(), Samples(), Samples(12)
    decayed = [value for name, value in model.named_parameters() if "norm" not in name]
    plain = [value for name, value in model.named_parameters() if "norm" in name]
    groups = [{"params": decayed, "weight_decay": DEFAULTS["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, eps=DEFAULTS["adam_epsilon"])
    logs: dict[str, dict[int, float]] = {"loss": {}, "grad_norm": {}, "eval_loss": {}}
    for step, (numbers, batch) in enumerate(zip(batches(sizes), full, strict=True), start=1):
        for group in optimizer.param_groups:
            group["lr"] = rate(numbers.start, batch)
        loss = loss_of(model, order(numbers), data)
        loss.backward()
        logs["loss"][step] = loss.item()
        logs["grad_norm"][step] = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
        if step in evaluate_at:
            with torch.no_grad():
                logs["eval_loss"][step] = float(loss_of(model, range(12), held_out))
    moments = dict(optimizer.state_dict()["state"])
    return {"weights": model.state_dict(), "moments": moments, "logs": logs}


def first_reports() -> list[dict[str, Any]]:
    """Return what `GradientStatistics` reports in a plain loop over two steps of 8 in micro-batches of 2; the first has learning rate 0."""
    model, data, reports = trainer_program.model(), Samples(), []
    statistics = GradientStatistics(model)
    for numbers in batches([8, 8]):
        elements = order(numbers)
        micro_batches = [elements[at : at + 2] for at in range(0, 8, 2)]
        counts = [int((data.labels[each][:, 1:] != -100).sum()) for each in micro_batches]
        for each, count in zip(micro_batches, counts, strict=True):
            (loss_of(model, each, data) * count / sum(counts)).backward()
        statistics.step(counts)
        reports.append(statistics.report(sample_tokens=sum(counts) / 8))
        model.zero_grad()
    statistics.close()
    return reports


def require_reports(folder: Path) -> None:
    """Compare the reports of an attempt's first two steps with those of the plain loop."""
    for line, wanted in zip(reported(folder)[:2], first_reports(), strict=True):
        measured = {name: value for name, value in wanted.items() if value is not None}
        assert {name: line["noise"][name] for name in measured} == {"health": wanted["health"]} | {
            name: pytest.approx(value, rel=1e-3) for name, value in measured.items() if name != "health"
        }
        assert {"signal", "noise", "variance_ratio"} <= measured.keys()


def logged(seen: dict[str, Any], name: str) -> dict[int, float]:
    """Return the values that a Trainer logged under a name, by step."""
    return {entry["step"]: entry[name] for entry in seen["logs"] if name in entry}


def evaluations(seen: dict[str, Any]) -> dict[int, float]:
    """Return the evaluation losses that a Trainer logged, by step."""
    return logged(seen, "eval_loss")


def full_batches(folder: Path) -> list[int]:
    """Return the batch of the plan of each step: the last step may have had fewer samples left."""
    plans = [json.loads((folder / run_files.ATTEMPT).read_text())["plan"]]
    plans += [json.loads(path.read_text()) for path in folder.glob("plan-*.json")]
    batch_of = {plan["number"]: plan["global_batch"] for plan in plans}
    return [batch_of[line["plan"]] for line in reported(folder)]


def require_same(seen: dict[str, Any], sizes: Sequence[int], full: Sequence[int], resumed: Collection[int] = ()) -> None:
    """Compare a finished training with the plain loop on the same batches: moments, weights, losses and norms of gradients.

    A Trainer logs the mean loss since its last log, or since the last of the steps after which another attempt has `resumed`.
    """
    wanted = train_by_hand(sizes, full, evaluations(seen).keys())
    for key, moment in wanted["moments"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(seen["moments"][key][name], moment[name], rtol=SAME["rtol"], atol=SAME["atol"])
    for name, value in wanted["weights"].items():
        torch.testing.assert_close(seen["weights"][name], value, rtol=SAME["rtol"], atol=SAME["atol"])
    losses, norms, evaluated = (wanted["logs"][name] for name in ("loss", "grad_norm", "eval_loss"))
    ends = logged(seen, "loss")
    assert max(ends) == len(sizes)
    begins = {end: max(step for step in (0, *ends, *resumed) if step < end) for end in ends}
    means = {end: sum(losses[step + 1] for step in range(begin, end)) / (end - begin) for end, begin in begins.items()}
    assert logged(seen, "loss") == pytest.approx(means, rel=0, abs=1e-4)
    assert logged(seen, "grad_norm") == pytest.approx({step: norms[step] for step in means}, rel=0, abs=1e-4)
    assert evaluations(seen) == pytest.approx(evaluated, rel=0, abs=1e-4)
