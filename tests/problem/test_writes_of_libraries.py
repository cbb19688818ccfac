"""The declaration has the options of the libraries' own parsers, and its words are words that these parsers take.

Libraries that are not installed are skipped.
"""

import argparse
import dataclasses
import inspect
import shlex

import pytest

from oppa.problem.stated_words import names_a_path
from oppa.problem.writes import harmless
from oppa.problem.writes_file import writes

pytestmark = pytest.mark.slow
MEGATRON = "--save /c --load /c --tensorboard-dir /t --profile --eval-interval 10 --exit-signal-handler --log-progress --wandb-project p"
LEGACY = {"--titles-data-path", "--evidence-data-path", "--block-data-path", "--embedding-path"}
"""Options of retrieval models, which stay unknown."""
NVME = {"--offload_optimizer_nvme_path", "--offload_param_nvme_path"}
"""Options for a fast disk, where another folder could be slower; they stay unknown, too."""


def undeclared(framework, options):
    """Return the options that are named like paths, and of which nothing is declared."""
    table = writes().program(framework)
    known = {*table.options, *table.others}
    return {name for name in options if names_a_path(name.lstrip("-"), "x") and table.canonical(name) not in known}


def trial_words(framework, text, *, start="python train.py"):
    """Return the words that a trial's program gets."""
    return list(harmless(framework, shlex.split(f"{start} {text}")).words[2:])


def test_transformers_options_are_declared_and_taken():
    transformers = pytest.importorskip("transformers")
    fields = {f"--{field.name}" for field in dataclasses.fields(transformers.TrainingArguments) if field.init}
    assert undeclared("transformers", fields) == set()
    declared = writes().frameworks["transformers"]
    older = {"--logging_dir", "--cache_dir", "--config"}
    lists = {name for name, option in declared.options.items() if option.values == "many" and option.kind == "read"}
    assert {*declared.options} - fields == older | lists, "the others are options of this release, or lists of data and modules"
    text = "--save_strategy steps --load_best_model_at_end --eval_strategy steps --push_to_hub --report_to wandb tensorboard --use_cpu"
    (found,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses(trial_words("transformers", text))
    assert (found.save_strategy, found.push_to_hub, found.report_to) == ("no", False, [])
    assert not found.load_best_model_at_end and found.output_dir == "{folder}/writes/output_dir"


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
@pytest.mark.parametrize("scheduler", ["linear", "reduce_lr_on_plateau"])
def test_transformers_evaluates_nothing_in_a_trial_and_starts_with_what_needs_an_evaluation(strategy, scheduler):
    transformers = pytest.importorskip("transformers")
    text = f"--save_strategy {strategy} --load_best_model_at_end --eval_strategy {strategy} --eval_steps 1 --lr_scheduler_type {scheduler}"
    (args,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses(trial_words("transformers", text))
    state, control = transformers.TrainerState(global_step=1000, epoch=1000.0, eval_steps=1, max_steps=2000), transformers.TrainerControl()
    transformers.EarlyStoppingCallback().on_train_begin(args, state, control)
    flow = transformers.trainer_callback.DefaultFlowCallback()
    assert not flow.on_step_end(args, state, control).should_evaluate and not flow.on_epoch_end(args, state, control).should_evaluate


def test_lightnings_arguments_are_declared():
    trainer = pytest.importorskip("lightning").Trainer
    names = {f"--trainer.{name}" for name in inspect.signature(trainer.__init__).parameters}
    assert undeclared("lightning", names) == set()
    assert {name for name in writes().frameworks["lightning"].options if name.startswith("--trainer.")} <= names


def test_options_of_launchers_are_declared():
    run = pytest.importorskip("torch.distributed.run")
    launch = pytest.importorskip("accelerate.commands.launch")
    table = writes().starter
    for parser in (run.get_args_parser(), launch.launch_command_parser()):
        options = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
        found = {table.canonical(name) for name in options if names_a_path(name.lstrip("-"), "x")}
        assert found - {*table.options, *table.others} <= NVME


def test_megatrons_options_are_declared_and_taken():
    arguments = pytest.importorskip("megatron.training.arguments", exc_type=ImportError)
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    options = {name for action in parser._actions for name in action.option_strings}
    assert undeclared("megatron", options) == LEGACY
    declared = writes().frameworks["megatron"]
    assert {*declared.options, *declared.others} - options == set()
    found = parser.parse_args([word.replace("{steps}", "7") for word in trial_words("megatron", f"--train-iters 500 {MEGATRON}")])
    assert (found.save, found.load, found.tensorboard_dir, found.wandb_project) == (None, None, None, None)
    assert (found.train_iters, found.exit_interval, found.eval_iters, found.log_interval) == (500, 7, 0, 1)
    assert not (found.profile or found.exit_signal_handler or found.log_progress)
    assert found.data_cache_path == "{cache_folder}/data-cache-path"
    counts = {name: action.nargs for action in parser._actions for name in action.option_strings}
    expected = {"none": (0,), "one": (None,), "many": ("*", "+")}
    assert [name for name, option in declared.options.items() if counts[name] not in expected[option.values]] == []


def names_in(config, above="--"):
    """Return the options of a configuration, by the names of its fields."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "model_spec":  # which the command line cannot state
            continue
        if dataclasses.is_dataclass(value):
            yield from names_in(value, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}"


def test_torchtitans_options_are_declared_and_taken():
    manager = pytest.importorskip("torchtitan.config.manager", exc_type=ImportError)
    text = "--module llama3 --config llama3_debugmodel --checkpoint.enable --metrics.enable_wandb --dump-folder /x"
    found = manager.ConfigManager().parse_args(trial_words("torchtitan", text))
    assert not (
        found.checkpoint.enable or found.metrics.enable_wandb or found.metrics.enable_tensorboard or found.profiler.enable_profiling
    )
    assert found.dump_folder == "{folder}/writes/dump-folder" and found.metrics.log_freq == 1
    assert undeclared("torchtitan", names_in(found)) == set()
