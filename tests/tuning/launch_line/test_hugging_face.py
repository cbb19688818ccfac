"""The present configuration is what files and defaults of accelerate, Transformers and TRL state."""

import json
import shlex
from pathlib import Path

import pytest

from oppa.cost.framework import load_framework
from oppa.errors import InputError
from oppa.problem.describe import changes
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.changed_line import changed_line
from oppa.tuning.launch_line.understand import understand
from oppa.tuning.launch_line.winner_files import write_files
from tests.tuning.launch_line.conftest import CPUS, GPUS
from tests.tuning.launch_line.examples import FSDP

TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4 --output_dir out"
DS = json.dumps(
    {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "gradient_accumulation_steps": 4,
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": "auto",
    }
)
NAMES_DS = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
HYBRID = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n"
FSDP_RECOMPUTES = '{"fsdp_activation_checkpointing": true}'
BATCH = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --output_dir out"
PARSER = "from transformers import HfArgumentParser, Trainer, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
TRL = "from trl import (\n    SFTConfig,\n    TrlParser,\n)\nTrlParser((SFTConfig,))\n"
RECIPE = """
per_device_train_batch_size: 4
output_dir: out
deepspeed: ds.json
dataloader_num_workers: 4
"""
TRIAL = {"micro_batch": 2, "num_microbatches": 4, "recompute": "full", "zero_stage": 3, "global_batch": 64, "folder": "/trial"}
BATCH_OF_TRIAL = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
MODEL = [f"model.{key}={size}" for key, size in {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 1000, "seq_len": 128}.items()]
BY_DS = {"zero_stage": (3, "ds.json"), "offload_optimizer": ("cpu", "ds.json"), "precision": ("bf16", "ds.json")}


def stated(job) -> dict[str, tuple[object, str]]:
    """Return what was understood with its origin."""
    meaning = job.meaning
    found = {**meaning.settings, "precision": meaning.precision}
    return {name: (value, meaning.origins.get(name, "")) for name, value in found.items()}


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        (f"--config_file a.yaml train.py {BATCH}", {"a.yaml": NAMES_DS, "ds.json": DS}, {**BY_DS, "micro_batch": (2, "line")}),
        ("--config_file a.yaml train.py", {"a.yaml": NAMES_DS, "ds.json": DS}, {**BY_DS, "micro_batch": (2, "ds.json")}),
        (f"--num_processes 8 --use_deepspeed --deepspeed_config_file ds.json train.py {BATCH}", {"ds.json": DS}, BY_DS),
        (
            f"--num_processes 8 --zero_stage 3 --mixed_precision fp16 --use_deepspeed --deepspeed_config_file ds.json train.py {BATCH}",
            {"ds.json": '{"zero_optimization": {"stage": "auto"}}'},
            {"zero_stage": (3, "line"), "precision": ("fp16", "line")},
        ),
        ("--config_file a.yaml t.py", {"a.yaml": HYBRID}, {"zero_stage": (3, "a.yaml"), "dp_replicate": (2, "a.yaml")}),
        ("--config_file a.yaml t.py", {"a.yaml": HYBRID.replace("HYBRID_SHARD", "5")}, {"zero_stage": (2, "a.yaml")}),
        (
            "--config_file a.yaml t.py --lr 1",
            {"a.yaml": FSDP, "t.py": PARSER},
            {"micro_batch": (8, "default of Transformers"), "zero_stage": (3, "a.yaml")},
        ),
    ],
)
def test_accelerate_takes_what_its_files_state(line, files, expected, job) -> None:
    assert {**stated(job(f"accelerate launch {line}", files)), **expected} == stated(job(f"accelerate launch {line}", files))


def test_an_optimizer_that_the_line_states_stays_and_decides_the_memory(job) -> None:
    words = {"": "32-bit", "--optim paged_adamw_8bit": "8-bit", "--optim adafactor": "none"}
    made = {moments: job(f"{TRAINER} --bf16 true --fsdp full_shard {each}", settings=MODEL) for each, moments in words.items()}
    assert stated(made["8-bit"])["optim"] == ("paged_adamw_8bit", "line") and "optim" not in stated(made["32-bit"])
    for moments, each in made.items():
        assert set(load_framework("fsdp").columns(each.problem.candidates())["moments"]) == {moments}
    line = made["8-bit"].problem.launch_line(made["8-bit"].problem.baseline)
    written = shlex.join(line.words(values_outside_trials(made["8-bit"].problem, made["8-bit"].problem.baseline), {}))
    assert written.count("--optim paged_adamw_8bit") == 1


@pytest.mark.parametrize(
    ("line", "note"),
    [
        (f"{TRAINER} --optim lion_8bit", "AdamW with moments in 32 bits for `lion_8bit`"),
        (f"accelerate launch --num_processes 8 train.py {BATCH} --optim adafactor", "AdamW with moments in 32 bits for `adafactor`"),
    ],
)
def test_a_note_names_an_optimizer_that_predictions_do_not_have(line, note, job) -> None:
    assert sum(note in each for each in job(line, settings=MODEL).notes) == 1
    assert not any("predictions" in each for each in job(line).notes)


@pytest.mark.parametrize(
    ("line", "trained", "weights", "origin"),
    [
        (TRAINER, "all", "16-bit", None),
        (f"{TRAINER} --use_peft true", "lora", "16-bit", "line"),
        (f"{TRAINER} --use_lora --q_lora True", "lora", "4-bit", "line"),
        (f"{TRAINER} --use_peft --load_in_8bit", "lora", "8-bit", "line"),
        (f"{TRAINER} --use_peft false --quantization_bit 0", "all", "16-bit", None),
        (f"accelerate launch --num_processes 8 train.py {BATCH} --use_peft --quant_bits 4", "lora", "4-bit", "line"),
        (f"torchrun -m swift.cli.sft {BATCH}", "lora", "16-bit", "default of ms-swift"),
        (f"torchrun -m swift.cli.sft {BATCH} --tuner_type full", "all", "16-bit", None),
        ("torchrun --nproc-per-node 8 -m llamafactory.launcher qlora.yaml", "lora", "4-bit", "qlora.yaml"),
    ],
)
def test_adapters_and_quantised_weights_are_read(line, trained, weights, origin, job) -> None:
    recipe = "per_device_train_batch_size: 1\noutput_dir: out\nfinetuning_type: lora\nquantization_bit: 4\n"
    made = job(line, {"qlora.yaml": recipe}, settings=MODEL)
    assert (made.problem.training.trained, made.problem.training.weights) == (trained, weights)
    assert {fact.name: fact.origin for fact in made.meaning.training}.get("trained") == origin


def test_a_kernel_that_the_line_turns_on_stays_and_decides_the_prediction(job) -> None:
    plain, liger = (job(f"{TRAINER} --fsdp full_shard {words}", settings=MODEL) for words in ("", "--use_liger_kernel true"))
    assert stated(liger)["use_liger_kernel"] == (True, "line") and "use_liger_kernel" not in stated(plain)
    framework, candidates = load_framework("fsdp"), liger.problem.candidates()
    assert set(framework.columns(candidates)["loss"]) == {"chunked"}
    line = liger.problem.launch_line(liger.problem.baseline)
    assert "--use_liger_kernel true" in shlex.join(line.words(values_outside_trials(liger.problem, liger.problem.baseline), {}))


def test_the_batch_in_a_file_of_deepspeed_is_that_of_a_program_of_one_s_own(job) -> None:
    made = job("accelerate launch --config_file a.yaml t.py --b {micro_batch=2:1,2}", {"a.yaml": NAMES_DS, "ds.json": DS})
    assert made.problem.global_batch == 64
    (file,) = made.problem.command.files
    assert (
        file.rewritten({"micro_batch": 1, "zero_stage": 2, "num_microbatches": 8, "global_batch": 64})["gradient_accumulation_steps"] == 8
    )


def test_a_file_of_deepspeed_is_json_whatever_its_suffix(job) -> None:
    made = job(f"accelerate launch --num_processes 8 --use_deepspeed --deepspeed_config_file ds.conf t.py {BATCH}", {"ds.conf": DS})
    assert "{ds}" in made.problem.command.argv and made.problem.baseline.zero_stage == 3


def test_shards_within_a_host_stay_there(job) -> None:
    made = job("accelerate launch --config_file a.yaml t.py", {"a.yaml": HYBRID})
    (file,) = made.problem.command.files
    assert [file.rewritten({"zero_stage": stage}) for stage in (2, 3)] == [
        {"fsdp_config.fsdp_sharding_strategy": name} for name in ("HYBRID_SHARD_ZERO2", "HYBRID_SHARD")
    ]


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("--config r.yaml", {"r.yaml": RECIPE, "ds.json": DS}, {**BY_DS, "micro_batch": (4, "r.yaml")}),
        (
            "--config r.yaml",
            {"r.yaml": RECIPE.replace("deepspeed: ds.json", "ddp_bucket_cap_mb: 100")},
            {"dataloader_num_workers": (4, "r.yaml"), "dp_bucket_mb": (100, "r.yaml"), "zero_stage": (0, "")},
        ),
        (f"{BATCH} --fsdp full_shard --fsdp_config f.json", {"f.json": FSDP_RECOMPUTES}, {"recompute": ("full", "f.json")}),
        (f"{BATCH} --fsdp full_shard --fsdp_config '{FSDP_RECOMPUTES}'", {}, {"recompute": ("full", "line")}),
        (f"{BATCH} --fsdp_config f.json", {"f.json": FSDP_RECOMPUTES}, {"recompute": ("none", "")}),
        (f"{BATCH}", {"t.py": TRL}, {"precision": ("bf16", "default of TRL"), "recompute": ("full", "default of TRL")}),
        (f"{BATCH} --fp16", {"t.py": TRL}, {"precision": ("fp16", "line"), "recompute": ("full", "default of TRL")}),
        (
            f"{BATCH} --bf16 false --activation_checkpointing false",
            {"t.py": TRL},
            {"precision": ("fp32", "line"), "recompute": ("none", "line")},
        ),
        (f"{BATCH}", {"t.py": PARSER}, {"precision": ("fp32", ""), "recompute": ("none", "")}),
        (f"{BATCH} --fsdp hybrid_shard_zero2", {}, {"zero_stage": (2, "line"), "dp_replicate": (2, "line")}),
        (f"{BATCH} --fsdp hybrid_shard", {}, {"zero_stage": (3, "line"), "dp_replicate": (2, "line")}),
    ],
)
def test_the_trainer_takes_what_its_files_state_and_the_defaults_of_trl(line, files, expected, job) -> None:
    found = stated(job(f"torchrun --nnodes 2 --nproc-per-node 4 t.py {line}", files))
    assert {**found, **expected} == found


def test_a_file_of_deepspeed_that_a_file_of_arguments_names_is_copied(job) -> None:
    made = job("torchrun --nproc-per-node 8 t.py --config r.yaml", {"r.yaml": RECIPE, "ds.json": DS})
    argv = made.problem.command.argv
    assert argv[argv.index("--deepspeed") + 1] == "{ds}" and "zero_stage" in made.problem.space.names
    with pytest.raises(InputError, match=r"`deepspeed` of `r\.yaml` is a table"):
        job("torchrun --nproc-per-node 8 t.py --config r.yaml", {"r.yaml": RECIPE.replace("ds.json", "{train_batch_size: 1}")})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("per_device_train_batch_size: four", 'per_device_train_batch_size: "four"` is not a whole number'),
        ("per_device_train_batch_size: 4.5", "per_device_train_batch_size: 4.5` is not a whole number"),
        ("per_device_train_batch_size: true", "per_device_train_batch_size: true` is not a whole number"),
        ("gradient_accumulation_steps: 0", "gradient_accumulation_steps: 0` is less than 1"),
        ("dataloader_num_workers: [4]", "dataloader_num_workers: [4]` is not a whole number"),
        ("gradient_checkpointing: sometimes", 'gradient_checkpointing: "sometimes"` is neither true nor false'),
    ],
)
def test_a_value_of_another_type_in_a_file_of_arguments_is_refused(wrong, message, job):
    with pytest.raises(InputError) as refused:
        job("torchrun --nproc-per-node 8 t.py --config r.yaml", {"r.yaml": f"{RECIPE}deepspeed: null\n{wrong}\n"})
    assert refused.value.message == f"`r.yaml`: `{message}"


def test_a_file_of_arguments_may_state_numbers_and_switches_as_text(job):
    own = "per_device_train_batch_size: '2'\ngradient_checkpointing: 'true'\nmax_length: auto\nblock_size: null\n"
    found = stated(job("torchrun --nproc-per-node 8 t.py --config r.yaml", {"r.yaml": f"{RECIPE}{own}", "ds.json": DS}))
    assert found["micro_batch"] == (2, "r.yaml") and found["recompute"] == ("full", "r.yaml")


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (f"torchrun --nproc-per-node 8 t.py {BATCH} --fsdp full_shard --fsdp_config f.json", {"f.json": FSDP_RECOMPUTES}),
        (f"torchrun --nproc-per-node 8 t.py {BATCH} --gradient_checkpointing", {}),
        (f"accelerate launch --config_file a.yaml t.py {BATCH} --gradient_checkpointing", {"a.yaml": FSDP}),
        (f"accelerate launch --config_file a.yaml t.py {BATCH}", {"a.yaml": FSDP.replace("checkpointing: false", "checkpointing: true")}),
        (f"accelerate launch --config_file a.yaml t.py {BATCH}", {"a.yaml": FSDP, "t.py": TRL}),
    ],
)
def test_one_of_two_ways_to_recompute_varies_since_transformers_refuses_both(line, files, job) -> None:
    made = job(line, files)
    assert made.problem.baseline.recompute == "full"
    assert {each.recompute for each in made.problem.candidates()} == {"none", "full"}
    ways = [each.parameter for each in made.problem.command.arguments] + [str(file.keys) for file in made.problem.command.files]
    assert len([way for way in ways if "recompute" in way]) == 1
    assert not [word for word in made.problem.command.argv if "checkpointing" in word]


ARGUMENTS = json.dumps({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "output_dir": "mine", "save_strategy": "steps"})


@pytest.mark.parametrize(
    ("line", "files", "keys"),
    [
        ("torchrun --nproc-per-node 8 t.py a.json", {}, {"gradient_checkpointing": True, **BATCH_OF_TRIAL}),
        (
            "torchrun --nproc-per-node 8 t.py a.json",
            {"a.json": ARGUMENTS[:-1] + ', "deepspeed": "ds.json"}', "ds.json": DS},
            {"gradient_checkpointing": True, **BATCH_OF_TRIAL},
        ),
        ("accelerate launch --config_file a.yaml t.py a.json", {"a.yaml": FSDP}, BATCH_OF_TRIAL),
        ("accelerate launch --config_file a.yaml t.py a.json", {"a.yaml": NAMES_DS, "ds.json": DS}, BATCH_OF_TRIAL),
    ],
)
def test_a_file_that_is_the_sole_argument_has_the_arguments_of_trials(line, files, keys, job) -> None:
    made = job(line, {"a.json": ARGUMENTS, "t.py": PARSER, **files})
    command, own = made.problem.command, made.problem.restored.command
    assert command.argv[-2:] == own.argv[-2:] == ("t.py", "{arguments}") and made.meaning.settings["micro_batch"] == 4
    assert made.problem.baseline is not None and not [word for each in command.arguments for word in each.templates]
    copy = command.files[-1].rewritten(TRIAL)
    harmless = {"output_dir": "/trial/writes/output_dir", "save_strategy": "no", "report_to": "none", "logging_steps": 1}
    assert copy == {**keys, **harmless, "eval_delay": 1000000000}
    assert own.files[-1].rewritten(TRIAL) == keys
    assert "report_to = none is added: off in trials" in changes(made.problem)


@pytest.mark.parametrize("name", ["args.yaml", "args.json"])
def test_a_file_of_deepspeed_that_the_sole_argument_names_varies_as_on_the_command_line(name, job, tmp_path) -> None:
    named = f"torchrun --nproc-per-node 8 t.py --deepspeed ds.json {BATCH}"
    auto = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto", "wandb": {"enabled": True}}
    arguments = {**BATCH_OF_TRIAL, "output_dir": "out", "deepspeed": "ds.json"}
    files = {name: json.dumps(arguments), "ds.json": json.dumps(auto), "t.py": PARSER}
    made, usual = job(f"torchrun --nproc-per-node 8 t.py {name}", files), job(named, files)
    assert {each.zero_stage for each in made.problem.candidates()} == {each.zero_stage for each in usual.problem.candidates()} == {1, 2, 3}
    assert {each.micro_batch for each in made.problem.candidates()} == {each.micro_batch for each in usual.problem.candidates()}
    by_name = {file.name: file for file in made.problem.command.files}
    assert by_name["ds"].rewritten(TRIAL)["zero_optimization.stage"] == 3 and by_name["ds"].rewritten(TRIAL)["wandb.enabled"] is False
    assert by_name["arguments"].rewritten(TRIAL, {"ds": tmp_path / "ds.json"})["deepspeed"] == str(tmp_path / "ds.json")
    assert "deepspeed" not in by_name["arguments"].rewritten(TRIAL)


def test_the_winners_copies_name_each_other_and_the_shown_change_is_that_of_the_stage(job, tmp_path) -> None:
    files = {"a.yaml": f"{RECIPE}gradient_accumulation_steps: 2\n", "ds.json": '{"zero_optimization": {"stage": 2}}', "t.py": PARSER}
    made = job("torchrun --nproc-per-node 8 t.py a.yaml", files)
    best = next(each for each in made.problem.candidates() if each.zero_stage == 3 and each.micro_batch == 4 and each.recompute == "none")
    copies = write_files(made, best, tmp_path / "best")
    assert f"deepspeed: {tmp_path}/best/ds.json" in (tmp_path / "best" / "a.yaml").read_text()
    assert json.loads((tmp_path / "best" / "ds.json").read_text())["zero_optimization"] == {"stage": 3}
    assert {path.name for path in copies} == {"ds.json", "a.yaml"}
    assert {(each.about, each.old, each.new) for each in changed_line(made, best).changes} == {
        ("ds.json: zero_optimization.stage", "2", "3")
    }


def test_a_file_before_other_arguments_is_not_the_sole_one(job) -> None:
    with pytest.raises(InputError, match=r"`a\.json` looks like a path"):
        job(f"torchrun --nproc-per-node 8 t.py a.json {BATCH}", {"a.json": ARGUMENTS, "t.py": PARSER})


@pytest.mark.parametrize(("words", "machine", "hinted"), [("", CPUS, True), ("--use_cpu", CPUS, False), ("", GPUS, False)])
def test_a_trainer_whose_ranks_train_apart_gets_a_hint(words, machine, hinted) -> None:
    _, found = understand(shlex.split(f"{TRAINER} {words}"), environment={}, machine=machine)
    assert any("--use_cpu" in hint for hint in found.hints) is hinted
    elsewhere = understand(shlex.split(f"{TRAINER} {words}"), environment={}, machine=machine, settings={"cluster": {"device": "H100"}})[1]
    assert not any("--use_cpu" in hint for hint in elsewhere.hints)


def by_deepspeed(words: str, values: dict[str, object], folder: Path):
    """Return the meaning of a line of the Trainer with a file of DeepSpeed."""
    (folder / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, **values}))
    return understand(shlex.split(f"{TRAINER} --deepspeed ds.json {words}"), environment={}, machine=CPUS)[1]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--fp16", {"bf16": {"enabled": True}}),
        ("--bf16", {"fp16": {"enabled": True}}),
        ("--bf16", {"bf16": {"enabled": False}}),
        ("--bf16 false", {"bf16": {"enabled": True}}),
    ],
)
def test_a_file_of_deepspeed_with_another_precision_than_the_arguments_is_refused(words, values, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"`\w+.enabled = \w+` \(ds.json\), and \w+ \(line\), which Transformers refuses") as refused:
        by_deepspeed(words, values, tmp_path)
    assert '"enabled": "auto"' in refused.value.hint


@pytest.mark.parametrize(
    ("words", "values", "precision", "origin"),
    [
        ("", {"bf16": {"enabled": True}}, "bf16", "ds.json"),
        ("--bf16", {"bf16": {"enabled": True}}, "bf16", "line"),
        ("--bf16", {"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, "bf16", "line"),
        ("--fp16", {}, "fp16", "line"),
        ("--fsdp '' --bf16_full_eval --fp16 false", {"bf16": {"enabled": True}}, "bf16", "ds.json"),
        ("", {"bf16": {"enabled": "auto"}}, "fp32", None),
    ],
)
def test_the_precision_is_that_of_the_arguments_or_of_the_file(words, values, precision, origin, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = by_deepspeed(words, values, tmp_path)
    assert (found.precision, found.origins.get("precision")) == (precision, origin)


ONE_PROCESS = "compute_environment: LOCAL_MACHINE\nmixed_precision: 'no'\nnum_machines: 1\nnum_processes: 2\nuse_cpu: false\ndebug: false\n"


@pytest.mark.parametrize(
    ("options", "kind", "settings"),
    [
        ("--num_processes 2", "", []),
        ("--num_processes 2 --multi_gpu", "", []),
        ("--num_processes 2 --cpu", "", []),
        ("--config_file c.yaml", "'NO'", []),
        ("--config_file c.yaml", "NO", ["cluster.device=H100"]),
        ("--config_file c.yaml", "MULTI_CPU", []),
        ("--config_file c.yaml", "MULTI_GPU", []),
        ("--config_file c.yaml", "FSDP", []),
        ("--config_file c.yaml --cpu", "MULTI_GPU", []),
        ("--config_file c.yaml --multi_gpu", "'NO'", []),
    ],
)
def test_ranks_that_accelerate_does_not_start_are_refused(options, kind, settings, job) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    files = {"c.yaml": f"{ONE_PROCESS}distributed_type: {kind}\n"} if kind else {}
    try:
        job(f"accelerate launch {options} t.py {BATCH}", files, machine=CPUS, settings=settings)
        refused = ""
    except InputError as error:
        refused = error.message
        assert "torchrun --nproc-per-node 2 t.py" in error.hint
    taken, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args([*options.split(), "t.py"]))
    starts = not taken.cpu and (taken.multi_gpu or taken.use_fsdp or taken.use_deepspeed)
    assert ("starts one process" in refused) is not starts


@pytest.mark.parametrize(
    ("machine", "line", "settings"),
    [
        (GPUS, "accelerate launch --num_processes 2", []),
        (CPUS, "accelerate launch --num_processes 2", ["cluster.device=H100"]),
        (CPUS, "srun -N1 accelerate launch --num_processes 2", []),
        (CPUS, "accelerate launch --num_machines 2 --num_processes 2", []),
    ],
)
def test_accelerate_starts_a_process_on_each_gpu_of_another_machine(machine, line, settings, job) -> None:
    made = job(f"{line} t.py {BATCH}", machine=machine, settings=settings)
    assert made.meaning.devices.count == 2


@pytest.mark.parametrize("launcher", ["torchrun --nproc-per-node 2", "accelerate launch --multi_gpu --num_processes 2"])
def test_a_trainer_on_cpus_needs_an_option_to_exchange_gradients(launcher, job) -> None:
    hints = {words: job(f"{launcher} t.py {BATCH} {words}", machine=CPUS).meaning.hints for words in ("", "--use_cpu")}
    assert {words: any("add it" in hint for hint in found) for words, found in hints.items()} == {"": True, "--use_cpu": False}
