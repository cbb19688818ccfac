"""Whatever a framework's file holds, it is imported or refused by a clear error, and a job that is written can be read."""

import itertools
import json
import os
from pathlib import Path

import pytest

from experiments.faults.inputs import imports
from experiments.faults.law import judge
from oppa.problem.bounded_text import whole_number
from tests.command_line import Oppa

SCRIPT = imports.SCRIPT
RUN = b"ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4"
RECIPE = "config.parallelism.pipeline_parallel_degree = 2\nconfig.parallelism.pipeline_parallel_schedule = 'x'"
TRIAL = json.dumps({"configuration": {"dp": 8, "micro_batch": 2, "global_batch": 64}})


@pytest.fixture
def oppa(tmp_path: Path) -> Oppa:
    (tmp_path / "job.toml").write_bytes(imports.JOB)
    return Oppa(tmp_path)


def imported(oppa: Oppa, name: str, text: str | bytes, *, code: int = 2, job: bool = True) -> str:
    """Return what `oppa import` prints to stderr for a file."""
    (oppa.folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    options = ("--job", "job.toml") if job else ()
    printed = oppa("import", name, "--from", imports.FORMATS[name], *options, "--out", "out.toml", code=code).stderr
    assert (oppa.folder / "out.toml").exists() == (code == 0) and "Traceback" not in printed
    assert not [path for path in oppa.folder.iterdir() if path.name.endswith(".draft")]
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("kind", imports.SHELL)
def test_a_script_that_grows_is_read_within_bounds(kind: str, oppa: Oppa) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(oppa.folder)
        verdict = judge(imports.Case(kind, {"megatron_args.sh": (imports.SHELL[kind] + SCRIPT).encode()}), imports.read)
    assert verdict.answer in ("accepted", "clear"), verdict
    if kind in ("doublings", "many uses", "itself"):
        assert "variables expand to more than" in verdict.said


@pytest.mark.parametrize("kind", imports.YAML)
def test_yaml_is_read_within_bounds(kind: str, oppa: Oppa) -> None:
    verdict = judge(imports.Case(kind, {"accelerate.yaml": imports.YAML[kind].encode(), "job.toml": imports.JOB}), imports.read)
    assert verdict.answer in ("accepted", "clear"), verdict
    if kind in ("laughs", "merges", "itself"):
        assert "it has an alias" in verdict.said


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ds_config.json", "[" * 100_000, "is nested too deeply"),
        ("ds_config.json", '{"a": ' * 70 + "1" + "}" * 70, "nested more than 64 deep"),
        ("ds_config.json", '{"train_batch_size": ' + "9" * 5_000 + "}", "is not JSON"),
        ("ds_config.json", '{"train_batch_size": 99999999999999999999}', "has 99999999999999999999"),
        ("ds_config.json", '{"train_batch_size": 99999999999}', "is not a whole number"),
        ("ds_config.json", '{"train_batch_size": [64]}', "is not a whole number"),
        ("ds_config.json", '{"gradient_accumulation_steps": 0, "train_batch_size": 64}', "is not a whole number"),
        ("ds_config.json", '{"pipeline": {"stages": 0}}', "is not a whole number"),
        ("ds_config.json", '{"zero_optimization": {"stage": 1, "reduce_bucket_size": Infinity}}', "is not a positive number"),
        ("ds_config.json", '{"zero_optimization": 3}', "is not a table"),
        ("ds_config.json", '{"zero_optimization": {"overlap_comm": "yes"}}', "is neither true nor false"),
        ("ds_config.json", '{"wandb": "\\ud800", "train_micro_batch_size_per_gpu": 2}', "half of a surrogate pair"),
        ("ds_config.json", b"\xff", "is not UTF-8 text"),
        ("ds_config.json", "{\0}", "contains a NUL byte"),
        ("ds_config.json", " " * 10_000_000, "Longer than 262144 bytes"),
        ("accelerate.yaml", "a: " + "[" * 5_000, "nested more than 64 deep"),
        ("accelerate.yaml", "num_machines: 2001-13-45", "is not YAML"),
        ("accelerate.yaml", "distributed_type: FSDP\nfsdp_config: 1", "is not a table"),
        ("megatron_args.sh", "x --num-layers-per-virtual-pipeline-stage 0", "is not a number"),
        ("megatron_args.sh", "x --pipeline-model-parallel-size ²", "is not a number"),
        ("megatron_args.sh", "x --micro-batch-size " + "9" * 5_000, "is not a number"),
        ("megatron_args.sh", "x --micro-batch-size 2 --recompute-granularity", 'states `recompute = ""`'),
        ("plugin.py", "HybridParallelPlugin(" + "(" * 5_000, "is not Python"),
        ("plugin.py", "HybridParallelPlugin(tp_size=" + "-" * 50_000 + "1)", "nested more than 100 deep"),
        ("plugin.py", "HybridParallelPlugin(tp_size=0x" + "f" * 5_000 + ")", "a number of 20000 bits"),
        ("plugin.py", "HybridParallelPlugin(tp_size=[1])", "states `tp = [1]`"),
        ("plugin.py", "HybridParallelPlugin(zero_bucket_size_in_m=None)", "is not a positive number"),
        ("plugin.py", "HybridParallelPlugin(zero_stage={[]: 1})", "states `zero_stage ="),
        (
            "oppa_recipe.py",
            RECIPE,
            "is unknown",
        ),
        ("oppa_recipe.py", "config.parallelism.tensor_parallel_degree = 'two'", "is not a whole number"),
        ("pretrain.py", "config.model.pipeline_model_parallel_layout = 5", "is not a text"),
        ("trial.json", "[]", "is not a table"),
        ("trial.json", '{"configuration": {"dpp": 1}}', "is not a parameter"),
        ("trial.json", '{"configuration": {"micro_batch": true}}', "states `micro_batch = true`"),
    ],
)
def test_a_value_is_refused_by_what_it_is(name: str, text: str | bytes, words: str, oppa: Oppa) -> None:
    printed = imported(oppa, name, text)
    assert words in printed and "hint: " in printed and len(printed) < 2_000


@pytest.mark.parametrize("kind", ["FIFO", "device", "link to a device", "loop", "folder of a FIFO"])
def test_what_is_no_text_file_is_refused(kind: str, oppa: Oppa) -> None:
    path = oppa.folder / "ds_config.json"
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "folder of a FIFO":
            path = oppa.folder / "folder"
            path.mkdir()
            os.mkfifo(path / "ds_config.json")
    printed = oppa("import", path, "--from", "deepspeed", code=2).stderr
    assert ("cannot be used" if kind == "loop" else "cannot be read") in printed


def test_a_job_that_could_not_be_read_is_not_written(oppa: Oppa) -> None:
    """The launch line of such a script does not fit in a job file."""
    printed = imported(oppa, "megatron_args.sh", imports.SHELL["options"] + SCRIPT, job=False)
    assert "more than 262144 bytes" in printed


def test_a_name_of_a_file_is_no_line_of_a_job(oppa: Oppa) -> None:
    name = "x\nmodel = 1\x1b[2J.json"
    (oppa.folder / name).write_text('{"train_micro_batch_size_per_gpu": 2, "train_batch_size": 64, "\\u001b[2J": "\\u001b[2J"}')
    done = oppa("import", name, "--from", "deepspeed", "--out", "out.toml")
    assert "\x1b" not in done.stderr + done.stdout + (oppa.folder / "out.toml").read_text()
    assert "\nmodel = 1" not in (oppa.folder / "out.toml").read_text()
    oppa("space", "out.toml")


@pytest.mark.parametrize("out", ["/dev/null", "folder", "a" * 300, "nowhere/out.toml"])
def test_only_a_file_is_written(out: str, oppa: Oppa) -> None:
    (oppa.folder / "folder").mkdir()
    (oppa.folder / "trial.json").write_text(TRIAL)
    printed = oppa("import", "trial.json", "--from", "torchrun", "--job", "job.toml", "--out", out, "--force", code=2).stderr
    assert any(reason in printed for reason in ("is not a file", "cannot be written", "cannot be used"))
    assert Path("/dev/null").is_char_device()


def test_a_job_with_values_in_place_of_tables_is_refused(oppa: Oppa) -> None:
    for key, value in (("batch", "5"), ("model", "[]"), ("runner", "5"), ("space", "'x'"), ("command", "{argv = 5}")):
        lines = [line for line in imports.JOB.decode().splitlines() if not line.startswith(f"{key} =")]
        (oppa.folder / "job.toml").write_text("\n".join([*lines, f"{key} = {value}\n"]))
        printed = imported(oppa, "megatron_args.sh", SCRIPT)
        assert "is not a" in printed and "hint: " in printed


def test_numbers_in_text_have_ascii_digits() -> None:
    assert whole_number("12") == whole_number("012") == 12
    assert not any(map(whole_number, ("", "²", "٣", "1e3", "-1", "1_0", " 1", "9" * 19)))


@pytest.mark.slow
def test_hostile_files_are_imported_or_refused() -> None:
    verdicts = [judge(case, imports.read) for case in itertools.islice(imports.cases(seed=0), 20)]
    assert [verdict for verdict in verdicts if verdict.answer not in ("accepted", "clear")] == []
    assert {verdict.answer for verdict in verdicts} == {"accepted", "clear"}


@pytest.mark.slow
def test_the_files_that_are_changed_are_right(oppa: Oppa) -> None:
    for name in imports.FORMATS:
        text = SCRIPT if name == "megatron_args.sh" else imports.exported(imports.FORMATS[name], name)
        job = imports.FOR_MEGATRON if name == "pretrain.py" else imports.JOB
        verdict = judge(imports.Case(name, {name: text.encode(), "run.sh": RUN, "job.toml": job}), imports.read)
        assert verdict.answer == "accepted", verdict
