"""The libraries and oppa read the written files of Transformers' Trainer and of LightningCLI, and oppa those of people."""

import json
import shlex

import numpy as np
import pytest

from oppa.errors import InputError
from oppa.problem.job import load_job
from oppa.tuning.formats import FORMATS, export
from oppa.tuning.formats.job_facts import facts_of
from tests.tuning.formats.conftest import LIGHTNING_CLI, ask, at, read_back
from tests.tuning.formats.launch_lines import line

CLUSTER = 'batch = {global_batch = 64}\ncluster = {devices_per_host = 8, device = "H100", memory_limit = "80 GiB"}\n'
KNOBS = {
    "transformers": """
torch_compile_mode = ["default", "max-autotune"]
optim = ["adamw_torch_fused", "adafactor"]
dataloader_pin_memory = [false, true]
bf16 = [false, true]
mine = { values = [1, 2], words = "--mine {mine}" }
""",
    "lightning": """
strategy = ["ddp", "fsdp", "fsdp-shard-grad-op", "deepspeed"]
num_workers = [0, 4]
cudnn_benchmark = [false, true]
trainer_precision = ["32-true", "bf16-mixed"]
""",
}
LINES = {"transformers": ["torchrun", "train.py"], "lightning": ["torchrun", "train.py", "fit"]}
SOME = 44
TRAINER = """
import json, sys
from transformers import HfArgumentParser, TrainingArguments
found = []
for file, words in json.load(open(sys.argv[1])):
    parser = HfArgumentParser(TrainingArguments)
    (read,) = parser.parse_json_file(file)
    (given,) = parser.parse_args_into_dataclasses([*words, "--output_dir", read.output_dir])
    found.append([[a.per_device_train_batch_size, a.gradient_accumulation_steps, a.gradient_checkpointing,
        a.fsdp_plugin_args and a.fsdp_plugin_args["reshard_after_forward"], a.bf16, str(a.optim.value), a.dataloader_num_workers]
        for a in (read, given)])
print(json.dumps(found))
"""
CLI = (
    LIGHTNING_CLI
    + """
lines = [["--config", file] for file in json.load(open(sys.argv[1]))]
configs = [Parsed(BoringModel, Data, run=False, args=line).config.as_dict() for line in lines]
print(json.dumps(configs, default=str))
"""
)


@pytest.fixture
def job(tmp_path):
    """A job in the space of a framework, with some of its configurations all over the space."""

    def made(name):
        (tmp_path / "job.toml").write_text(f'{CLUSTER}\n[space]\nname = "{name}"\n[space.parameters]\n{KNOBS[name]}')
        problem = load_job(tmp_path / "job.toml", argv=LINES[name])
        candidates = problem.candidates()
        return problem, [candidates.configuration(int(each)) for each in np.linspace(0, len(candidates) - 1, SOME, dtype=int)]

    return made


@pytest.mark.parametrize("name", KNOBS)
def test_every_knob_reads_back_as_it_is_written(name, job) -> None:
    problem, configurations = job(name)
    for configuration in configurations:
        files = export(name, problem, configuration)
        assert read_back(name, problem, files) == configuration
        assert not FORMATS[name].parse(problem, files).ignored
    assert {configuration.zero_stage for configuration in configurations} >= {0, 2, 3}


def test_a_parameter_that_the_job_declares_is_written_for_another_framework_as_well(job) -> None:
    problem, _ = job("transformers")
    values = {"dp": 8, "global_batch": 64, "micro_batch": 2, "mine": 2}
    written = export("lightning", problem, problem.space.configuration(values))["lightning.yaml"]
    assert "\nmine: 2\n" in written and "optim" not in written


@pytest.mark.parametrize("name", ["torchrun", "transformers"])
def test_the_winner_saves_and_logs_as_the_user_wants_it_to_unlike_trials(name, job) -> None:
    problem, (configuration, *_) = job("transformers")
    assert {"--save_strategy", "--logging_steps", "--per_device_train_batch_size"} <= {*line(problem, configuration)}
    run = export(name, problem, configuration)["run.sh"]
    assert "--per_device_train_batch_size" in run and "--save_strategy" not in run and "--logging_steps" not in run


@pytest.mark.slow
def test_transformers_itself_reads_file_and_options(job, tmp_path) -> None:
    problem, configurations = job("transformers")
    configurations = [each for each in configurations if each["mine"] == 1]
    given = []
    for number, configuration in enumerate(configurations):
        files = export("transformers", problem, configuration)
        values = {key: value for key, value in json.loads(files["training_arguments.json"]).items() if key != "mine"}
        (path := tmp_path / f"{number}.json").write_text(json.dumps({**values, "use_cpu": True}))
        words = shlex.split(files["run.sh"].splitlines()[-1].partition('"$@"')[2])
        given.append([str(path), [*words[: words.index("--mine")], "--use_cpu"]])
    (tmp_path / "given").write_text(json.dumps(given))
    for c, (read, stated) in zip(configurations, ask("transformers", TRAINER, tmp_path / "given"), strict=True):
        stage = {0: None, 2: False, 3: True}[c.zero_stage]
        expected = [c.micro_batch, c.num_microbatches, c.recompute == "full", stage, c["bf16"], c["optim"], c["dataloader_num_workers"]]
        assert read == stated == expected
    assert len(given) >= 20


@pytest.mark.environment
@pytest.mark.slow
def test_lightning_itself_reads_the_file(job, tmp_path) -> None:
    problem, configurations = job("lightning")
    paths = []
    for number, configuration in enumerate(configurations):
        (path := tmp_path / f"{number}.yaml").write_text(export("lightning", problem, configuration)["lightning.yaml"])
        paths.append(str(path))
    (tmp_path / "paths").write_text(json.dumps(paths))
    for c, found in zip(configurations, ask("jsonargparse", CLI, tmp_path / "paths"), strict=True):
        trainer, strategy = found["trainer"], found["trainer"]["strategy"]
        assert (trainer["devices"], trainer["num_nodes"], trainer["accumulate_grad_batches"]) == (8, 1, c.num_microbatches)
        assert (found["data"]["batch_size"], found["data"]["num_workers"]) == (c.micro_batch, c["num_workers"])
        assert (trainer["precision"], trainer["benchmark"]) == (c["trainer_precision"], c["cudnn_benchmark"])
        if isinstance(strategy, dict):
            assert c.zero_stage == 2 and strategy["init_args"]["sharding_strategy"].endswith("SHARD_GRAD_OP")
        else:
            assert strategy == {"ddp": "ddp", "fsdp": "fsdp", "deepspeed": f"deepspeed_stage_{c.zero_stage}"}[c["strategy"]]


@pytest.mark.parametrize(
    ("values", "stage"),
    [
        ({}, 0),
        ({"fsdp": ""}, 0),
        ({"fsdp": False}, 0),
        ({"fsdp": True}, 3),
        ({"fsdp": "full_shard auto_wrap"}, 3),
        ({"fsdp": ["shard_grad_op", "auto_wrap"]}, 2),
        ({"fsdp": "no_shard"}, 0),
        ({"fsdp": "hybrid_shard auto_wrap"}, 3),
        ({"fsdp": "hybrid_shard_zero2 auto_wrap"}, 2),
        ({"fsdp": True, "fsdp_config": {"version": 1, "reshard_after_forward": "shard_grad_op"}}, 2),
        ({"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}, 2),
    ],
    ids=str,
)
def test_arguments_of_the_trainer_as_people_write_them(values, stage, problem_of) -> None:
    mine = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "gradient_checkpointing": True, "learning_rate": 1e-4}
    files = {"args.json": json.dumps({**mine, "tf32": True, "neftune_noise_alpha": 5.0, "output_dir": "out", **values})}
    reading = FORMATS["transformers"].parse(problem_of("torch"), files)
    assert reading.settings == {"zero_stage": stage, "recompute": "full", "micro_batch": 2, "global_batch": 64}
    fsdp = values.get("fsdp")
    replicas = (f'fsdp = "{fsdp}"',) if "hybrid_shard" in str(fsdp) else ()  # no parameter of the space states them
    assert reading.ignored == ("tf32 = true", "neftune_noise_alpha = 5.0", *replicas)
    assert facts_of("transformers", files).precision == "fp32"


def test_arguments_that_are_not_stated_have_the_trainers_defaults(problem_of) -> None:
    reading = FORMATS["transformers"].parse(problem_of("torch"), {"args.json": "{}"})
    assert (reading.settings["micro_batch"], reading.settings["global_batch"], reading.settings["recompute"]) == (8, 64, "none")


def test_what_fsdp_does_beyond_sharding_is_read_or_named(problem_of) -> None:
    config = {"reshard_after_forward": False, "activation_checkpointing": True, "cpu_offload": True, "fsdp_min_num_params": 9}
    files = {"args.json": json.dumps({"fsdp": "full_shard offload", "fsdp_config": config})}
    reading = FORMATS["transformers"].parse(problem_of("torch"), files)
    assert (reading.settings["zero_stage"], reading.settings["recompute"]) == (2, "full")
    assert reading.ignored == ('fsdp = "full_shard offload"', "fsdp_config.cpu_offload = true")


def test_arguments_that_name_a_file_of_deepspeed_are_read_with_it(problem_of) -> None:
    files = {"args.yaml": "per_device_train_batch_size: 4\nbf16: true\ndeepspeed: configs/ds_config.json\n"}
    with pytest.raises(InputError, match=r"refers to `deepspeed = configs/ds_config\.json`"):
        FORMATS["transformers"].parse(problem_of("deepspeed"), files)
    both = {**files, "ds_config.json": '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'}
    settings = FORMATS["transformers"].parse(problem_of("deepspeed"), both).settings
    assert (settings["zero_stage"], settings["micro_batch"]) == (2, 4)


@pytest.mark.parametrize(
    ("strategy", "stage", "ignored"),
    [
        ("auto", 0, ()),
        ("deepspeed_stage_2", 2, ()),
        ("ddp_find_unused_parameters_true", 0, ("trainer.strategy = ddp_find_unused_parameters_true",)),
        (
            "{class_path: DDPStrategy, init_args: {find_unused_parameters: true}}",
            0,
            ("trainer.strategy.init_args.find_unused_parameters = True",),
        ),
        ("{class_path: lightning.pytorch.strategies.DeepSpeedStrategy, init_args: {stage: 3}}", 3, ()),
        ("{class_path: FSDPStrategy, init_args: {sharding_strategy: SHARD_GRAD_OP}}", 2, ()),
        ("{class_path: FSDPStrategy, init_args: {cpu_offload: true}}", 3, ("trainer.strategy.init_args.cpu_offload = True",)),
        ("my.Strategy", None, ("trainer.strategy = my.Strategy",)),
    ],
)
def test_files_of_lightning_as_people_write_them(strategy, stage, ignored, problem_of) -> None:
    text = f"trainer: {{devices: 4, num_nodes: 2, precision: bf16-mixed, strategy: {strategy}, accumulate_grad_batches: 2, max_steps: 9}}\n"
    files = {"run.yaml": text + "data: {class_path: my.Data, init_args: {batch_size: 4}}\n"}
    reading = FORMATS["lightning"].parse(problem_of("torch"), files)
    assert (reading.settings.get("zero_stage"), reading.settings["micro_batch"], reading.settings["global_batch"]) == (stage, 4, 64)
    assert reading.ignored == ignored
    facts = facts_of("lightning", files)
    assert (facts.devices, facts.hosts, facts.precision) == (8, 2, "bf16")


@pytest.mark.parametrize(
    ("name", "values", "parameter"),
    [
        ("transformers", {"dp": 4, "tp": 2}, "tp"),
        ("transformers", {"dp": 4, "pp": 2}, "pp"),
        ("transformers", {"zero_stage": 1}, "zero_stage"),
        ("lightning", {"recompute": "full"}, "recompute"),
        ("lightning", {"zero_stage": 1}, "zero_stage"),
        ("lightning", {"dp_bucket_mb": 100}, "dp_bucket_mb"),
    ],
)
def test_what_they_cannot_say_is_named(name, values, parameter, problem_of) -> None:
    with pytest.raises(InputError, match=f"cannot express `{parameter} = ") as refusal:
        export(name, problem_of("torch"), at(**values))
    assert refusal.value.hint
