"""Megatron's loop follows the plan of a run: with megatron-core's own calculator and schedule, and a loop that stands for Megatron-LM's."""

import ast
import dataclasses
import importlib.util
import json
import subprocess
import sys
import types
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from oppa_client import ContractError, early_start, run_files, wait_for_devices
from oppa_client.megatron import programs, supervise

from oppa.training.statistics.noise_scale import NoiseScale
from tests.own_trainer.folders import ask, ask_to_leave, attempt, reported, terms

PRESENT = importlib.util.find_spec("megatron") is not None and importlib.util.find_spec("megatron.core") is not None
needs_core = pytest.mark.skipif(not PRESENT, reason="NOT TESTED with megatron-core, which is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of megatron-core, which misses Transformer Engine
REFUSED = {
    "--rampup-batch-size": {"rampup_batch_size": ["8", "8", "100"]},
    "--step-batch-size-schedule": {"step_batch_size_schedule": "0:8 100:16"},
    "--iterations-to-skip": {"iterations_to_skip": [3]},
    "--no-save-optim": {"no_save_optim": True},
    "--non-persistent-save-interval": {"non_persistent_save_interval": 2},
    "--cuda-graph-scope full_iteration": {"cuda_graph_scope": ["full_iteration"]},
    "--dataloader-type cyclic": {"dataloader_type": "cyclic"},
    "`--train-samples` is required": {"train_samples": None},
    "`--train-samples 80` differs from `samples = 96`": {"train_samples": 80},
    "`--save` is required": {"save": None},
    "begins at iteration 5 with 40 samples, but the run is at step 0": {"iteration": 5, "consumed_train_samples": 40},
    "micro-batches of 4 on 1 replicas": {"micro_batch_size": 4},
}


@pytest.fixture
def loop(monkeypatch, tmp_path):
    """Return a fresh module of the loop, as Megatron-LM's, with the arguments of a launch line."""
    spec = importlib.util.spec_from_file_location("megatron.training.training", Path(__file__).with_name("megatron_loop.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "megatron.training", types.SimpleNamespace(get_args=module.get_args))
    monkeypatch.setitem(sys.modules, "megatron.training.training", module)
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", "--use-distributed-optimizer"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which `open_run` replaces
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    given = {"micro_batch_size": 2, "data_parallel_size": 1, "pipeline_model_parallel_size": 1, "dataloader_type": "single", "fp16": False}
    given |= {"train_samples": 96, "save": str(tmp_path / "saved"), "iteration": 0, "consumed_train_samples": 0}
    module.ARGS = Namespace(**given, train_iters=12, exit_interval=None, eval_interval=3)
    yield module
    torch.distributed.destroy_process_group()


def prepare(monkeypatch, folder, **changed):
    """Write what oppa writes before an attempt, which is the next one of this process."""
    attempt(folder, **{"total_samples": 96, **changed})
    monkeypatch.setenv("OPPA_TRIAL", str(folder))
    return folder


def train(loop, **options):
    """Train as `pretrain` does after the call of `supervise`; return the code of an exit, or None."""
    run, optimizer = supervise(**options), Namespace(param_groups=[{"max_lr": 1.0, "min_lr": 0.0}])
    try:
        loop.train(None, [torch.nn.Linear(1, 1)], optimizer, loop.schedule(optimizer, loop.ARGS.consumed_train_samples))
    except SystemExit as end:
        return run, end.code
    return run, None


def left(folder):
    return json.loads((folder / run_files.LEFT).read_text())


@needs_core
def test_the_loop_takes_the_batches_of_the_plan_saves_at_each_and_drops_what_fills_no_step(loop, monkeypatch, tmp_path):
    folder = prepare(monkeypatch, tmp_path / "run")
    ask(folder, 2, 16)
    ask(folder, 3, 32)
    assert train(loop)[1] is None
    assert [samples for samples, _ in loop.TAKEN] == [8, 16, 32, 32] == [line["samples"] for line in reported(folder)]
    begins, factors = [0, 8, 24, 56], [1, 2**0.5, 2, 2]
    assert [rate for _, rate in loop.TAKEN] == pytest.approx([(1 - at / 96) * factor for at, factor in zip(begins, factors, strict=True)])
    assert sorted(path.name for path in folder.glob("saved-*")) == ["saved-1.json", "saved-2.json", "saved-4.json"]
    facts = {name: left(folder)[name] for name in ("checkpoint", "step", "samples", "reason")}
    assert facts == {"checkpoint": str(tmp_path / "saved/iter_0000004"), "step": 4, "samples": 88, "reason": "finished"}


@needs_core
def test_it_saves_and_exits_when_asked_and_another_attempt_resumes(loop, monkeypatch, tmp_path):
    folder = prepare(monkeypatch, tmp_path / "first")
    ask_to_leave(folder)
    assert train(loop)[1] == 0 and left(folder)["reason"] == "layout" and len(reported(folder)) == 1
    stated, again = left(folder), {**terms(16).to_dict(), "number": 2, "from_step": 1}
    again = {"checkpoint": stated["checkpoint"], "step": stated["step"], "samples": stated["samples"], "plan": again}
    folder = prepare(monkeypatch, tmp_path / "second", **again)
    given = {**vars(loop.ARGS), "iteration": 1, "exit_interval": None}
    loop.__spec__.loader.exec_module(loop)  # as in another process
    loop.ARGS = Namespace(**given)
    assert train(loop)[1] is None and [samples for samples, _ in loop.TAKEN] == [16] * 5
    assert sys.argv[2:] == ["--load", str(tmp_path / "saved"), "--ckpt-step", "1", "--exit-on-missing-checkpoint"]


class Statistics:
    """Counts its steps instead of measuring gradients."""

    def __init__(self, chunks):
        self.noise_scale = NoiseScale()

    def begin(self, plan, replicas):
        pass

    def step(self, sizes):
        self.noise_scale = dataclasses.replace(self.noise_scale, tokens=self.noise_scale.tokens + sum(sizes))

    def report(self):
        return {"noise_scale": self.noise_scale.tokens}

    def close(self):
        self.noise_scale = None


@needs_core
def test_the_noise_scale_is_reported_and_goes_on_after_a_restart(loop, monkeypatch, tmp_path):
    folder = prepare(monkeypatch, tmp_path / "first")
    ask_to_leave(folder)
    train(loop, statistics=Statistics)
    stated = {name: left(folder)[name] for name in ("checkpoint", "step", "samples", "plan")}
    folder = prepare(monkeypatch, tmp_path / "second", **stated)
    given = {**vars(loop.ARGS), "iteration": 1, "exit_interval": None}
    loop.__spec__.loader.exec_module(loop)  # as in another process
    loop.ARGS = Namespace(**given)
    train(loop, statistics=Statistics)
    assert [line["noise"]["noise_scale"] for line in reported(folder)] == list(range(16, 97, 8))


@needs_core
def test_a_checkpoint_is_stated_once_megatron_has_completed_it(loop, monkeypatch, tmp_path):
    folder = prepare(monkeypatch, tmp_path / "run")
    loop.COMPLETE = False
    ask(folder, 2, 16)
    stated = []
    step = loop.train_step

    def watched(*arguments):
        stated.append((folder / "saved-1.json").exists())
        if len(stated) == 3:
            loop.maybe_finalize_async_save()
        return step(*arguments)

    loop.train_step = watched
    train(loop)
    assert stated == [False, False, False, True, True, True] and left(folder)["step"] == 6


@needs_core
def test_a_batch_that_the_loop_refuses_ends_the_attempt_which_is_why_only_growth_is_declared(loop, monkeypatch, tmp_path):
    folder = prepare(monkeypatch, tmp_path / "run")
    ask(folder, 2, 4)
    with pytest.raises(AssertionError, match="should not decrease"):
        train(loop)
    able = run_files.read(folder, run_files.ABILITIES)["abilities"]
    assert able["batch"] == "up" and able["whole_steps"] and not able["micro_batch"] and not able["restart"]


@needs_core
def test_a_program_that_waits_for_its_devices_declares_the_early_start(loop, monkeypatch, tmp_path):
    folder = prepare(monkeypatch, tmp_path / "run")
    sys.argv += ["--dist-ckpt-optim-fully-reshardable"]
    monkeypatch.setattr(early_start, "_declared", False)
    wait_for_devices()
    train(loop)
    able = run_files.read(folder, run_files.ABILITIES)["abilities"]
    assert able["restart"] and able["elastic"] and able["early_start"]


@needs_core
@pytest.mark.parametrize(("words", "options"), REFUSED.items(), ids=REFUSED)
def test_options_that_contradict_a_plan_are_named(loop, monkeypatch, tmp_path, words, options):
    prepare(monkeypatch, tmp_path / "run")
    vars(loop.ARGS).update(options)
    with pytest.raises(ContractError, match=words):
        train(loop)
    assert not loop.TAKEN


@needs_core
def test_a_trial_takes_its_steps_and_saves_nothing(loop, monkeypatch, tmp_path):
    (tmp_path / "trial.json").write_text(
        json.dumps({"steps": 4, "configuration": {"dp": 1, "tp": 1, "pp": 1, "global_batch": 8, "micro_batch": 2}})
    )
    monkeypatch.setenv("OPPA_TRIAL", str(tmp_path))
    assert train(loop)[1] == 0
    assert len(loop.TAKEN) == 4 and not (tmp_path / "saved").exists()
    assert json.loads((tmp_path / "outcome.json").read_text())["outcome"] == "completed"


@needs_core
def test_a_loop_of_other_parts_is_refused(loop, monkeypatch, tmp_path):
    prepare(monkeypatch, tmp_path / "run")
    del loop.save_checkpoint
    with pytest.raises(ContractError, match="Megatron-LM has no `save_checkpoint`"):
        supervise()


@needs_core
@pytest.mark.slow
def test_buffers_of_megatrons_ddp_have_the_norms_that_plain_torch_computes(tmp_path):
    program = Path(__file__).parents[1] / "training" / "megatron_ranks.py"
    ranks = [subprocess.Popen([sys.executable, program, str(rank), "2", str(tmp_path)], stderr=subprocess.PIPE) for rank in range(2)]
    ends = [rank.communicate(timeout=280)[1].decode()[-3000:] for rank in ranks]
    assert all((tmp_path / f"done-{rank}").exists() for rank in range(2)), ends


@pytest.mark.parametrize(
    ("words", "able"),
    [
        ([], True),
        (["--use-distributed-optimizer"], False),
        (["--use-distributed-optimizer", "--dist-ckpt-optim-fully-reshardable"], True),
        (["--ckpt-format", "torch"], False),
        (["--ckpt-format=fsdp_dtensor"], False),
    ],
)
def test_restarts_in_another_layout_need_a_checkpoint_that_can_be_resharded(monkeypatch, words, able):
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words])
    assert programs._reshards(None) is able


@pytest.mark.parametrize(
    ("checkpoint", "sharded", "able"),
    [
        ({}, (), True),
        ({}, ("ddp",), False),
        ({}, ("optimizer",), False),
        ({"dist_ckpt_optim_fully_reshardable": True}, ("ddp", "optimizer"), True),
        ({"ckpt_format": "fsdp_dtensor", "dist_ckpt_optim_fully_reshardable": True}, ("ddp", "optimizer"), False),
    ],
)
def test_bridges_restarts_in_another_layout_need_a_checkpoint_that_can_be_resharded(checkpoint, sharded, able):
    saved = {"ckpt_format": "torch_dist", "dist_ckpt_optim_fully_reshardable": False, **checkpoint}
    parts = {name: Namespace(use_distributed_optimizer=name in sharded) for name in ("ddp", "optimizer")}
    assert programs._reshards(Namespace(checkpoint=Namespace(**saved), **parts)) is able


BRIDGE = {
    "training/train.py": {"train", "train_step", "save_checkpoint", "evaluate_and_print_results", "maybe_finalize_async_save"},
    "training/pretrain.py": {"train", "save_checkpoint", "evaluate_and_print_results"},
    "training/config.py": {"load", "ckpt_step", "exit_on_missing_checkpoint", "dist_ckpt_optim_fully_reshardable", "exit_interval"}
    | {"train_iters", "train_samples", "rampup_batch_size", "iterations_to_skip", "dataloader_type", "load_optim", "save_optim"},
    "training/state.py": {"consumed_train_samples", "step"},
}
"""Names of Megatron-Bridge that are called or set; to import it takes Transformer Engine."""


@needs_core
@pytest.mark.parametrize(("file", "names"), BRIDGE.items(), ids=BRIDGE)
def test_megatron_bridge_has_the_names_that_are_used(file, names):
    found = importlib.util.find_spec("megatron.bridge")
    if found is None:
        pytest.skip("NOT TESTED with Megatron-Bridge, which is not installed")
    tree = ast.parse((Path(found.origin).parent / file).read_text())
    known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    known |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    known |= {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert names <= known


@pytest.mark.parametrize("checkpoint", ["/saved/step-7", "/saved/iter_0000008", "/saved"])
def test_a_checkpoint_of_another_trainer_or_iteration_is_named(checkpoint):
    with pytest.raises(ContractError, match=f"`{checkpoint}` is not Megatron's folder of iteration 7"):
        programs.resume_words(checkpoint, 7)


@pytest.mark.parametrize(("text", "iteration"), [("12\n", 12), ("release", 0), ("", 0), ("-3", 0)])
def test_the_newest_iteration_is_the_one_that_megatron_states(tmp_path, text, iteration):
    assert programs.completed_iteration(str(tmp_path)) == 0
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(text)
    assert programs.completed_iteration(str(tmp_path)) == iteration


def test_outside_oppa_nothing_changes(monkeypatch):
    monkeypatch.delenv("OPPA_TRIAL", raising=False)
    words = list(sys.argv)
    assert supervise() is None and sys.argv == words
