"""A job opts in to harmless trials: its launch line and files change in trials alone, and the winner has the user's own."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from oppa.errors import JobError
from oppa.problem.command import LaunchCommand
from oppa.problem.describe import changes
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.problem.trial_values import values_of
from oppa.tuning.export_best import write_files
from oppa.tuning.formats import export

JOB = """
batch.global_batch = 8
cluster = { devices_per_host = 2, memory_limit = "1 GiB" }
"""
TRANSFORMERS = 'space.name = "transformers"\n'
LINE = "torchrun train.py --output_dir out --save_strategy steps --report_to wandb --bf16"


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write_and_load(more="", line=LINE, settings=()):
        (tmp_path / "job.toml").write_text(JOB + more)
        return load_job(tmp_path / "job.toml", argv=shlex.split(line), settings=settings)

    return write_and_load


def words(problem, *, copies=None):
    """Return the whole line of the first configuration, as a trial has it."""
    configuration = problem.candidates().configuration(0)
    command = problem.launch_line(configuration)
    values = values_of(configuration, None, problem.cluster, problem.training, steps=5, folder=Path("/study/trials/3"))
    return command.words(values, copies or {file.name: Path(f"/study/trials/3/{Path(file.path).name}") for file in command.files})


def test_a_job_that_does_not_opt_in_is_as_before(load):
    problem = load(line="train --save_dir out {micro_batch}")
    assert problem.command.argv == ("train", "--save_dir", "out", "{micro_batch}")
    assert problem.restored is problem
    assert problem.command.to_dict().keys() == {"argv", "arguments", "files", "steps"}, "its studies can be resumed"


def test_the_framework_of_the_space_or_of_the_command_is_that_of_the_line(load):
    by_space = load(TRANSFORMERS + "command.harmless = true")
    by_name = load('command.framework = "transformers"', line=f"{LINE} {{micro_batch}}")
    for problem in (by_space, by_name):
        assert words(problem)[2:4] == ["--output_dir", "/study/trials/3/writes/output_dir"]
        assert "wandb" not in words(problem) and words(problem).count("--save_strategy") == 1
    assert load('command = { framework = "plain", harmless = false }', line="train --out_dir out {micro_batch}").command.originals is None


def test_words_of_the_space_for_trials_alone_are_not_the_winners(load):
    problem = load(TRANSFORMERS + "command.harmless = true")
    restored = words(problem.restored)
    assert restored[: len(shlex.split(LINE))] == shlex.split(LINE)
    assert restored.count("--save_strategy") == 1 and "--logging_steps" not in restored
    assert "--per_device_train_batch_size" in restored


def test_an_unknown_path_is_refused_until_it_is_declared(load):
    line = f"{LINE} --my-dir somewhere"
    with pytest.raises(JobError, match="`--my-dir somewhere` is named like a path"):
        load(TRANSFORMERS + "command.harmless = true", line=line)
    problem = load(TRANSFORMERS, line=line, settings=["command.harmless=true", 'command.paths."--my-dir"=redirect'])
    assert "/study/trials/3/writes/my-dir" in words(problem) and "somewhere" in words(problem.restored)
    with pytest.raises(JobError, match=r'`--my-dir = "write"` is not legal'):
        load(TRANSFORMERS + "command.harmless = true", line=line, settings=['command.paths."--my-dir"=write'])


def test_paths_without_harmless_trials_are_an_error(load):
    with pytest.raises(JobError, match="has no effect"):
        load('[command.paths]\n"--x" = "read"', line="train --x a/b {micro_batch}")


def test_a_file_that_the_line_names_is_copied_if_it_writes(load, tmp_path):
    (tmp_path / "quiet.json").write_text('{"zero_optimization": {"stage": 1}}')
    (tmp_path / "ds.json").write_text('{"wandb": {"enabled": true}, "tensorboard": {"output_path": "/tb"}}')
    quiet = load(TRANSFORMERS + "command.harmless = true", line=f"{LINE} --deepspeed quiet.json")
    assert quiet.command.files == () and "quiet.json" in words(quiet)
    problem = load(TRANSFORMERS + "command.harmless = true", line=f"{LINE} --deepspeed=ds.json")
    (file,) = problem.command.files
    assert file.rewritten({"folder": "/f"}) == {"wandb.enabled": False, "tensorboard.output_path": "/f/writes/tensorboard.output_path"}
    assert "--deepspeed=/study/trials/3/ds.json" in words(problem)
    assert problem.restored.command.files == () and "--deepspeed=ds.json" in words(problem.restored)


def test_a_file_that_two_options_name_has_one_copy(load, tmp_path):
    (tmp_path / "ds.json").write_text('{"wandb": {"enabled": true}}')
    line = "torchrun train.py --deepspeed=ds.json --deepspeed_config ./ds.json {micro_batch}"
    problem = load('command.framework = "deepspeed"', line=line)
    (file,) = problem.command.files
    assert words(problem)[2:5] == ["--deepspeed=/study/trials/3/ds.json", "--deepspeed_config", "/study/trials/3/ds.json"]
    assert file.trial_keys == {"wandb.enabled": False} and len(problem.command.originals.changes) == 1


def test_only_the_words_that_name_a_file_are_those_of_its_copy(load, tmp_path):
    (tmp_path / "ds.json").write_text('{"wandb": {"enabled": true}}')
    found = words(load(TRANSFORMERS + "command.harmless = true", line=f"{LINE} --train_file data/ds.json --deepspeed ds.json"))
    assert "data/ds.json" in found and "/study/trials/3/ds.json" in found


def test_a_file_of_the_job_keeps_the_keys_that_the_user_sets(load, tmp_path):
    (tmp_path / "ds.json").write_text('{"csv_monitor": {"enabled": true}, "mine": {"dir": "/x"}}')
    files = '[command.files.ds]\npath = "ds.json"\nkeys = { "mine.dir" = "{folder}", train_micro_batch_size_per_gpu = "{micro_batch}" }'
    problem = load(f'command.framework = "deepspeed"\n{files}', line="deepspeed train.py --deepspeed_config {ds}")
    (file,) = problem.command.files
    assert file.trial_keys == {"csv_monitor.enabled": False}
    assert problem.restored.command.files[0].trial_keys == {}


def test_a_file_that_names_one_that_writes_is_refused(load, tmp_path):
    (tmp_path / "ds.json").write_text('{"wandb": {"enabled": true}}')
    (tmp_path / "fsdp.yaml").write_text("deepspeed_config:\n  deepspeed_config_file: ds.json\n")
    with pytest.raises(JobError, match=r"names `ds.json` as `deepspeed_config.*`, and that file writes"):
        load('command.framework = "accelerate"', line="accelerate launch --config_file fsdp.yaml train.py --bs {micro_batch}")


TITAN = """
job.dump_folder = "/x/dump"
checkpoint.enable = true
checkpoint.folder = "ck"
"""


def test_a_file_is_looked_up_in_the_folder_in_which_the_program_starts(load, tmp_path):
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "c.toml").write_text(TITAN)
    line = "env -C proj A=1 torchrun -m torchtitan.train --job.config_file c.toml --bs {micro_batch}"
    problem = load('command.framework = "torchtitan"', line=line)
    (file,) = problem.command.files
    assert file.path == str(tmp_path / "proj" / "c.toml") and file.trial_keys["checkpoint.enable"] is False
    assert "/study/trials/3/c.toml" in words(problem) and "c.toml" in words(problem.restored)


@pytest.mark.parametrize(("option", "why"), [("--deepspeed missing.json", "missing.json"), ("--deepspeed ds", "is a file of settings")])
def test_a_file_that_cannot_be_read_is_refused(load, option, why):
    with pytest.raises(JobError, match=why) as error:
        load(TRANSFORMERS + "command.harmless = true", line=f"{LINE} {option}")
    assert "[command.paths]" in error.value.hint
    load(TRANSFORMERS, line=f"{LINE} {option}", settings=["command.harmless=true", 'command.paths."--deepspeed"=read'])


def test_the_settings_of_any_program_are_examined(load, tmp_path):
    (tmp_path / "own.yaml").write_text("train: {lr: 1.0, data_dir: /d}\noutput_dir: /x/o\n")
    (tmp_path / "bad.yaml").write_text("train: {ckpt: /x/o}\n")
    (file,) = load('command.framework = "plain"', line="train --config own.yaml {micro_batch}").command.files
    assert file.trial_keys == {"output_dir": "{folder}/writes/output_dir"}
    with pytest.raises(JobError, match=r"`train\.ckpt /x/o` looks like a path"):
        load('command.framework = "plain"', line="train --config bad.yaml {micro_batch}")
    for unread in ("--config bad", "--config own.py", "--config missing.yaml"):
        assert not load('command.framework = "plain"', line=f"train {unread} {{micro_batch}}").command.files


def test_a_folder_of_an_option_that_a_file_states_too_is_listed_once(load, tmp_path):
    (tmp_path / "c.yaml").write_text("trainer: {default_root_dir: mine}")
    problem = load('command.framework = "lightning"', line="python lit.py fit --config c.yaml --batch {micro_batch}")
    listed = [(name, own) for name, own, _, _ in problem.command.originals.changes if name.endswith("default_root_dir")]
    assert listed == [("trainer.default_root_dir", "mine")]
    assert "--trainer.default_root_dir" in words(problem)


def test_a_file_of_trl_is_copied(load, tmp_path):
    (tmp_path / "sft.yaml").write_text("push_to_hub: true\nlearning_rate: 1.0e-4\n")
    (file,) = load(TRANSFORMERS + "command.harmless = true", line=f"{LINE} --config sft.yaml").command.files
    assert file.trial_keys == {"push_to_hub": False}


def test_a_stored_command_is_the_same(load, tmp_path):
    (tmp_path / "ds.json").write_text('{"wandb": {"enabled": true}}')
    problem = load(TRANSFORMERS + "command.harmless = true", line=f"{LINE} --deepspeed ds.json")
    stored = json.loads(json.dumps(problem.to_dict()))
    assert LaunchCommand.from_dict(stored["command"]) == problem.command
    again = Problem.from_dict(stored)
    assert again.fingerprint == problem.fingerprint and words(again.restored) == words(problem.restored)


def test_the_winners_programs_are_pinned_as_those_of_trials(load):
    pinned = load(TRANSFORMERS + "command.harmless = true").command.pinned({"torchrun": "/env/bin/torchrun"})
    assert pinned.argv[0] == pinned.restored.argv[0] == "/env/bin/torchrun"


def test_variables_belong_to_trials_alone(load):
    command = load(TRANSFORMERS + "command.harmless = true").command
    assert command.variables({"folder": "/f"})["MLFLOW_TRACKING_URI"] == "sqlite:////f/writes/mlflow.db"
    assert command.restored.variables({}) == {}


PROGRAM = """
import json, sys
print(json.load(open(sys.argv[1]))["wandb"], flush=True)
for step in range(4):
    print(f"step {step}: 85.3 ms", flush=True)
"""


@pytest.mark.slow
def test_the_winner_starts_with_the_users_own_file(load, tmp_path):
    """Its steps are recognised without a declaration, as in trials."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "ds.json").write_text('{"wandb": {"enabled": true}}')
    files = '[command.files.ds]\npath = "ds.json"\nkeys = { size = "{micro_batch}" }'
    job = f'command.framework = "deepspeed"\ncommand.paths = {{ "{{ds}}" = "read" }}\n{files}'
    problem = load(job, line=f"{sys.executable} program.py {{ds}}", settings=['command.paths."wandb.enabled"=disable'])
    write_files(tmp_path / "best", export("torchrun", problem, problem.candidates().configuration(0)))
    ran = subprocess.run(["sh", "best/run.sh"], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0 and "{'enabled': True}" in ran.stdout, ran.stderr


def test_a_positional_file_of_settings_is_copied_if_it_writes(load, tmp_path):
    line = "python train.py config.yaml --batch {micro_batch}"
    (tmp_path / "config.yaml").write_text("lr: 1\n")
    assert "config.yaml" in words(load('command.framework = "plain"', line=line))
    (tmp_path / "config.yaml").write_text("output_dir: mine\n")
    for settings in ((), ['command.paths."config.yaml"=read']):
        problem = load('command.framework = "plain"', line=line, settings=settings)
        (file,) = problem.command.files
        assert file.trial_keys == {"output_dir": "{folder}/writes/output_dir"} and "/study/trials/3/config.yaml" in words(problem)
        assert "config.yaml" in words(problem.restored)


def test_a_file_of_settings_that_is_declared_as_read_is_refused_only_for_keys_that_name_an_output(load, tmp_path):
    line = "python train.py --spec my.yaml --batch {micro_batch}"
    (tmp_path / "my.yaml").write_text("images: a/b\nnested: {ckpt_dir: a/b}\n")
    with pytest.raises(JobError, match=r"`nested\.ckpt_dir a/b` looks like a path: it") as refused:
        load('command.framework = "plain"', line=line, settings=['command.paths."--spec"=read'])
    assert "images" not in refused.value.message
    (tmp_path / "my.yaml").write_text("images: [\n")
    load('command.framework = "plain"', line=line, settings=['command.paths."--spec"=read'])


def test_a_key_that_another_key_replaces_is_listed_with_the_users_value(load, tmp_path):
    (tmp_path / "sft.yaml").write_text("load_best_model_at_end: true\nmetric_for_best_model: f1\neval_strategy: epoch\neval_delay: 5\n")
    found = changes(load(TRANSFORMERS + "command.harmless = true", line=f"{LINE} --config sft.yaml"))
    assert "metric_for_best_model = f1 -> loss: off in trials" in found
    assert [each.partition(":")[0] for each in found if "eval_delay" in each] == ["eval_delay = 5 -> 1000000000"]


def test_a_table_of_a_file_is_listed_as_json(load, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "trainer: {logger: {class_path: CSVLogger, init_args: {save_dir: {a: b}}}, callbacks: [{class_path: Bar}]}"
    )
    found = changes(load('command.framework = "lightning"', line="python lit.py fit --config c.yaml --batch {micro_batch}"))
    value = '{"class_path": "CSVLogger", "init_args": {"save_dir": {"a": "b"}}}'
    assert f"trainer.logger = {value} -> false: off in trials" in found
