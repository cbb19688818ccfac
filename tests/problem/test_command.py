"""A launch line is a template: what it may name, what it says, and what is wrong with it."""

import dataclasses
import json
from pathlib import Path

import pytest

from oppa.errors import JobError, OppaError
from oppa.problem.command import LaunchCommand, StepFormat, value_of
from oppa.problem.command_table import formats
from oppa.problem.job import load_job
from oppa.problem.memory_lines import reports_lack_of_memory
from oppa.problem.trial_values import values_of

JOB = """
[model]
preset = "tiny-4m"
[batch]
global_batch = 8
[cluster]
devices_per_host = 4
memory_limit = "1 GiB"
"""
ARGV = ["train", "--mbs={micro_batch}", "--accumulate", "{num_microbatches}", "{{literal}}"]


@pytest.fixture
def load(tmp_path):
    def write_and_load(more="", argv=(), hosts=1):
        (tmp_path / "job.toml").write_text(JOB + more)
        return load_job(tmp_path / "job.toml", argv=argv, settings=[f"cluster.hosts={hosts}"])

    return write_and_load


def words(problem, *, copies=None, **choice):
    candidates = problem.candidates()
    every = (candidates.configuration(index) for index in range(len(candidates)))
    configuration = next(each for each in every if all(getattr(each, key) == value for key, value in choice.items()))
    values = values_of(configuration, problem.model, problem.cluster, problem.training, steps=5, folder=Path("/trial"))
    return problem.command.words(values, copies or {})


def test_words_are_filled_in_and_nothing_is_split(load):
    problem = load(argv=[*ARGV, "a b"])
    assert words(problem, micro_batch=2) == ["train", "--mbs=2", "--accumulate", "1", "{literal}", "a b"]


def test_a_ranks_whole_batch_has_a_name(load):
    problem = load(argv=["train", "{batch_per_rank}", "{micro_batch}"])
    assert [words(problem, dp=4, micro_batch=size) for size in (1, 2)] == [["train", "2", "1"], ["train", "2", "2"]]


def test_the_micro_batches_of_all_ranks_have_a_name(load):
    problem = load(argv=["train", "{total_microbatches}", "{num_microbatches}"])
    assert [words(problem, dp=4, micro_batch=size) for size in (1, 2)] == [["train", "8", "2"], ["train", "4", "1"]]


def test_only_what_it_says_is_searched(load):
    space = load(argv=ARGV).space
    assert {parameter.name for parameter in space.parameters if len(parameter.choices) > 1} == {"dp", "micro_batch"}
    assert {configuration.dp for configuration in map(load(argv=ARGV).candidates().configuration, range(2))} == {4}
    with pytest.raises(JobError, match="the launch line does not use `recompute`"):
        load('[space.parameters]\nrecompute = ["none", "full"]', argv=ARGV)


def test_the_job_file_may_hold_it(load):
    problem = load('[command]\nargv = ["train", "{tp}"]')
    assert problem.runner.name == "command" and problem.command.argv == ("train", "{tp}")
    assert load('[command]\nargv = ["train", "{tp}"]', argv=["other"]).command.argv == ("other",)


def test_a_parameter_appends_words_or_those_of_its_value(load):
    more = """
[command]
argv = ["train"]
[command.arguments]
tp = ["--tp", "{tp}"]
zero_stage = { 0 = [], 1 = ["--use-distributed-optimizer"] }
[space.parameters]
zero_stage = [0, 1]
"""
    assert words(load(more), tp=2, pp=1, zero_stage=1) == ["train", "--tp", "2", "--use-distributed-optimizer"]
    assert words(load(more), tp=4) == ["train", "--tp", "4"]


def test_booleans_are_spelled_as_programs_read_them(load):
    assert words(load(argv=["train", "{overlap_p2p}", "{pp}"]), pp=4, overlap_p2p=True) == ["train", "true", "4"]


def test_a_key_is_set_to_a_value_of_its_kind_or_to_text():
    values = {"tp": 2, "overlap_p2p": True, "dp_bucket_mb": 25.0}
    assert [value_of(each, values) for each in ("{tp}", "{overlap_p2p}", "{dp_bucket_mb}", "tp{tp}")] == [2, True, 25.0, "tp2"]


def test_a_command_survives_json(load, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    files = '[command.files.config]\npath = "config.json"\nkeys = { "a.b" = "{tp}" }\n[command.steps]\nformat = "megatron"'
    problem = load('[command]\nargv = ["train", "{config}"]\narguments.tp = { 1 = [], 2 = ["x"], 4 = ["y"] }\n' + files)
    assert LaunchCommand.from_dict(json.loads(json.dumps(dataclasses.asdict(problem.command)))) == problem.command
    again = type(problem).from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again == problem and again.fingerprint == problem.fingerprint


def test_another_command_is_another_study(load):
    assert load(argv=["train", "{tp}"]).fingerprint != load(argv=["train", "{tp}", "--fast"]).fingerprint


@pytest.mark.parametrize(
    ("more", "argv", "message", "hint"),
    [
        ("", ["train", "{micro_bach}"], "`{micro_bach}` is not a known placeholder", "did you mean `micro_batch`?"),
        ("", ["train", "{tp:03d}"], "`{tp}` is not a known placeholder", "braces"),
        ("", ["train", "{tp"], "`{tp`: ", "braces"),
        ("", ["train", "{tp.__class__}"], "is not a known placeholder", ""),
        ("[command]\n", [], "`[command]` has no command to start", "after `--`"),
        ('[runner]\nname = "command"\n', [], "there is no command to run", "after `--`"),
        ('[runner]\nname = "torch"\n', ["train"], "the runner `torch` cannot start a command", "remove either"),
        ("[command.arguments]\nmicro_bach = []\n", ["train"], "unknown parameter `micro_bach`", "did you mean `micro_batch`?"),
        ("[command.steps]\n", ["train"], "needs either `format` or `pattern`", "torchtitan"),
        ('[command.steps]\nformat = "megatrn"\n', ["train"], '`format = "megatrn"` is unknown', "did you mean `megatron`?"),
        ('[command.steps]\npattern = "("\n', ["train"], "is not a regular expression", ""),
        ('[command.steps]\nformat = "lightning"\n', ["train"], '`format = "lightning"` counts batches', "`{num_microbatches}`"),
        ('[command.steps]\npattern = "a"\nbatches_per_step = "2{tp}"\n', ["train"], "is neither a positive number nor one", "number"),
        ('[command.steps]\npattern = "a"\nbatches_per_step = "{tb}"\n', ["train"], "`{tb}` is not a known placeholder", "tp"),
        ('[command.steps]\npattern = "a"\nbatches_per_step = 0\n', ["train"], "batches_per_step", ""),
        ('[command.files.a]\npath = "no.json"\nkeys = {}\n', ["train"], '`path = "no.json"` is not a file', "relative"),
        ('[command.files.a]\npath = "job.ini"\nkeys = {}\n', ["train"], '`path = "job.ini"` is not a file', "relative"),
    ],
)
def test_what_is_wrong_is_said(load, more, argv, message, hint):
    with pytest.raises(OppaError) as error:
        load(more, argv=argv)
    assert message in error.value.message and hint in error.value.hint


STANDALONE = ["--standalone", "--nproc-per-node", "4", "train.py", "{micro_batch}"]


@pytest.mark.parametrize("torchrun", [["torchrun"], ["python", "-m", "torch.distributed.run", "--max-restarts=0"]])
def test_a_launch_line_for_one_host_is_refused_for_several(load, torchrun):
    assert load(argv=[*torchrun, *STANDALONE]).cluster.hosts == 1
    with pytest.raises(JobError, match=r"connects the ranks of one host alone, and the job runs on up to 2 hosts") as error:
        load(argv=[*torchrun, *STANDALONE], hosts=2)
    assert error.value.hint.startswith("remove `--standalone`")


def test_an_option_of_the_program_with_the_name_of_torchruns_is_its_own(load):
    assert load(argv=["torchrun", "--nproc-per-node", "4", "train.py", "--standalone", "{micro_batch}"], hosts=2).cluster.hosts == 2


@pytest.mark.parametrize(
    ("argv", "more", "batches"),
    [
        (["train", "--accumulate", "{num_microbatches}"], "", "{num_microbatches}"),
        (["train"], "batches_per_step = 4", "4"),
        (["train", "{num_microbatches}"], "batches_per_step = 1", "1"),
        (["train"], 'batches_per_step = "{num_microbatches}"', "{num_microbatches}"),
    ],
)
def test_a_format_that_counts_batches_has_their_number_from_the_launch_line_or_the_job(load, argv, more, batches):
    steps = load(f'[command.steps]\nformat = "lightning"\n{more}', argv=argv).command.steps
    assert steps.batches_per_step == batches and steps.batches({"num_microbatches": 8}) == int(batches.replace("{num_microbatches}", "8"))


def test_a_file_may_be_what_gives_a_program_its_accumulation(load, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    file = '[command.files.config]\npath = "config.json"\nkeys = { "accumulate" = "{num_microbatches}" }'
    assert (
        load(f'{file}\n[command.steps]\nformat = "lightning"', argv=["train", "{config}"]).command.steps.batches_per_step
        == "{num_microbatches}"
    )


VALUES = """
[command]
argv = ["train", "{tp}"]
[command.arguments]
zero_stage = { 2 = ["--shard", "2"], 3 = ["--shard", "3"] }
[space.parameters]
"""


def test_words_are_demanded_for_values_that_matter_in_a_candidate_and_no_others(load):
    """zero_stage matters where dp > 1, and stands at 0 elsewhere."""
    problem = load(f"{VALUES}zero_stage = [2, 3]")
    assert {each.zero_stage for each in problem.candidates()} == {0, 2, 3}
    problem.command.require_words_for(problem.candidates())
    assert words(problem, dp=1) == ["train", "4"]
    assert words(problem, dp=2, pp=1, zero_stage=3) == ["train", "2", "--shard", "3"]
    with pytest.raises(JobError, match=r"`\[command.arguments.zero_stage\]` has no entry for `0`"):
        (problem := load(f"{VALUES}zero_stage = [0, 2]")).command.require_words_for(problem.candidates())


def test_a_key_that_no_value_chooses_stays_as_the_file_has_it(load, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    keys = 'keys = { "tp" = "{tp}", "reshard" = { zero_stage = { 2 = false, 3 = true } } }'
    (file,) = load(f'[command]\nargv = ["train"]\n[command.files.config]\npath = "config.json"\n{keys}').command.files
    assert file.rewritten({"tp": 2, "zero_stage": 0}) == {"tp": 2}


def test_every_known_format_is_a_pattern_with_groups():
    assert {"megatron", "torchtitan", "hf-trainer", "lightning"} <= formats().keys()


def test_a_key_may_be_chosen_by_a_parameter(load, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    keys = 'keys = { "a.b" = "{tp}", "reshard" = { zero_stage = { 2 = false, 3 = true } } }'
    problem = load(
        f'[command]\nargv = ["train"]\n[command.files.config]\npath = "config.json"\n{keys}\n[space.parameters]\nzero_stage = [2, 3]'
    )
    (file,) = problem.command.files
    assert file.rewritten({"tp": 2, "zero_stage": 3}) == {"a.b": 2, "reshard": True}
    assert {"tp", "zero_stage"} <= problem.command.parameters
    with pytest.raises(JobError, match="`reshard` has no value for `zero_stage = 1`"):
        problem.command.require_words("zero_stage", 1)


@pytest.mark.parametrize(
    "page",
    [page for page in sorted((Path(__file__).parents[2] / "docs").rglob("*.md")) if not page.stem.startswith("add-a")],
    ids=lambda page: page.stem,
)
def test_every_job_in_the_tutorials_loads_and_has_words_for_all_it_searches(page, tmp_path):
    blocks = [block.partition("```")[0] for block in page.read_text().split("```toml\n")[1:]]
    jobs = [block for block in blocks if "[model]" in block and "[command" in block]
    (tmp_path / "accelerate.yaml").write_text("{}")
    for job in jobs:
        (tmp_path / "job.toml").write_text(job)
        problem = load_job(tmp_path / "job.toml")
        problem.command.require_words_for(problem.candidates())
        assert len(problem.candidates()) > 3


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Failed to CUDA calloc async 2432 bytes",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
        "srun: error: node01: task 3: Out Of Memory",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB",
        "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "node01:3:9 [0] include/alloc.h:60 NCCL WARN Failed to CUDA host alloc 1234 bytes",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_libraries_report_a_lack_of_memory_in_their_own_words(line: str) -> None:
    assert reports_lack_of_memory(line, None) and reports_lack_of_memory(line, StepFormat(pattern="x", out_of_memory="(?i)no room"))
    assert not reports_lack_of_memory("iteration 3 took 20 ms", None)
    assert not reports_lack_of_memory(
        "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", None
    )  # the limit of locked memory


@pytest.mark.parametrize(
    "line",
    [
        "(WorkerDict pid=4242) INFO 04-12 10:11:12 [model_runner.py:1442] If out-of-memory error occurs during capture, decrease it.",
        "WARNING: set expandable_segments to avoid out of memory errors",
        "If you are running out of memory, use a smaller batch",
        "RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_tem Required: 262144 Hardware limit:232448",
    ],
)
def test_advice_and_kernels_that_exceed_shared_memory_are_no_lack_of_memory(line: str) -> None:
    assert not reports_lack_of_memory(line, None)
    assert reports_lack_of_memory(line, StepFormat(pattern="x", out_of_memory=line[:9].replace("(", r"\(")))
