"""`oppa export` and `oppa import` as a user meets them, and the way from one to the other through a study."""

import json

import pytest

from oppa.problem.job import load_job
from oppa.training.run.run_folder import RunSpec
from tests.training.checkpoints import SQUARE, saved
from tests.training.exported_models import MODELS
from tests.training.full_disk import full

pytestmark = pytest.mark.slow

DEEPSPEED = """
[model]
preset = "tiny-4m"

[batch]
global_batch = 32

[cluster]
devices_per_host = 8
device = "A100-80GB"
memory_limit = "80 GiB"

[runner]
name = "simulated"

[space]
name = "deepspeed"

[training]
precision = "bf16"

[limits]
trials = 3
"""
PRESENT = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8},
}


@pytest.fixture
def present(oppa):
    """A job for DeepSpeed, and what its user runs at present."""
    (oppa.folder / "ds.toml").write_text(DEEPSPEED)
    (oppa.folder / "ds.json").write_text(json.dumps(PRESENT))
    return oppa


def test_what_a_user_runs_becomes_the_baseline_that_the_winner_is_compared_with(present) -> None:
    said = present("import", "ds.json", "--from", "deepspeed", "--job", "ds.toml", "--out", "tuned.toml")
    assert "dp8_tp1_pp1_z2_mbs2" in said.stderr and "ignored: gradient_clipping = 1.0" in said.stderr
    assert "rounded: zero_bucket_mb = 381.5 is 512 in the search space" in said.stderr
    tuned = present("tune", "tuned.toml", "--study", "s", "--designer", "random", "--json")
    result = json.loads(tuned.stdout)
    assert result["trials"][0]["configuration"] == result["baseline"]["configuration"]
    assert result["baseline"]["configuration"]["zero_stage"] == 2 and result["default"] is None
    assert result["gain"] >= 1 and "baseline  dp8_tp1_pp1_z2_mbs2" in tuned.stderr + present("show", "s").stdout
    page = present("report", "s").stdout.strip()
    assert "the baseline" in (present.folder / page).read_text()
    assert present("export", "s", "--to", "deepspeed").returncode == 0  # the hand-over wrote the same files


def test_the_exported_folder_has_every_format_that_can_express_the_winner_and_states_why_not(present) -> None:
    said = present("tune", "ds.toml", "--study", "s", "--designer", "random").stderr
    best, readme = present.folder / "s" / "best", (present.folder / "s" / "best" / "README.md").read_text()
    for name in ("deepspeed", "colossalai", "megatron", "megatron-bridge", "torchtitan", "accelerate"):
        assert (best / name / "run.sh").exists() is (f"- `{name}/`" in readme)
        assert (f"- `{name}/`" in readme) or "cannot express" in readme
    assert "export    deepspeed" in said


def test_an_import_prints_a_table_that_can_be_appended(present) -> None:
    table = present("import", "ds.json", "--from", "deepspeed", "--job", "ds.toml").stdout
    job = present.folder / "ds.toml"
    job.write_text(job.read_text() + table)
    files = json.loads(present("export", "ds.toml", "--to", "deepspeed", "--json").stdout)
    config = json.loads(files["ds_config.json"])
    assert config["zero_optimization"]["stage"] == 2 and config["train_micro_batch_size_per_gpu"] == 2


def test_without_a_job_one_is_made_that_can_be_tuned(present) -> None:
    script = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 "
    script += "--tokenizer-type NullTokenizer --vocab-size 511 --micro-batch-size 2 --global-batch-size 32 --bf16 --lr 1e-4\n"
    (present.folder / "train.sh").write_text(script)
    said = present("import", "train.sh", "--from", "megatron", "--out", "made.toml").stderr
    assert "chosen for megatron: the runner `command` and the search space `megatron`" in said and "dp8_tp1_pp1_z0_mbs2" in said
    assert "of `megatron` for made" in present("space", "made.toml").stdout
    printed = present("import", "ds.json", "--from", "deepspeed").stdout
    (present.folder / "printed.toml").write_text(printed)
    assert 'name = "deepspeed"' in printed and "of `deepspeed-llama` for printed" in present("space", "printed.toml").stdout
    assert "[baseline]" in printed and "a suggestion" in printed


def test_what_differs_is_settled_by_a_word(present) -> None:
    (present.folder / "other.json").write_text(json.dumps({**PRESENT, "train_batch_size": 64}))
    other = ("import", "other.json", "--from", "deepspeed", "--job", "ds.toml")
    assert "`--take file` for the file's values or `--take job` for the job's" in present(*other, code=2).stderr
    kept = present(*other, "--take", "job")
    assert "kept the job's value" in kept.stderr and kept.stdout.startswith("# From other.json (deepspeed).\n[baseline]")
    assert "`--out FILE`" in present(*other, "--take", "file", code=2).stderr
    present(*other, "--take", "file", "--out", "taken.toml")
    assert "global_batch = 64" in (present.folder / "taken.toml").read_text()
    assert "`--take both` is unknown" in present(*other, "--take", "both", code=2).stderr
    shown = json.loads(present(*other, "--take", "job", "--json").stdout)
    assert (shown["runner"], shown["space"]) == ("simulated", "deepspeed")


@pytest.mark.parametrize("space", ["", '[space]\nname = "deepspeed"\n'])
def test_a_file_is_imported_into_a_job_with_a_launch_line_and_names_what_that_leaves_out(space, present) -> None:
    own = '[command]\nargv = ["torchrun", "train.py", "{micro_batch}"]\n'
    job = DEEPSPEED.replace('[runner]\nname = "simulated"\n\n[space]\nname = "deepspeed"\n', own + space)
    (present.folder / "own.toml").write_text(job)
    (present.folder / "large.json").write_text(json.dumps({**PRESENT, "zero_optimization": {"stage": 2, "reduce_bucket_size": 1e9}}))
    said = present("import", "large.json", "--from", "deepspeed", "--job", "own.toml", "--out", "tuned.toml").stderr
    named = "which the job's launch line does not name; the baseline has"
    assert f"left out: zero_bucket_mb = 1907, {named} 954" in said and f"left out: zero_stage = 2, {named} 0" in said
    assert ("chosen for deepspeed: the search space `deepspeed`" in said) is (not space)
    shown = present("space", "tuned.toml").stdout
    assert "of `deepspeed` for tuned" in shown
    assert (present.folder / "tuned.toml").read_text().endswith("[baseline]\ndp = 8\ntp = 1\npp = 1\nmicro_batch = 2\n")


def test_an_export_never_overwrites_what_differs(present) -> None:
    export = ("export", "ds.toml", "micro_batch=2", "--to", "deepspeed")
    written = present(*export).stdout.split()
    assert written == ["ds-deepspeed/ds_config.json", "ds-deepspeed/run.sh"] == present(*export).stdout.split()
    assert "exists, and differs" in present("export", "ds.toml", "micro_batch=4", "--to", "deepspeed", code=2).stderr
    present("export", "ds.toml", "micro_batch=4", "--to", "deepspeed", "--force")
    assert json.loads((present.folder / written[0]).read_text())["train_micro_batch_size_per_gpu"] == 4


def test_a_key_of_the_job_is_changed_as_everywhere(present) -> None:
    words = ("export", "ds.toml", "dp=8,micro_batch=2", "--to", "deepspeed", "--json")
    usual, changed = (json.loads(present(*words, *more).stdout) for more in ((), ("--set", "training.precision=fp32")))
    assert [json.loads(files["ds_config.json"])["bf16"]["enabled"] for files in (usual, changed)] == [True, False]
    assert "`limit`" in present(*words, "--set", "limit.trials=2", code=2).stderr


def test_a_configuration_in_json_is_exported_for_a_job_or_as_its_studys_own(present) -> None:
    found = json.loads(present("tune", "ds.toml", "--study", "s", "--designer", "random", "--json").stdout)
    winner = present("export", "s", "--to", "deepspeed", "--json").stdout
    file = present.folder / "s" / "best" / "configuration.json"
    assert present("export", file, "--to", "deepspeed", "--json").stdout == winner
    assert present("export", "ds.toml", file, "--to", "deepspeed", "--json").stdout == winner
    assert present("export", file, "--to", "deepspeed").stdout.split()[0] == str(file.parent / "deepspeed" / "ds_config.json")
    other = next(trial["configuration"] for trial in found["trials"] if trial["configuration"] != found["best"]["configuration"])
    (present.folder / "other.json").write_text(json.dumps(other))
    exported = json.loads(present("export", "s", "other.json", "--to", "deepspeed", "--json").stdout)
    assert json.loads(exported["ds_config.json"])["train_micro_batch_size_per_gpu"] == other["micro_batch"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file"),
        ("micro_batch = 2", "is not JSON"),
        ("[2]", "does not contain a configuration"),
        ('{"micro_bach": 2}', "`c.json` has no parameter `micro_bach`\n\nhint: did you mean `micro_batch`?"),
        ('{"micro_batch": 3}', "`micro_batch = 3` is not legal\n\nhint: use one of 1, 2, 4, 8, 16, 32"),
        ('{"micro_batch": [2]}', "`micro_batch = [2]` is not legal"),
        ('{"tp": 2}', "the micro-batch is missing"),
        ('{"micro_batch": 2, "global_batch": 64}', "`global_batch = 64`, but the job fixes it at 32"),
        ('{"micro_batch": 2, "ep": 2}', "`ep = 2`"),
        ('{"micro_batch": 2, "tp": 2, "pp": 2}', "AutoTP does not work inside a PipelineModule"),
    ],
)
def test_what_is_no_configuration_of_the_job_says_why(text, words, present) -> None:
    if text is not None:
        (present.folder / "c.json").write_text(text)
    said = present("export", "ds.toml", "c.json", "--to", "deepspeed", code=2).stderr
    assert words in said and "hint: " in said and "Traceback" not in said


def test_a_configuration_alone_needs_a_study_around_it(present) -> None:
    (present.folder / "c.json").write_text('{"micro_batch": 2}')
    assert "is not in the folder of a study" in present("export", "c.json", "--to", "deepspeed", code=2).stderr
    assert "remove one of them" in present("export", "c.json", "micro_batch=2", code=2).stderr


def test_bad_input_is_an_error_with_a_hint(present) -> None:
    (present.folder / "other.json").write_text(json.dumps({**PRESENT, "train_batch_size": 64}))
    (present.folder / "open.json").write_text("{}")
    job = ("--from", "deepspeed", "--job", "ds.toml")
    for arguments, words in (
        (("export", "ds.toml"), "has many configurations"),
        (("export", "ds.toml", "micro_batch=2", "--to", "deepsped"), "did you mean `deepspeed`?"),
        (("export", "ds.toml", "micro_batch=2,tp=2,pp=2", "--to", "deepspeed"), "AutoTP does not work inside a PipelineModule"),
        (("export", "ds.toml", "micro_batch=2,zero_stage=1", "--to", "torchtitan"), "torchtitan cannot express `zero_stage = 1`"),
        (("export", "nowhere", "micro_batch=2"), "nowhere"),
        (("import", "other.json", *job), "the file has global_batch = 64, the job 32"),
        (("import", "open.json", *job), "--values micro_batch=..."),
        (("import", "nothing.json", *job), "`nothing.json` cannot be read"),
        (("import", "ds.json", *job, "--set", "tp=2,pp=2"), "use `--values tp=2,pp=2`"),
        (("import", "ds.json", *job, "--values", "tp=2,pp=2"), "AutoTP does not work inside a PipelineModule"),
    ):
        said = present(*arguments, code=2).stderr
        assert words in said and "Traceback" not in said


def test_without_a_winner_there_is_nothing_to_export(present) -> None:
    job = present.folder / "ds.toml"
    job.write_text(job.read_text().replace("80 GiB", "1 MiB"))
    present("tune", "ds.toml", "--study", "s", "--designer", "random", code=1)
    assert "has no winner yet" in present("export", "s", "--to", "deepspeed", code=2).stderr


def test_the_weights_of_a_run_are_those_of_its_newest_checkpoint(oppa) -> None:
    run, model = oppa.folder / "r", MODELS["llama"]
    RunSpec(uuid="u", problem=load_job(oppa.folder / "job.toml"), configuration=SQUARE).write(run)
    assert "has no checkpoint yet" in oppa("export", "r", "--to", "huggingface", code=2).stderr
    for steps in (7, 10):
        saved(run / "checkpoints" / f"step-{steps}", model, SQUARE)
    assert oppa("export", "r", "--to", "huggingface").stdout.split() == [
        f"r/exports/huggingface-step-10/{name}" for name in ("model.safetensors", "config.json")
    ]
    named = json.loads(oppa("export", "r/checkpoints/step-7", "--to", "dcp", "--out", "torch", "--json").stdout)
    assert named == {"files": ["torch/.metadata", "torch/__0_0.distcp"]}
    for arguments, words in (
        (("r",), "is not empty"),
        (("r", "micro_batch=2"), "which no configuration changes"),
        (("job.toml",), "is not a run"),
    ):
        said = oppa("export", *arguments, "--to", "huggingface", code=2).stderr
        assert words in said and "hint: " in said and "Traceback" not in said
    (run / "mine").mkdir()
    (run / "mine" / "notes").write_text("mine")
    oppa("export", "r", "--to", "huggingface", "--out", "r/mine", "--force")
    assert (run / "mine" / "notes").read_text() == "mine" and (run / "mine" / "config.json").is_file()


def test_an_export_that_a_full_disk_refuses_leaves_no_file_and_is_repeated(oppa) -> None:
    words = "export", "job.toml", "dp=2,micro_batch=2", "--out", "files"
    with full(1000):
        refusal = oppa(*words, code=2).stderr
    assert "`files` cannot be written: File too large" in refusal and "another folder" in refusal
    assert not any((oppa.folder / "files").iterdir())
    oppa(*words)
