"""Every format reads back the configuration that it writes, and names what it cannot express."""

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oppa import catalog
from oppa.errors import InputError
from oppa.problem.baseline import complete
from oppa.problem.command import LaunchCommand
from oppa.problem.configuration import PARAMETERS
from oppa.problem.declaration import spell
from oppa.problem.software import Software
from oppa.problem.training import LauncherChoice
from oppa.tuning.formats import FORMATS, export, read
from oppa.tuning.formats.launch import NOT_OWN
from tests.tuning.formats.conftest import MEGATRON_KNOBS, at, read_back, requested, some_with_knobs

SPACES = ("deepspeed", "colossalai", "megatron", "torch")
OWN = {"deepspeed": "deepspeed", "colossalai": "colossalai", "megatron": "megatron", "megatron-bridge": "megatron"}
"""The format of each space's own framework."""
SOME = 60


def some(problem):
    """Candidates all over the space, and layouts with everything else at its default."""
    candidates = problem.candidates()
    plain = np.flatnonzero(candidates.deviations(besides=("dp", "tp", "pp", "zero_stage", "micro_batch")) == 0)
    indices = {*range(0, len(candidates), max(1, len(candidates) // SOME)), *plain[:: max(1, len(plain) // SOME)].tolist()}
    return [candidates.configuration(index) for index in sorted(indices)]


def default_of(problem):
    """The framework's own configuration of a job."""
    candidates = problem.candidates()
    return candidates.configuration(int(candidates.default_order()[0]))


def attempts(name, problem):
    """Each configuration with its files, or with the error that says why not."""
    for configuration in some(problem):
        try:
            yield configuration, export(name, problem, configuration), None
        except InputError as error:
            yield configuration, {}, error


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"torchrun", "kubernetes"}))
def test_what_is_exported_reads_back_as_the_same(name, space, problem_of) -> None:
    problem, written = problem_of(space), 0
    for configuration, files, error in attempts(name, problem):
        if error is None:
            assert read_back(name, problem, files) == configuration, files
            written += 1
        else:
            named = re.match(r"[\w-]+ cannot express `(\w+) = ", error.message)
            assert named and named[1] in PARAMETERS and error.hint
    assert written


@pytest.mark.parametrize(("space", "name"), [(space, name) for name, space in OWN.items()])
def test_a_framework_expresses_the_whole_of_its_own_space(space, name, problem_of) -> None:
    refused = [str(error) for _, _, error in attempts(name, problem_of(space)) if error]
    assert all("zero_bucket_mb = 1`" in message for message in refused)  # ColossalAI's buckets are whole millions of elements


@pytest.mark.slow
@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("model", ["tiny-4m", "mixtral-8x7b"])
def test_knobs_of_megatron_read_back_as_they_are_written(name, model, problem_of) -> None:
    refused = set()
    for group in MEGATRON_KNOBS:
        problem = requested(problem_of, group, model=model)
        candidates = problem.candidates()
        for index in random.Random(1).sample(range(len(candidates)), 30):
            configuration = candidates.configuration(index)
            try:
                assert read_back(name, problem, export(name, problem, configuration)) == configuration
            except InputError as error:
                refused.add(re.match(r"[\w-]+ cannot express `(\w+) = ", error.message)[1])
    bridge = {
        "fp8",
        "fp8_param_gather",
        "moments",
        "attention_backend",
        "pp_before_dp",
        "grad_reduce_bf16",
        "offload_layers",
        "num_workers",
        "embedding_as_layer",
        "loss_as_layer",
    }
    assert refused <= (bridge if name == "megatron-bridge" else set())


def test_an_embedding_and_a_loss_that_count_as_layers_make_up_equal_stages(problem_of) -> None:
    problem = requested(problem_of, "embedding_as_layer loss_as_layer", model="tiny-4m", devices=5)
    configuration = next(each for each in problem.candidates() if each.pp == 5)
    assert problem.model.layers % 5 and configuration["embedding_as_layer"] == configuration["loss_as_layer"] == 1
    assert read_back("megatron", problem, export("megatron", problem, configuration)) == configuration


@pytest.mark.parametrize(("name", "space"), [("deepspeed", "deepspeed"), ("accelerate", "deepspeed"), ("accelerate", "accelerate")])
def test_knobs_of_json_and_yaml_files_read_back_as_they_are_written(name, space, problem_of) -> None:
    problem, configurations = some_with_knobs(problem_of, space, 60)
    written = 0
    for configuration in configurations:
        try:
            files = export(name, problem, configuration)
        except InputError as error:
            assert name == "accelerate" and re.search("cannot express `(sp|tp|pp|recompute) = ", error.message)
            continue
        assert read_back(name, problem, files) == configuration
        assert not FORMATS[name].parse(problem, files).ignored
        written += 1
    assert written


def test_deepspeed_derives_the_global_batch_where_it_counts_tensor_parallel_ranks_as_replicas(problem_of) -> None:
    problem = problem_of("deepspeed")
    split, whole = (at(zero_bucket_mb=954, dp=8 // tp, tp=tp, zero_stage=1) for tp in (2, 1))
    for configuration in (split, whole):
        files = export("deepspeed", problem, configuration)
        assert ("train_batch_size" in json.loads(files["ds_config.json"])) is (configuration is whole)
        assert FORMATS["deepspeed"].parse(problem, files).settings["global_batch"] == 64


def test_what_an_earlier_export_left_in_a_folder_of_deepspeed_is_not_read(problem_of) -> None:
    problem = problem_of("deepspeed")
    earlier, later = (at(zero_bucket_mb=954, recompute=each) for each in ("full", "none"))
    files = export("deepspeed", problem, earlier)
    assert read_back("deepspeed", problem, files) == earlier
    assert read_back("deepspeed", problem, files | export("deepspeed", problem, later)) == later


@pytest.mark.parametrize(
    ("name", "written"),
    [("deepspeed", '"gradient_clipping": 0.5'), ("colossalai", "max_norm=0.5"), ("torchtitan", "training.max_norm = 0.5")],
)
def test_gradients_are_clipped_as_the_job_states(name, written, problem_of) -> None:
    problem = problem_of(name)
    clipped = dataclasses.replace(problem, training=dataclasses.replace(problem.training, gradient_clipping=0.5))
    files = export(name, clipped, default_of(problem))
    assert any(written in text for text in files.values())
    assert not FORMATS[name].parse(clipped, files).ignored and FORMATS[name].parse(problem, files).ignored


def test_the_clipping_of_a_launch_line_is_not_turned_off(problem_of) -> None:
    rest = '[command]\nargv = ["torchrun", "train.py", "{micro_batch}"]\n[space]\nname = "deepspeed"\n'
    problem = problem_of("deepspeed", runner="command", rest=rest)
    assert "gradient_clipping" not in export("deepspeed", problem, default_of(problem))["ds_config.json"]


def test_knobs_of_other_frameworks_are_refused_by_name(problem_of) -> None:
    problem = problem_of("megatron", rest="[space.parameters]\ncp = [1, 2]\n")
    split = next(each for each in problem.candidates() if each["cp"] == 2 and each.tp == each.pp == 1)
    for name in ("deepspeed", "colossalai"):
        with pytest.raises(InputError, match="cannot express `cp = 2`"):
            export(name, problem, split)


@pytest.mark.parametrize("name", ["accelerate", "torchtitan"])
@pytest.mark.parametrize("cp", [1, 2])
def test_groups_of_ranks_that_shard_are_written_as_their_number(cp, name, problem_of) -> None:
    problem = problem_of("torch-long-context", knobs="dp_shard = [0, 2, 4], cp = [1, 2]")
    defaults = {known.name: known.default for known in problem.space.parameters}
    values = {"dp": 8 // cp, "cp": cp, "dp_shard": 2, "zero_stage": 3, "global_batch": 64, "micro_batch": 1}
    configuration = problem.space.configuration(defaults | values)
    files = export(name, problem, configuration)
    degrees = dict(re.findall(r"(replicate|shard)_(?:size|degree)(?: =|:) (\d+)", "".join(files.values())))
    assert degrees == {"replicate": str(4 // cp), "shard": "2"}
    assert read_back(name, problem, files) == configuration


@pytest.mark.parametrize("name", ["accelerate", "torchtitan"])
@pytest.mark.parametrize("dp", [1, 2])
def test_context_parallelism_without_shards_is_refused_where_it_shards(dp, name, problem_of) -> None:
    problem = problem_of("torch-long-context", knobs="cp = [1, 4, 8]")
    defaults = {known.name: known.default for known in problem.space.parameters}
    configuration = problem.space.configuration(defaults | {"dp": dp, "cp": 8 // dp, "global_batch": 64, "micro_batch": 1})
    with pytest.raises(InputError, match=r"cannot express `cp = \d` together with `zero_stage = 0`"):
        export(name, problem, configuration)


@pytest.mark.parametrize(
    ("name", "space", "knob", "usual", "chosen", "word"),
    [
        ("megatron", "transformers", "torch_compile", False, True, "torch_compile"),
        ("megatron", "torchtitan", "compile", False, True, "--compile"),
        ("torchtitan", "megatron", "cuda_graphs", "none", "local", "cuda_graphs"),
        ("megatron", "lightning", "strategy", "ddp", "fsdp", "--trainer"),
        ("megatron-bridge", "transformers", "torch_compile", False, True, "torch_compile"),
        ("transformers", "megatron", "cp", 1, 2, "context-parallel"),
        ("lightning", "accelerate", "cp", 1, 2, "use_fsdp"),
        ("lightning", "megatron", "num_workers", 2, 4, "num-workers"),
    ],
)
def test_options_of_another_framework_are_left_out_at_their_default_and_refused_otherwise(
    name, space, knob, usual, chosen, word, problem_of
) -> None:
    problem = problem_of(space, knobs=f"{knob} = {spell([usual, chosen])}")
    defaults = {known.name: known.default for known in problem.space.parameters} | {"dp": 8, "micro_batch": 2, "global_batch": 64}
    plain, other = (problem.space.configuration(defaults | {knob: value}) for value in (usual, chosen))
    text = "".join(line for file in export(name, problem, plain).values() for line in file.splitlines() if plain.id not in line)
    assert word not in text
    with pytest.raises(InputError, match=f"cannot express `{knob} = {spell(chosen)}`"):
        export(name, problem, other)


def test_accelerate_refuses_the_exchanges_of_another_framework(problem_of) -> None:
    problem = problem_of("megatron", knobs='cp = [1, 2], cp_comm = ["p2p", "allgather"]')
    defaults = {known.name: known.default for known in problem.space.parameters} | {"micro_batch": 2, "global_batch": 64}
    ring, gathered = (defaults | {"dp": 4, "cp": 2, "zero_stage": 3, "cp_comm": name} for name in ("p2p", "allgather"))
    assert "cp_comm_strategy: allgather" in export("accelerate", problem, problem.space.configuration(gathered))["accelerate.yaml"]
    with pytest.raises(InputError, match='cannot express `cp_comm = "p2p"`'):
        export("accelerate", problem, problem.space.configuration(ring))


def test_torchrun_hands_every_parameter_to_the_jobs_own_runner(problem_of) -> None:
    problem = problem_of("torch", runner="torch")
    for configuration in some(problem)[::20]:
        files = export("torchrun", problem, configuration)
        assert read_back("torchrun", problem, files) == configuration
        assert "torch.distributed.run --standalone --nproc-per-node 8" in files["run.sh"]
    with pytest.raises(InputError, match="has no program"):
        export("torchrun", problem_of("torch"), at())


@pytest.mark.parametrize("name", ["torchrun", "kubernetes"])
def test_further_degrees_and_knobs_read_back_from_the_file_of_a_trial(name, problem_of) -> None:
    problem = problem_of("torch-long-context", runner="torch", rest='[space]\nname = "torch-long-context"\nparameters = {cp = [1, 2]}\n')
    configuration = next(each for each in problem.candidates() if each["cp"] == 2)
    assert complete(problem.space, read(name, problem, export(name, problem, configuration)).settings) == configuration


def test_torchrun_starts_a_program_of_the_users_own_as_it_stands(problem_of, tmp_path) -> None:
    command = LaunchCommand(argv=("echo", "{micro_batch}", "a b", "--steps={steps}", "{{}}"))
    problem = dataclasses.replace(problem_of("torch", runner="torch"), runner=catalog.find("runners", "command"), command=command)
    for name, text in export("torchrun", problem, at()).items():
        (tmp_path / name).write_text(text)
    printed = subprocess.run(["sh", str(tmp_path / "run.sh"), "7"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed[-1] == "2 a b --steps=7 {}"
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "trial.json").read_text())["steps"] == 7


def test_a_script_for_the_trainer_starts_the_studys_own_program_unless_another_is_named(problem_of, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = LaunchCommand(argv=("echo", "mine", "--per_device_train_batch_size", "{micro_batch}"))
    problem = dataclasses.replace(problem_of("transformers"), runner=catalog.find("runners", "command"), command=command)
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho torchrun "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    configuration = problem.candidates().configuration(0)
    micro = f"--per_device_train_batch_size {configuration.micro_batch}"
    (tmp_path / "run.sh").write_text(export("transformers", problem, configuration)["run.sh"])
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def printed(*words):
        return subprocess.run(["sh", "run.sh", *words], env=path, capture_output=True, text=True, check=True).stdout

    assert printed().startswith(f"mine {micro}")
    assert printed("other.py").startswith(f"torchrun --standalone --nproc-per-node 8 other.py {micro}")


@pytest.mark.parametrize("name", ["deepspeed", "accelerate", "megatron"])
def test_a_script_for_another_program_than_the_studys_own_states_that(name, problem_of) -> None:
    problem = problem_of(name)
    own = dataclasses.replace(problem, runner=catalog.find("runners", "command"), command=LaunchCommand(argv=("train", "{micro_batch}")))
    configuration = some(problem)[0]
    assert NOT_OWN in export(name, own, configuration)["run.sh"] and NOT_OWN not in export(name, problem, configuration)["run.sh"]


def test_the_script_of_a_runner_of_ones_own_finds_report(problem_of) -> None:
    own = dataclasses.replace(problem_of("torch", runner="torch"), runner=Path(__file__).parents[2] / "trials" / "runners" / "script")
    assert f'PYTHONPATH={catalog.client()}"${{PYTHONPATH' in export("torchrun", own, at())["run.sh"]
    assert not list(catalog.client().glob("*.py")) and [path.parent.name for path in catalog.client().glob("*/__init__.py")] == [
        "oppa_client"
    ]


@pytest.mark.parametrize(
    ("software", "expected"),
    [
        (Software(programs={"train": "/mine/bin/train"}, python="/mine/bin/python"), "/mine/bin/train"),
        (Software(programs={"train": "/mine/train"}, path="/mine/a b:/bin"), "export PATH='/mine/a b:/bin':\"$PATH\"\n"),
    ],
    ids=["its programs", "its PATH, where no interpreter is seen"],
)
def test_the_script_starts_the_programs_that_the_study_ran_on_and_none_of_oppas(software, expected, problem_of) -> None:
    own = dataclasses.replace(problem_of("torch", runner="torch"), runner=catalog.find("runners", "command"))
    problem = dataclasses.replace(own, command=LaunchCommand(argv=("train", "{micro_batch}")), software=software)
    text = export("torchrun", problem, at())["run.sh"]
    assert expected in text and str(Path(sys.executable).parent) not in text


def test_a_launch_line_starts_where_it_was_tuned(problem_of, tmp_path) -> None:
    (tmp_path / "tuned here").mkdir()
    own = dataclasses.replace(problem_of("torch", runner="torch"), runner=catalog.find("runners", "command"))
    problem = dataclasses.replace(own, command=LaunchCommand(argv=("pwd",)), software=Software(folder=str(tmp_path / "tuned here")))
    for name, text in export("torchrun", problem, at()).items():
        (tmp_path / name).write_text(text)
    printed = subprocess.run(["sh", str(tmp_path / "run.sh")], capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed[-1] == str(tmp_path / "tuned here")


def test_a_launch_line_joins_its_hosts_as_in_trials_unless_it_starts_them_itself(problem_of, tmp_path) -> None:
    own = dataclasses.replace(problem_of("torch", runner="torch", devices=4, hosts=2), runner=catalog.find("runners", "command"))
    problem = dataclasses.replace(own, command=LaunchCommand(argv=("env",)))
    for name, text in export("torchrun", problem, at()).items():
        (tmp_path / name).write_text(text)
    second = {**os.environ, "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
    printed = subprocess.run(["sh", str(tmp_path / "run.sh")], env=second, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"PET_NNODES=2", "PET_NODE_RANK=1", "PET_NPROC_PER_NODE=4", "PET_MASTER_ADDR=10.0.0.1", "PET_MASTER_PORT=29500"} <= set(printed)
    step = export("torchrun", dataclasses.replace(problem, launcher=LauncherChoice(name="srun")), at())["run.sh"]
    assert "NODE_RANK" not in step and "PET_NNODES" not in step and "srun" not in step


@pytest.mark.parametrize("launcher", ["auto", "srun"])
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_is_written_is_shell_python_and_toml_as_it_says(name, hosts, launcher, problem_of) -> None:
    problem = problem_of("torch", runner="torch", devices=8 // hosts, hosts=hosts)
    problem = dataclasses.replace(problem, launcher=LauncherChoice(name=launcher))
    files = export(name, problem, at(zero_stage=0))
    for file, text in files.items():
        if file.endswith(".py"):
            compile(text, file, "exec")
        elif file.endswith(".sh"):
            assert subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True).returncode == 0
    assert any("NODE_RANK" in text for text in files.values()) is (hosts > 1)


@pytest.mark.parametrize(
    ("name", "space", "values", "parameter"),
    [
        ("deepspeed", "torch", {"dp": 4, "pp": 2, "schedule": "zb-v", "model_chunks": 2}, "model_chunks"),
        ("deepspeed", "torch", {"dp": 2, "pp": 2, "tp": 2}, "tp"),
        ("deepspeed", "torch", {"recompute": "selective"}, "recompute"),
        ("deepspeed", "torch", {"dp_bucket_mb": 100}, "dp_bucket_mb"),
        ("colossalai", "torch", {"dp": 4, "pp": 2, "schedule": "zb-v", "model_chunks": 2}, "schedule"),
        ("colossalai", "torch", {"zero_stage": 3}, "zero_stage"),
        ("colossalai", "colossalai", {"zero_stage": 1, "zero_bucket_mb": 1}, "zero_bucket_mb"),
        ("megatron", "torch", {"zero_stage": 2}, "zero_stage"),
        ("megatron", "torch", {"dp": 4, "pp": 2, "schedule": "gpipe"}, "schedule"),
        ("megatron", "torch", {"dp": 4, "pp": 2, "schedule": "interleaved", "model_chunks": 2}, "overlap_p2p"),
        ("megatron-bridge", "torch", {"zero_stage": 3}, "zero_stage"),
        ("megatron-bridge", "torch", {"dp": 4, "pp": 2, "schedule": "interleaved", "model_chunks": 2}, "overlap_p2p"),
        ("torchtitan", "torch", {"zero_stage": 1}, "zero_stage"),
        ("torchtitan", "torch", {"dp": 4, "pp": 2, "stage_layout": "balanced"}, "stage_layout"),
        ("deepspeed", "torch", {"dp": 4, "pp": 2, "stage_layout": "balanced"}, "stage_layout"),
        ("torchtitan", "torch", {"dp_bucket_mb": 1}, "dp_bucket_mb"),
        ("accelerate", "torch", {"dp": 4, "pp": 2}, "pp"),
        ("accelerate", "torch", {"zero_stage": 1}, "zero_stage"),
        ("accelerate", "torch", {"dp": 4, "tp": 2}, "zero_stage"),
        ("accelerate", "deepspeed", {"dp": 4, "tp": 2, "zero_bucket_mb": 954}, "tp"),
    ],
)
def test_what_a_format_lacks_is_an_error_that_names_the_parameter(name, space, values, parameter, problem_of) -> None:
    with pytest.raises(InputError, match=f"cannot express `{parameter} = ") as caught:
        export(name, problem_of(space), at(**values))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("layout", ["balanced", "uneven"])
def test_megatron_has_the_stages_that_were_tuned(name, layout, problem_of) -> None:
    problem = problem_of("torch")
    given = layout if layout == "balanced" else f"Et|t*{problem.model.layers - 1}L"
    chosen = at(dp=4, pp=2, stage_layout=given)
    files = export(name, problem, chosen)
    assert "Ettt" in "".join(files.values()) or "Et|ttt" in "".join(files.values())
    assert FORMATS[name].parse(problem, files).settings["stage_layout"] in (given, "even")


def test_what_no_one_chose_is_no_reason_to_refuse(problem_of) -> None:
    """A bucket at DistributedDataParallel's default is not a choice that torchtitan would lose."""
    assert export("torchtitan", problem_of("torch"), at(dp_bucket_mb=25))


def test_an_unknown_format_names_the_nearest(problem_of) -> None:
    with pytest.raises(InputError, match="is not a format") as caught:
        export("megatron-brige", problem_of("torch"), at())
    assert "megatron-bridge" in caught.value.hint


def test_models_that_pretrain_gpt_cannot_train_are_refused(problem_of) -> None:
    with pytest.raises(InputError, match="cannot train `vit-base`"):
        export("megatron", problem_of("megatron", model="vit-base"), at(dp_bucket_mb=153, zero_bucket_mb=25))
