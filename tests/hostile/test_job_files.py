"""Whatever a job file holds, it is accepted or refused by a clear error: no traceback, no hang, and nothing half written."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.faults.inputs import job_files, mutations
from experiments.faults.law import judge
from oppa.errors import InputError, JobError, SpaceError
from oppa.problem import bounds
from oppa.problem.bounded_text import read_text
from oppa.problem.job import load_job
from oppa.problem.space_file import divisors

JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 8}
cluster = {devices_per_host = 4, device = "H100", memory_limit = "80 GiB"}
"""
LARGE = 999_999_999_999_999_999
COUNTED = {
    **{f"model.{name}": bounds.LARGEST for name in ("hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "experts", "patch")},
    "model.layers": bounds.MOST_LAYERS,
    "model.learned_positions": bounds.LARGEST,
    "batch.global_batch": bounds.LARGEST_BATCH,
    "cluster.hosts": bounds.MOST_HOSTS,
    "cluster.devices_per_host": bounds.MOST_DEVICES_PER_HOST,
    "limits.trials": bounds.LARGEST,
    "limits.q_min": bounds.MOST_STEPS,
    "limits.q_max": bounds.MOST_STEPS,
    "limits.settle": bounds.MOST_STEPS,
    "limits.repeats": bounds.MOST_REPEATS,
    "train.samples": bounds.MOST_SAMPLES,
    "train.profile_steps": bounds.MOST_STEPS,
    "launcher.parallel": bounds.LARGEST,
}


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the text of a job file."""

    def write(text: str) -> Path:
        path = tmp_path / "job.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("key", COUNTED)
def test_a_number_has_a_bound_that_its_error_names(key: str, job: Callable[[str], Path]) -> None:
    with pytest.raises(JobError) as raised:
        load_job(job(JOB), settings=[f"{key}={LARGE}"])
    assert f"`{key.partition('.')[2]} = {LARGE}` is too large" in raised.value.message
    assert raised.value.hint == f"use at most {COUNTED[key]}"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('cluster.memory_limit="1e999 GiB"', "is too large for a size"),
        ('cluster.memory_limit="2000 PiB"', "is not a size"),
        ('cluster.memory_limit="9000000 TiB"', "is too large"),
        ('limits.wall_time="9e300 d"', "is too large"),
        ('limits.grace="1e999 s"', "is too large for a duration"),
        ("training.seed=9223372036854775807", ""),
        ("training.seed=18446744073709551616", "is not a whole number"),
        ('cluster.device="\\u001b]0;title\\u0007"', "is not a name"),
        ('space.name="a\\u0000b"', "is not a name"),
        (f'space.name="{"a" * 256}"', "is not a name"),
        (f'runner.name="{"a/" * 3000}"', "is not a name"),
        ('model.entry_point="a:b\\n"', "is not"),
        ('command.steps={pattern="a{99999999999}"}', "is not a regular expression"),
        (f'command.steps={{pattern="{"(" * 5000}"}}', "is not a regular expression"),
        ('command.argv=["a\\u0000b"]', "has a NUL character"),
        (f"space.parameters.micro_batch={'[' * 60}{']' * 60}", "is not legal"),
        ("space.parameters.dp_bucket_mb=nan", "is not legal"),
    ],
    ids=lambda text: text[:40],
)
def test_a_value_that_nothing_can_use_is_named(setting: str, words: str, job: Callable[[str], Path]) -> None:
    own = [] if "steps" not in setting else ["command.argv=['true']"]
    if not words:
        assert load_job(job(JOB), settings=[setting])
        return
    with pytest.raises(InputError, match=words) as raised:
        load_job(job(JOB), settings=[*own, setting])
    assert raised.value.hint and len(raised.value.message) < 1_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 20_000, "nested more than 64 deep"),
        ("a = " + "{a = " * 20_000, "nested more than 64 deep"),
        ("a = " + "[" * 65 + "]" * 65, "nested more than 64 deep"),
        (".".join(["a"] * 50_000) + " = 1", "nested more than 64 deep"),
        ("[" + ".".join(['"a"'] * 50_000) + "]", "nested more than 64 deep"),
        ("a = " + "9" * 5_000, "a number that is too long"),
        ("a = 0x" + "f" * 5_000, "a number of 20000 bits"),
        ("a = 9223372036854775808", "has 9223372036854775808"),
        ("a = [" + "1," * 100_001 + "]", "more than 100000 values"),
        ("a = " + "#" * 300_000, "Longer than 262144 bytes"),
        ("a = '\0'", "a NUL byte"),
    ],
    ids=lambda text: text[:20],
)
def test_a_text_is_bounded(text: str, words: str, job: Callable[[str], Path]) -> None:
    with pytest.raises(JobError, match=words) as raised:
        load_job(job(text))
    assert raised.value.hint


@pytest.mark.parametrize("text", ["\n", " ", "a", ",", '"', "-", "a.b\n", "[a]\n", "'\n", "{,", '"a" '])
def test_a_long_text_is_answered(text: str, job: Callable[[str], Path]) -> None:
    """Nothing takes quadratic time; the suite's own limit ends what does."""
    with pytest.raises(JobError):
        load_job(job(text * (200_000 // len(text))))


def test_a_key_of_many_parts_is_only_a_key(job: Callable[[str], Path]) -> None:
    """Text in quotes may have as many dots as it likes."""
    dots = "a." * 500
    assert load_job(job(f"{JOB}\n[command]\nargv = [\"{dots}\", '{dots}']\n")).command


@pytest.mark.parametrize(
    "kind", ["FIFO", "device", "folder", "loop", "missing", "bytes", "link to a FIFO", "link to a device", "a long name"]
)
def test_what_is_no_text_file_is_refused(kind: str, tmp_path: Path) -> None:
    path, target = tmp_path / "input.toml", tmp_path / "target"
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "bytes":
            path.write_bytes(b"\xed\xa0\x80")
        case "link to a FIFO":
            os.mkfifo(target)
            path.symlink_to(target)
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "a long name":
            path = tmp_path / ("a" * 300)
    for read in (read_text, load_job):
        with pytest.raises(InputError, match="cannot be read") as raised:
            read(path)
        assert raised.value.hint


@pytest.mark.parametrize("number", [1, 720_720, 2**24, 999_983 * 2, 10**12 - 11, 999_999_999_989])
def test_divisors_of_large_numbers_are_all_of_them(number: int) -> None:
    found = divisors(number)
    assert found == sorted(set(found)) and all(number % divisor == 0 for divisor in found)
    small = [candidate for candidate in range(1, min(number, 2_000)) if number % candidate == 0]
    assert found[: len(small)] == small and [number // divisor for divisor in found[::-1]] == found


def test_numbers_beyond_the_bound_have_no_divisors() -> None:
    assert divisors(0) == divisors(-6) == []
    with pytest.raises(SpaceError, match="cannot be listed"):
        divisors(10**18)


@pytest.mark.slow
def test_hostile_job_files_are_accepted_or_refused() -> None:
    verdicts = [judge(case, job_files.read) for case in itertools.islice(_small(), 60)]
    assert [verdict for verdict in verdicts if verdict.answer not in ("accepted", "clear")] == []
    assert {verdict.answer for verdict in verdicts} == {"accepted", "clear"}


def test_the_jobs_that_are_changed_are_right(tmp_path: Path) -> None:
    for tables in job_files.JOBS.values():
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "job.toml").write_bytes(mutations.toml_file(tables))
        assert load_job(tmp_path / "job.toml")


def _small() -> itertools.filterfalse:
    """Cases without those whose search has millions of configurations, which take seconds."""
    return itertools.filterfalse(lambda case: "large" in case.name, job_files.cases(seed=0))
