"""A correct job loads as written, and a wrong one is named with what to write instead."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oppa.errors import InputError, JobError
from oppa.problem.cluster import Cluster, Link
from oppa.problem.job import load_job
from oppa.problem.presets import PRESETS
from oppa.problem.training import Limits, SearchOptions, Training

WriteJob = Callable[..., Path]
CLUSTER, SPACE, PRESET, TRAINING, LIMITS = "[cluster]\n", "[space.parameters]\n", 'preset = "tiny-16m"', "[training]\n", "[limits]\n"
DESIGNER = "[designer]\n"


def test_a_job_loads_as_written(write_job: WriteJob) -> None:
    problem = load_job(write_job())
    assert (problem.name, problem.model, problem.global_batch) == ("job", PRESETS["tiny-16m"], 32)
    link = Link(bandwidth_bytes_per_s=300e9, latency_s=3e-6)
    assert problem.cluster == Cluster(devices_per_host=4, memory_limit_bytes=160 * 2**20, intra_host=link)
    assert problem.runner.name == "torch" and (problem.runner / "runner.toml").is_file()
    assert (problem.training, problem.limits) == (Training(), Limits(trials=30, wall_time_s=600))
    assert problem.search_options == SearchOptions(stopping=None, beta=1.0)
    assert problem.space["micro_batch"].choices == (1, 2, 4, 8)
    assert len(problem.candidates()) > 0


def test_a_dimension_overrides_the_preset(write_job: WriteJob) -> None:
    model = load_job(write_job((PRESET, PRESET + "\nseq_len = 64"))).model
    assert (model.seq_len, model.hidden) == (64, PRESETS["tiny-16m"].hidden)


def test_a_model_may_be_given_by_its_dimensions(write_job: WriteJob) -> None:
    dimensions = "layers = 4\nhidden = 64\nheads = 4\nffn = 96\nvocab = 256\nseq_len = 32"
    model = load_job(write_job((PRESET, dimensions))).model
    assert (model.name, model.kv_heads, model.experts) == ("custom", 4, 1)


def test_an_entry_point_is_searched_in_the_folder_of_the_job_and_refuses_what_needs_a_cut_through_a_block(
    write_job: WriteJob, tmp_path: Path
) -> None:
    problem = load_job(write_job((PRESET, PRESET + '\nentry_point = "mine.model:Mixer"')))
    assert problem.model.entry_point == f"{tmp_path}:mine.model:Mixer"
    candidates = problem.candidates()
    assert len(candidates) > 0 and (candidates.column("tp") == 1).all() and (candidates.column("recompute") != "selective").all()


def test_training_and_limits_are_read(write_job: WriteJob, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    training = TRAINING + 'precision = "bf16"\nseed = 3\ncorpus = "text"\n'
    limits = LIMITS + 'trial_time = "30 s"\ngrace = "2 s"\nq_min = 3\nq_max = 9\nrepeats = 4\n'
    problem = load_job(write_job((TRAINING, training), (LIMITS, limits)))
    assert problem.training == Training(precision="bf16", seed=3, corpus=str(tmp_path / "text"))
    assert problem.limits == Limits(trials=30, wall_time_s=600, trial_time_s=30, q_min=3, q_max=9, repeats=4, grace_s=2)


@pytest.mark.parametrize(("device", "runner", "seconds"), [("H100", "command", 600), ("CPU", "command", 120), ("H100", "torch", 120)])
def test_a_program_of_ones_own_may_compile_for_longer_on_gpus(device: str, runner: str, seconds: int, write_job: WriteJob) -> None:
    changed = [("devices_per_host = 4", f'devices_per_host = 4\ndevice = "{device}"'), ('name = "torch"', f'name = "{runner}"')]
    argv = ["python", "train.py", "{micro_batch}"] if runner == "command" else []
    assert load_job(write_job(*changed), argv=argv).limits.trial_time_s == seconds
    assert load_job(write_job(*changed, (LIMITS, f'{LIMITS}trial_time = "30 s"\n')), argv=argv).limits.trial_time_s == 30


def test_money_is_read_and_changes_no_fingerprint(write_job: WriteJob) -> None:
    usual = load_job(write_job())
    money = 'max_gpu_hours = 100\nprice_per_gpu_hour = 2.5\ncurrency = "EUR"\nrun_length = "14 d"\n'
    stated = load_job(write_job((LIMITS, LIMITS + money)))
    known = stated.limits
    assert (known.max_gpu_hours, known.price_per_gpu_hour, known.currency, known.run_length_s) == (100, 2.5, "EUR", 14 * 86400)
    assert stated.fingerprint == usual.fingerprint and type(stated).from_dict(stated.to_dict()) == stated
    assert not {"max_gpu_hours", "price_per_gpu_hour", "currency", "run_length_s", "settle"} & usual.to_dict()["limits"].keys()


def test_a_setting_that_names_another_launcher_drops_the_options_of_the_file_s(write_job: WriteJob) -> None:
    job = write_job((LIMITS, "[launcher]\nname = 'slurm'\noptions = {partition = 'gpu'}\n" + LIMITS))
    other = load_job(job, settings=["launcher.name=local"]).launcher
    assert (other.name, dict(other.options)) == ("local", {})
    assert load_job(job, settings=["launcher.name=slurm"]).launcher.options == {"partition": "gpu"}


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("", SearchOptions()),
        ('stopping = "paper-bound"', SearchOptions(stopping="paper-bound")),
        ("beta = 2", SearchOptions(acquisition="ucb", beta=2.0)),
        ('beta = "bound"', SearchOptions(acquisition="ucb", beta=None)),
        ('beta = 0.5\nstopping = "never"', SearchOptions(acquisition="ucb", beta=0.5, stopping="never")),
    ],
)
def test_the_search_s_choices_are_read(text: str, strategy: SearchOptions, write_job: WriteJob) -> None:
    assert load_job(write_job((LIMITS, f"{DESIGNER}{text}\n{LIMITS}"))).search_options == strategy


def test_runner_and_space_may_be_in_the_folder_of_the_job(write_job: WriteJob, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/runner.toml").write_text('search_space = "../my.toml"\n')
    space = "".join(f"[parameters.{name}]\ndivisors = 'devices'\n" for name in ("dp", "tp", "pp", "micro_batch"))
    (tmp_path / "my.toml").write_text(space)
    problem = load_job(write_job(('name = "torch"', 'name = "./mine"'), ("micro_batch = [1, 2, 4, 8]", "pp = 1")))
    assert (problem.runner, problem.space.name) == (tmp_path / "mine", "my")
    assert {configuration.pp for configuration in problem.candidates()} == {1}


MISTAKES = {
    "key": ("devices_per_host", "device_per_host", "`[cluster]` has no key `device_per_host`", "did you mean `devices_per_host`?"),
    "key of another table": (
        CLUSTER,
        CLUSTER + 'collective_timeout = "20 s"\n',
        "`[cluster]` has no key `collective_timeout`",
        "did you mean `training.collective_timeout`?",
    ),
    "link key": ("latency", "latencies", "`[cluster.intra_host]` has no key `latencies`", "did you mean `latency`?"),
    "table": ("[batch]", "[bacth]", "the key `bacth` is unknown", "did you mean `batch`?"),
    "path for name": ("[model]", 'name = "a/../b"\n[model]', '`name = "a/../b"` is not legal', "use letters, digits, `_`, `.` and `-`"),
    "missing": ("global_batch = 32", "", "`[batch]` lacks `global_batch`", "add `global_batch = ...`"),
    "text for number": ("= 32", '= "many"', '`global_batch = "many"` is not a whole number', "write digits"),
    "truth for number": ("= 32", "= true", "`global_batch = true` is not a whole number", "write digits"),
    "number for text": ('"160 MiB"', "160", "`memory_limit = 160`: it has no unit", "80 GiB"),
    "zero devices": ("devices_per_host = 4", "devices_per_host = 0", "`devices_per_host = 0` is too small", "use at least 1"),
    "negative hosts": (CLUSTER, CLUSTER + "hosts = -2\n", "`hosts = -2` is too small", "use at least 1"),
    "negative batch": ("= 32", "= -32", "`global_batch = -32` is too small", "use at least 1"),
    "no memory": ("160 MiB", "0 GiB", '`memory_limit = "0 GiB"` is too small', "use more than 0"),
    "negative memory": ("160 MiB", "-1 GiB", "`-1 GiB` is not a size", "write a number and one of B, kB"),
    "unit": ("10 min", "10 minutes", '`wall_time = "10 minutes"`: `10 minutes` is not a duration', "us, ms, s, min, h, d"),
    "bandwidth": ("300 GB/s", "300 GB", "`300 GB` is not a bandwidth", "Gbit"),
    "quota on GPUs": (CLUSTER, CLUSTER + 'device = "H100"\ncpus_per_device = 1\n', "`cpus_per_device` has no effect with", "remove it"),
    "quotas": (CLUSTER, CLUSTER + "cpus_per_device = [1, 0.5]\n", "`cpus_per_device` has 2 quotas for 4 devices", "one for all"),
    "no quota": (CLUSTER, CLUSTER + "cpus_per_device = [1, 1, 1, 0]\n", "`cpus_per_device", ""),
    "preset": ("tiny-16m", "tiny16m", '`preset = "tiny16m"` is not a known model', "did you mean `tiny-16m`?"),
    "dimensions": (PRESET, "layers = 4", "`[model]` lacks `hidden`, `heads`, `ffn`, `vocab`, `seq_len`", "bert-base"),
    "heads": (PRESET, PRESET + "\nheads = 7", "`heads = 7` does not divide `hidden = 384`", "use one of 1, 2, 3, 4, 6, 8"),
    "kv_heads": (PRESET, PRESET + "\nkv_heads = 3", "`kv_heads = 3` does not divide `heads = 8`", "use one of 1, 2, 4, 8"),
    "latents": (PRESET, PRESET + "\nq_lora_rank = 8", "`q_lora_rank = 8` is of multi-head latent attention", "add `kv_lora_rank`"),
    "rotation": (
        PRESET,
        PRESET + "\nkv_lora_rank = 8\nhead_dim = 16\nqk_rope_head_dim = 16",
        "`qk_rope_head_dim = 16` is not less than `head_dim = 16`",
        "`qk_nope_head_dim + qk_rope_head_dim`",
    ),
    "experts": (PRESET, PRESET + "\nexperts_per_token = 2", "`experts_per_token = 2` is more than `experts = 1`", "use at most 1"),
    "positions": (PRESET, 'preset = "bert-base"\nseq_len = 513', "`seq_len = 513` is more than `learned_positions = 512`", "at most 512"),
    "patches": (
        PRESET,
        'preset = "vit-base"\nseq_len = 196',
        "`seq_len = 196` is not a square number of patches plus a class token",
        "use 170",
    ),
    "entry point": (PRESET, PRESET + '\nentry_point = "mine.py"', '`entry_point = "mine.py"`', ""),
    "precision": (TRAINING, TRAINING + "precision = 'fp8'", '`precision = "fp8"` is not legal', 'use one of "fp32" or "bf16"'),
    "second moment": (TRAINING, TRAINING + "adam_beta2 = 1.0", "`adam_beta2 = 1.0` is too large", "use less than 1"),
    "tokens": (TRAINING, TRAINING + "tokens = 'no*'", '`tokens = "no*"` names no file', "name token files, relative to the job file"),
    "type of tokens": (TRAINING, TRAINING + "token_dtype = 'uint32'", "has no effect without `tokens`", "name token files"),
    "two kinds of data": (TRAINING, TRAINING + "tokens = 'a'\ncorpus = 'b'", "are both data", "remove one of them"),
    "weights": (TRAINING, TRAINING + "init_from = 'no'", '`init_from = "no"` is not a folder', "a folder of a Hugging Face model"),
    "adapters": (TRAINING, TRAINING + "trained = 'lora'", "oppa's runners train all weights", "add `[command]`"),
    "frozen weights": (TRAINING, TRAINING + "weights = '4-bit'", '`weights = "4-bit"` has no effect on weights that train', "lora"),
    "weight decay": (TRAINING, TRAINING + "weight_decay = -0.1", "`weight_decay = -0.1` is too small", "use at least 0"),
    "another schedule's words": (
        LIMITS,
        "[train]\nsamples = 100\ndecay = 'cosine'\ndecay_samples = 10\n" + LIMITS,
        '`decay_samples = 10` has no effect with `decay = "cosine"`',
        'use `decay = "wsd"`',
    ),
    "another optimizer's words": (
        TRAINING,
        TRAINING + "momentum = 0.9",
        '`momentum` has no effect with `optimizer = "adamw"`',
        'use `optimizer = "sgd"`',
    ),
    "and the other way round": (
        TRAINING,
        TRAINING + "optimizer = 'sgd'\nadam_beta2 = 0.9",
        'has no effect with `optimizer = "sgd"`',
        '"adamw"',
    ),
    "optimizer": (TRAINING, TRAINING + "optimizer = 'lion'", '`optimizer = "lion"` is not legal', '"adamw" or "sgd"'),
    "learning rate": (TRAINING, TRAINING + "learning_rate = inf", "`learning_rate = Infinity` is not finite", "finite"),
    "corpus": (TRAINING, TRAINING + "corpus = 'no'", '`corpus = "no"` is not a folder', "relative to the job file"),
    "settling": (LIMITS, LIMITS + "settle = 26\n", "`q_max = 30` is below `q_min = 5` after `settle = 26`", "use at least 31"),
    "measuring": (LIMITS, LIMITS + "settle = 20\nq_min = 2\nq_max = 22\n", "a throughput needs 3", "use at least 23"),
    "steps": (LIMITS, LIMITS + "q_max = 3\n", "`q_max = 3` is below `q_min = 5`", "use at least 5"),
    "stopping": (
        LIMITS,
        DESIGNER + 'stopping = "soon"\n' + LIMITS,
        '`stopping = "soon"` is not legal',
        'use one of "precise", "sure", "paper", "paper-bound" or "never"',
    ),
    "designer key": (LIMITS, DESIGNER + "betta = 1\n" + LIMITS, "`[designer]` has no key `betta`", "did you mean `beta`?"),
    "no beta": (LIMITS, DESIGNER + "beta = 0\n" + LIMITS, "`beta = 0` is too small", "use more than 0"),
    "word for beta": (LIMITS, DESIGNER + 'beta = "big"\n' + LIMITS, '`beta = "big"` is not a number', "write a number"),
    "list for beta": (LIMITS, DESIGNER + "beta = [1]\n" + LIMITS, "`beta = [1]` is not a number", "write a number"),
    "endless beta": (LIMITS, DESIGNER + "beta = inf\n" + LIMITS, "`beta = Infinity` is not finite", "finite"),
    "no GPU-hours": (LIMITS, LIMITS + "max_gpu_hours = 0\n", "`max_gpu_hours = 0` is too small", "use more than 0"),
    "negative GPU-hours": (LIMITS, LIMITS + "max_gpu_hours = -3\n", "`max_gpu_hours = -3` is too small", "use more than 0"),
    "text for GPU-hours": (LIMITS, LIMITS + 'max_gpu_hours = "3 h"\n', '`max_gpu_hours = "3 h"` is not a number', "without quotes"),
    "endless GPU-hours": (LIMITS, LIMITS + "max_gpu_hours = inf\n", "`max_gpu_hours = Infinity` is not finite", "finite"),
    "no price": (LIMITS, LIMITS + "price_per_gpu_hour = 0\n", "`price_per_gpu_hour = 0` is too small", "use more than 0"),
    "currency alone": (LIMITS, LIMITS + 'currency = "EUR"\n', '`currency = "EUR"` has no effect without a price', "price_per_gpu_hour"),
    "number for currency": (LIMITS, LIMITS + "price_per_gpu_hour = 2\ncurrency = 3\n", "`currency = 3` is not a string", "quotes"),
    "run length": (LIMITS, LIMITS + "run_length = 24\n", "`run_length = 24`: it has no unit", "90 s"),
    "no trials": ("trials = 30", "trials = 0", "`trials = 0` is too small", "use at least 1"),
    "TOML": ("= 32", "== 32", "`job.toml` is not TOML: Invalid value (at line 6", "check `global_batch == 32`"),
    "runner": ('"torch"', '"troch"', "`troch` is not one of the runners", "did you mean `torch`?"),
    "runner path": ('"torch"', '"./no"', "does not exist", "use one of the runners "),
    "no runner": ('"torch"', '"./"', "is not a runner: it has no `runner.toml`", "one of"),
    "space": (SPACE, "[space]\nname = 'megatorn'\n" + SPACE, "`megatorn` is not one of the search spaces", "did you mean `megatron`?"),
    "parameter": (SPACE, SPACE + "zero_stag = 1\n", "`[space.parameters]` has no parameter `zero_stag`", "did you mean `zero_stage`?"),
    "divisor": (SPACE, SPACE + "pp = 5\n", "`pp = 5` does not divide `devices = 4`", "use one of 1, 2, 4"),
    "not honoured": (
        SPACE,
        "[space]\nname = 'megatron'\n" + SPACE + "overlap_zero_comm = true\n",
        "`torch` does not honour",
        "leave it at false",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_what_to_write_instead(name: str, write_job: WriteJob) -> None:
    old, new, message, hint = MISTAKES[name]
    with pytest.raises(InputError) as raised:
        load_job(write_job((old, new)))
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize("runner", ["deepspeed", "colossalai"])
@pytest.mark.parametrize(("key", "value"), [("init_from", '"."'), ("reduce_in_rank_order", "true")])
def test_what_a_runner_would_ignore_is_refused_as_soon_as_the_job_is_read(key: str, value: str, runner: str, write_job: WriteJob) -> None:
    path = write_job((TRAINING, f"{TRAINING}{key} = {value}\n"))
    with pytest.raises(JobError, match=f"the runner `{runner}` does not support `{key} = ") as raised:
        load_job(path, settings=[f"runner.name={runner}"])
    assert raised.value.hint == 'leave it out, or use `[runner] name = "torch"`'
    assert load_job(path).runner.name == "torch"


def test_a_missing_file_is_answered_with_the_nearest(write_job: WriteJob) -> None:
    with pytest.raises(JobError) as raised:
        load_job(write_job().with_name("jop.toml"))
    assert "jop.toml` cannot be read: No such file or directory" in raised.value.message
    assert raised.value.hint == "did you mean `job.toml`?"


def test_only_jobs_are_offered_for_a_missing_file(write_job: WriteJob, tmp_path: Path) -> None:
    def hint() -> str | None:
        with pytest.raises(JobError) as raised:
            load_job(tmp_path / "nowhere.toml")
        return raised.value.hint

    for name, text in {"pyproject": "[project]\nname = 'mine'", "broken": "[cluster", "nowhere2": "[model]\nlayers = 2"}.items():
        (tmp_path / f"{name}.toml").write_text(text)
    assert hint() == "write one with `oppa init`"
    write_job().rename(tmp_path / "llama.toml")
    assert hint() == "use one of llama.toml"


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobError, match="it is not UTF-8 text"):
        load_job(tmp_path / "job.toml")


@pytest.mark.slow
def test_loading_imports_nothing_heavy(write_job: WriteJob) -> None:
    code = "import sys, pathlib; from oppa.problem.job import load_job; load_job(pathlib.Path(sys.argv[1])); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code, str(write_job())], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "pandas", "botorch", "rich", "typer"} & set(modules)
