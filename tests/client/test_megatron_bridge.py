"""Megatron-Bridge's own loop follows the plan of a run, leaves and resumes; model and set-up have a stand-in (`bridge_parts`)."""

import json
import re
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from oppa_client import ContractError, run_files
from oppa_client.megatron import programs, supervise

from tests.client import bridge_parts
from tests.own_trainer.folders import LAYOUT, ask, ask_to_leave, prepare, reported, terms

pytestmark = pytest.mark.filterwarnings("ignore")  # those of megatron-core, which misses Transformer Engine
BY_ITERATIONS = {"train__train_samples": None, "train__train_iters": 12}
REFUSED = {
    "`train.rampup_batch_size`": {**BY_ITERATIONS, "train__rampup_batch_size": [8, 8, 96]},
    "`train.decrease_batch_size_if_needed`": {"train__decrease_batch_size_if_needed": True},
    "`train.iterations_to_skip`": {"train__iterations_to_skip": [3]},
    "`checkpoint.save_optim = False`": {"checkpoint__save_optim": False},
    "`checkpoint.save_interval = 0`": {"checkpoint__save_interval": 0},
    "`checkpoint.non_persistent_save_interval`": {"checkpoint__non_persistent_save_interval": 2},
    "`model.cuda_graph_scope = full_iteration`": {"model__cuda_graph_scope": ["full_iteration"]},
    "`dataset.dataloader_type = 'batch'`": {"dataset__dataloader_type": "batch"},
    "`train.train_samples 80` differs from `samples = 96`": {"train__train_samples": 80},
    "`train.train_samples` is required": BY_ITERATIONS,
    "`checkpoint.save` is required": {"checkpoint__save": None},
    "micro-batches of 4 on 1 replicas: give the launch line `train.micro_batch_size={micro_batch}`": {"train__micro_batch_size": 4},
}


@pytest.fixture(scope="module")
def modules():
    with bridge_parts.imported() as bridge:
        yield bridge


@pytest.fixture
def bridge(modules, monkeypatch):
    """Return Bridge's modules, in a process group of one rank."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which `open_run` replaces
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield modules
    torch.distributed.destroy_process_group()


def train(bridge, folder, config, *, late=False):
    """Train as a user's program does in an attempt; return the stand-ins, and the code of an exit, or None."""
    name = bridge.pretrain.__name__
    with pytest.MonkeyPatch.context() as patch:
        parts = bridge_parts.BridgeParts(bridge, patch)
        patch.setenv("OPPA_TRIAL", str(folder))
        if late:
            patch.delitem(sys.modules, name)  # the program has not imported it yet
        supervise(config)
        try:
            sys.modules[name].pretrain(config, lambda data_iterator, model: None)
        except SystemExit as end:
            return parts, end.code
    return parts, None


def left(folder):
    return {name: json.loads((folder / run_files.LEFT).read_text())[name] for name in ("checkpoint", "step", "samples", "reason")}


def leave_and_resume(bridge, tmp_path, batch, **changed):
    """Leave after a step, and go on with another batch; return the numbers of the samples of each step after that."""
    first = prepare(tmp_path / "first")
    ask_to_leave(first)
    parts, code = train(bridge, first, bridge_parts.configuration(bridge, tmp_path / "saved"))
    saved = {"checkpoint": str(tmp_path / "saved/iter_0000001"), "step": 1, "samples": 8}
    assert code == 0 and len(parts.taken) == 1 and left(first) == {**saved, "reason": "layout"}
    second = prepare(tmp_path / "second", **saved, plan={**terms(batch).to_dict(), "number": 2, "from_step": 1})
    config = bridge_parts.configuration(bridge, tmp_path / "saved", train__global_batch_size=batch, **changed)
    parts, code = train(bridge, second, config)
    assert code is None and left(second)["reason"] == "finished"
    return config, [samples for samples, _ in parts.taken]


@pytest.mark.parametrize("interval", [None, 1, 3, 1000], ids=str)
@pytest.mark.parametrize("in_background", [False, True])
def test_the_loop_takes_the_batches_of_the_plan_and_each_sample_once(bridge, tmp_path, interval, in_background):
    folder, save = prepare(tmp_path / "run"), tmp_path / "saved"
    ask(folder, 2, 16)
    ask(folder, 3, 32)
    given = {"checkpoint__save_interval": interval, "checkpoint__async_save": in_background}
    parts, code = train(bridge, folder, bridge_parts.configuration(bridge, save, **given))
    assert code is None and [line["samples"] for line in reported(folder)] == [8, 16, 32, 32]
    begins, factors = [0, 8, 24, 56], [1, 2**0.5, 2, 2]
    assert [samples for samples, _ in parts.taken] == [list(range(*each)) for each in pairwise([*begins, 88])]
    assert [rate for _, rate in parts.taken] == pytest.approx([(1 - at / 96) * factor for at, factor in zip(begins, factors, strict=True)])
    assert [line["loss"] for line in reported(folder)] == [2.5] * 4
    assert left(folder) == {"checkpoint": str(save / "iter_0000004"), "step": 4, "samples": 88, "reason": "finished"}
    grows, regular = {1, 2}, {step for step in range(1, 5) if interval and step % interval == 0}
    assert {int(path.stem.split("-")[1]) for path in folder.glob("saved-*")} == grows | regular | {4}


def test_it_leaves_and_resumes_with_another_batch(bridge, tmp_path):
    config, numbers = leave_and_resume(bridge, tmp_path, 16)
    assert numbers == [list(range(at, at + 16)) for at in range(8, 88, 16)]
    found = config.checkpoint
    assert (found.load, found.ckpt_step, found.exit_on_missing_checkpoint) == (str(tmp_path / "saved"), 1, True)


@pytest.mark.parametrize(("part", "value"), [("finetune", True), ("load_optim", False)])
def test_a_resumed_run_needs_the_state_of_its_optimizer(bridge, tmp_path, part, value):
    with pytest.raises(ContractError, match=f"`checkpoint.{part}"):
        leave_and_resume(bridge, tmp_path, 16, **{f"checkpoint__{part}": value})


def test_a_checkpoint_that_bridge_does_not_find_is_an_error(bridge, tmp_path):
    saved = {"checkpoint": str(tmp_path / "saved/iter_0000001"), "step": 1, "samples": 8}
    folder = prepare(tmp_path / "run", **saved)
    with pytest.raises(ContractError, match=r"begins at iteration 0 with 0 samples, but the run is at step 1 with 8: .* `checkpoint.load`"):
        train(bridge, folder, bridge_parts.configuration(bridge, tmp_path / "saved"))


def test_the_learning_rate_is_scaled_once_if_the_program_imports_pretrain_last(bridge, tmp_path):
    folder = prepare(tmp_path / "run")
    ask(folder, 2, 16)
    parts, _ = train(bridge, folder, bridge_parts.configuration(bridge, tmp_path / "saved"), late=True)
    assert [rate for _, rate in parts.taken[:2]] == pytest.approx([1.0, (1 - 8 / 96) * 2**0.5])


@pytest.mark.parametrize(("words", "changed"), REFUSED.items(), ids=REFUSED)
def test_values_that_contradict_a_plan_are_named(bridge, tmp_path, words, changed):
    config = bridge_parts.configuration(bridge, tmp_path / "saved", **changed)
    with pytest.raises(ContractError, match=re.escape(words)):
        train(bridge, prepare(tmp_path / "run"), config)


def test_a_loop_that_restarts_in_its_process_is_named(bridge, tmp_path):
    config, program = bridge_parts.configuration(bridge, tmp_path, inprocess_restart__enabled=True), programs.MegatronBridge()
    config.data_parallel_size = 1
    program.attach(*[None] * 6, SimpleNamespace(cfg=config, train_state=bridge.state.TrainState()))
    assert [name for name, present in program.obstacles(resumes=False).items() if present] == ["inprocess_restart"]


def test_a_trial_takes_its_steps_and_saves_nothing(bridge, tmp_path):
    (tmp_path / "trial.json").write_text(json.dumps({"steps": 4, "configuration": LAYOUT}))
    parts, code = train(bridge, tmp_path, bridge_parts.configuration(bridge, tmp_path / "saved", checkpoint__save_interval=1))
    assert code == 0 and len(parts.taken) == 4 and not (tmp_path / "saved").exists()
    assert json.loads((tmp_path / "outcome.json").read_text())["outcome"] == "completed"
