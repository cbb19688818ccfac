"""Whatever stands in braces on a launch line, it is a parameter with choices, or a clear error; what is accepted can be started."""

import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.faults.case import Case
from experiments.faults.inputs import launch_lines, understood_lines
from experiments.faults.inputs.use import use
from experiments.faults.law import judge
from oppa.errors import InputError, JobError
from oppa.problem.bounds import MOST_PARAMETERS
from oppa.problem.inline_choices import read_inline_choices
from oppa.problem.job import load_job
from oppa.problem.launch_line.shell_lexer import Lexer
from oppa.problem.problem import Problem
from oppa.tuning.launch_line.line_job import load_line
from tests.command_line import Oppa

MODEL, MEGATRON = launch_lines.JOBS["with a model"].decode(), launch_lines.JOBS["of a framework"].decode()
words = st.text(alphabet="{}=:,!.[]ab1 \n-$", max_size=20)


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Problem]:
    """Reads a launch line with a job file."""

    def load(*argv: str, job: str = MODEL) -> Problem:
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "job.toml").write_text(job)
        return load_job(tmp_path / "job.toml", argv=argv)

    return load


@given(st.lists(words, max_size=4))
def test_any_word_states_choices_or_is_refused(line: list[str]) -> None:
    try:
        found = read_inline_choices(line)
    except JobError as error:
        assert error.hint and len(error.message) < 1_000
    else:
        assert len(found.words) == len(line) and found.choices.keys() == found.present.keys()
        assert all(found.present[name] in values and len(values) > 1 for name, values in found.choices.items())


@pytest.mark.parametrize(
    "where",
    [
        '[command]\nargv = ["train", "{micro_batch}", "{cp}"]',
        '[command]\nargv = ["train", "{micro_batch}"]\n[command.arguments]\ncp = ["--cp", "{cp}"]',
        '[command]\nargv = ["train", "{micro_batch}"]\n[command.files.config]\npath = "config.json"\nkeys = { a = "{cp}" }',
        '[command]\nargv = ["train", "{micro_batch}"]\n[command.files.config]\npath = "config.json"\nkeys = { a = { cp = { 1 = false } } }',
    ],
    ids=["word", "argument", "key", "choice"],
)
def test_a_parameter_that_varies_on_request_has_its_default_where_it_is_named(
    where: str, load: Callable[..., Problem], tmp_path: Path
) -> None:
    problem = load(job=f"{MEGATRON}{where}")
    use(problem, tmp_path)
    assert {configuration["cp"] for configuration in problem.candidates()} == {1}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ('files.config = {path = "config.json", keys = {a = {other = {1 = 2}}}}', "`[command.files]`: unknown parameter `other`"),
        ('files.config = {path = "config.json", keys = {a = {micro_batch = {1 = 1979-05-27}}}}', "is no text, finite number"),
        ('files.config = {path = "config.json", keys = {a = {micro_batch = {1 = inf}}}}', "is no text, finite number"),
        ('files."a.b" = {path = "config.json", keys = {}}', "`a.b` cannot be the name of a file"),
        ('files.dp = {path = "config.json", keys = {}}', "`dp` cannot be the name of a file"),
        ('files.folder = {path = "config.json", keys = {}}', "`folder` cannot be the name of a file"),
        ('steps = {pattern = "x", batches_per_step = "{schedule}"}', "is neither a positive number nor one placeholder"),
        ('steps = {pattern = "x", batches_per_step = "{folder}"}', "is neither a positive number nor one placeholder"),
        ('steps = {pattern = "x", batches_per_step = "{zero_stage}"}', "is neither a positive number nor one placeholder"),
        (f'steps = {{pattern = "x", batches_per_step = "{"9" * 5_000}"}}', "is neither a positive number nor one placeholder"),
    ],
    ids=range(10),
)
def test_what_no_trial_could_use_is_refused(job: str, message: str, load: Callable[..., Problem]) -> None:
    with pytest.raises(JobError) as raised:
        load(job=f'{MODEL}[command]\nargv = ["train", "{{micro_batch}}"]\n{job}\n')
    assert message in raised.value.message and raised.value.hint


def test_two_parameters_do_not_set_one_variable(load: Callable[..., Problem]) -> None:
    knobs = "".join(f'[space.parameters.{name}]\nvalues = [1, 2]\nenv = "ARENAS"\n' for name in ("first", "second"))
    with pytest.raises(InputError, match="several parameters set the variable `ARENAS`"):
        load("train", "{micro_batch}", job=MODEL + knobs)


def test_a_space_has_so_many_parameters_at_most(load: Callable[..., Problem]) -> None:
    with pytest.raises(InputError, match=r"the search space has \d+ parameters"):
        load("train", *(f"{{a{number}=0:0,1}}" for number in range(MOST_PARAMETERS)))


@pytest.mark.parametrize("length", [20, 60, 99])
def test_long_names_fit_the_name_of_a_folder(length: int, load: Callable[..., Problem], tmp_path: Path) -> None:
    names = [f"{'n' * length}{letter}" for letter in "abcd"]
    use(load("train", *(f"{{{name}=1:1,2}}" for name in names)), tmp_path)
    assert all(len(path.name) < 255 for path in (tmp_path / "trials").iterdir())


@pytest.mark.parametrize(
    "line",
    [
        ("{x1=1:1,2}", "{x=12:12,13}"),
        ("{x=12:12,13}", "{x1=1:1,2}"),
        ("{mbs=1:1,2}", "{micro_batch=1:1,2}"),
        ("{rc=full:full,x}", "{sl=a:a,b}", "{z=1:1,2}"),
        ("{a_b=1:1,2}", "{b=1:1,2}"),
        ("{a=x:x,X,true,True}",),
        ("{a='; x:'; x,2}", "{b=/dev/zero:/dev/zero,y}"),
        ("{a=0.5:0.5,1}", "{b=-1:-1,1}"),
    ],
)
def test_an_id_names_its_own_configuration(line: tuple[str, ...], load: Callable[..., Problem], tmp_path: Path) -> None:
    use(load("train", *line), tmp_path)


MARKUP = "[/b][red]</script><b>"


@pytest.mark.slow
def test_what_a_job_states_is_no_markup(tmp_path: Path) -> None:
    """A terminal shows it as it is, and a page escapes it."""
    (tmp_path / "job.toml").write_text(f"""
cluster = {{devices_per_host = 1}}
objective = {{pattern = "(?P<value>[0-9.]+) ms", unit = "{MARKUP}", better = "lower"}}
limits = {{trials = 2, q_min = 3, q_max = 4, device_lock = false}}
[command]
argv = ["python3", "-u", "-c", "import time\\nfor n in range(99): print(5, 'ms'), time.sleep(0.01)", "{{knob}}"]
[space.parameters]
knob = ["none", "{MARKUP}"]
""")
    oppa = Oppa(tmp_path)
    assert MARKUP in oppa("space", "job.toml").stdout.replace("\n", "")
    assert MARKUP in oppa("tune", "job.toml", "--study", "s").stderr
    assert MARKUP in oppa("show", "s").stdout
    oppa("show", "s", "--out", "record")
    oppa("report", "s")
    assert MARKUP not in (tmp_path / "s" / "report.html").read_text()


@pytest.mark.slow
def test_hostile_launch_lines_are_accepted_or_refused() -> None:
    cases = (case for case in launch_lines.cases(seed=0) if len(json.loads(case.files["words.json"])) < 1_000)
    verdicts = [judge(case, launch_lines.read) for case in itertools.islice(cases, 80)]
    assert [verdict for verdict in verdicts if verdict.answer not in ("accepted", "clear")] == []
    assert {verdict.answer for verdict in verdicts} == {"accepted", "clear"}


@pytest.mark.parametrize("place", ["program", "file", "model", "sourced"])
def test_a_name_that_no_file_system_takes_is_no_file(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    long = "a" * 300
    (tmp_path / "run.sh").write_text(
        f"if [ -f {long} ]; then x; fi\n. ./{long}.sh\ntorchrun --nproc-per-node 8 t.py --batch {{batch=1:1,2}}\n"
    )
    lines = {
        "program": ["torchrun", "--nproc-per-node", "8", f"{long}.py", "--batch", "{batch=1:1,2}"],
        "file": ["python", "train.py", "fit", "--config", long],
        "model": ["torchrun", "--nproc-per-node", "8", "train.py", *TRAINER_WORDS, "--model_name_or_path", f"x/{long}"],
        "sourced": ["bash", "run.sh"],
    }
    (tmp_path / "train.py").write_text(understood_lines.CLI if place == "file" else understood_lines.TRAINER)
    with contextlib.suppress(InputError):
        load_line(lines[place])


TRAINER_WORDS = ("--per_device_train_batch_size", "4", "--max_seq_length", "64", "--output_dir", "out")


def test_a_program_of_many_empty_lines_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    case = Case("empty lines", {"train.py": b"\n" * 200_000, "words.json": b'["torchrun", "train.py", "--batch", "{batch=1:1,2}"]'})
    assert judge(case, understood_lines.read).answer in ("accepted", "clear")


@pytest.mark.parametrize("blank", ["\u2028", "\x0b", "\x0c", "\xa0", "\r"])
def test_only_the_blanks_of_a_shell_part_its_words(blank: str) -> None:
    _, word, *_ = Lexer(f"x a{blank}b", "run.sh").tokens()
    assert word.bare == f"a{blank}b"


@pytest.mark.parametrize("inside", [5, "text", ["a"], None])
@pytest.mark.parametrize(
    ("framework", "file", "table"), [("DeepSpeed", "ds.json", "zero_optimization"), ("Accelerate", "fsdp.yaml", "fsdp_config")]
)
def test_a_file_in_which_trials_can_set_nothing_is_refused_before_the_search(framework: str, file: str, table: str, inside: object) -> None:
    line, files = understood_lines.LINES[framework]
    bodies = {name: content.encode() if isinstance(content, str) else json.dumps(content).encode() for name, content in files.items()}
    bodies |= {file: json.dumps({**files[file], table: inside}).encode(), "words.json": json.dumps(line.split()).encode()}
    assert judge(Case("no table", bodies), understood_lines.read).answer == "clear"


@pytest.mark.slow
def test_hostile_lines_and_files_are_understood_or_refused() -> None:
    verdicts = [judge(case, understood_lines.read) for case in itertools.islice(understood_lines.cases(seed=0), 80)]
    assert [verdict for verdict in verdicts if verdict.answer not in ("accepted", "clear")] == []
    assert {verdict.answer for verdict in verdicts} == {"accepted", "clear"}
