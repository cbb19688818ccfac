"""Whatever a search space holds, its configurations are enumerated exactly, or it is refused before memory or time is spent."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.faults.case import Case
from experiments.faults.inputs import mutations, spaces
from experiments.faults.inputs.use import use
from experiments.faults.law import judge
from oppa.errors import InputError, SpaceError
from oppa.problem.bounds import MOST_CANDIDATES, MOST_CHOICES, MOST_CONSTRAINTS
from oppa.problem.job import load_job
from oppa.problem.problem import Problem

PARAMETERS = spaces.SPACE["parameters"]


@pytest.fixture
def problem_of(tmp_path: Path) -> Callable[..., Problem]:
    """Reads a job with a search space of its own."""

    def load(tables: Mapping[str, Any], *settings: str) -> Problem:
        (tmp_path / "job.toml").write_bytes(spaces.JOB)
        (tmp_path / "space.toml").write_bytes(mutations.toml_file(tables))
        return load_job(tmp_path / "job.toml", settings=settings)

    return load


def constrained(*expressions: str) -> dict[str, Any]:
    return {**spaces.SPACE, "constraint": [{"expression": text, "why": "it is so"} for text in expressions]}


@pytest.mark.parametrize(
    "expression",
    [
        "dp * 9223372036854775807 > 0",
        "dp + 9223372036854775807 > dp",
        "num_microbatches * 9223372036854775807 > 0",
        "dp != 9223372036854775808",
    ],
)
def test_a_constraint_that_always_holds_removes_nothing(expression: str, problem_of: Callable[..., Problem]) -> None:
    every = len(problem_of(spaces.SPACE).candidates())
    assert every > 20
    candidates = problem_of(constrained(expression)).candidates()
    assert len(candidates) == every and candidates.removed[-1] == 0


@pytest.mark.parametrize("expression", ["dp // (tp - tp) == 0", "layers % (pp - 1) == 0", "num_microbatches % 0 == 0"])
def test_a_constraint_that_cannot_be_computed_is_named(expression: str, problem_of: Callable[..., Problem]) -> None:
    with pytest.raises(SpaceError, match="cannot be computed") as raised:
        problem_of(constrained(expression))
    assert expression in raised.value.message and raised.value.hint


def test_combinations_are_counted_before_they_are_made(problem_of: Callable[..., Problem]) -> None:
    wide = {"values": list(range(1, 1_000))}
    tables = {"parameters": {**PARAMETERS, "dp": wide, "tp": wide, "pp": wide}}
    with pytest.raises(SpaceError, match=f"has more than {MOST_CANDIDATES} configurations") as raised:
        problem_of(tables)
    assert "give fewer choices" in raised.value.hint
    assert len(problem_of(tables, "space.parameters.dp=[8]", "space.parameters.tp=[1]").candidates()) > 0


def test_keys_of_candidates_fit_in_64_bits(problem_of: Callable[..., Problem]) -> None:
    wide = {"values": list(range(1, MOST_CHOICES + 1))}
    names = ("ep", "model_chunks", "dp_bucket_mb", "zero_bucket_mb")
    tables = {"parameters": {**PARAMETERS, **dict.fromkeys(names, wide), "micro_batch": wide}}
    alone = [f"space.parameters.{name}=1" for name in (*names, "micro_batch")]
    with pytest.raises(SpaceError, match="2\\^63 combinations"):
        problem_of(tables, *alone)


def test_the_most_values_of_a_parameter_are_read(problem_of: Callable[..., Problem]) -> None:
    def load(count: int) -> Problem:
        return problem_of({"parameters": {**PARAMETERS, "dp_bucket_mb": {"values": list(range(1, count + 1))}}})

    assert len(load(MOST_CHOICES).space["dp_bucket_mb"].values) == MOST_CHOICES
    with pytest.raises(SpaceError, match=f"has {MOST_CHOICES + 1} values"):
        load(MOST_CHOICES + 1)


def test_the_most_constraints_are_read(problem_of: Callable[..., Problem]) -> None:
    expressions = [f"dp != {number + 100}" for number in range(MOST_CONSTRAINTS + 1)]
    assert problem_of(constrained(*expressions[:-1]))
    with pytest.raises(SpaceError, match=f"has {MOST_CONSTRAINTS + 1} entries"):
        problem_of(constrained(*expressions))


@pytest.mark.parametrize("divided", ["hidden * hidden * hidden * hidden * hidden", "9223372036854775807", "-devices", "devices // 0"])
def test_divisors_of_anything_are_listed_or_refused(divided: str, problem_of: Callable[..., Problem]) -> None:
    with pytest.raises(InputError, match=r"cannot be listed|cannot be a value|are none|cannot be computed"):
        problem_of({"parameters": {**PARAMETERS, "tp": {"divisors": divided}}})


@pytest.mark.parametrize("text", ["a\x1b[2J", "", "a\n", "x" * 20_000])
def test_values_are_printable(text: str, problem_of: Callable[..., Problem]) -> None:
    with pytest.raises(SpaceError, match="cannot be a value of `schedule`"):
        problem_of({"parameters": {**PARAMETERS, "schedule": {"values": [text]}}})


def test_no_space_extends_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem_of: Callable[..., Problem]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.toml").write_text('extends = "./space.toml"')
    with pytest.raises(SpaceError, match="leads back to itself"):
        problem_of({"extends": "./other.toml"})
    with pytest.raises(SpaceError, match="Not a regular file"):
        problem_of({"extends": "/dev/zero"})


@pytest.mark.parametrize("schedule", ["../../outside", "a/b", "x" * 300, "a b"])
def test_no_value_leads_out_of_a_study_s_folder(schedule: str, problem_of: Callable[..., Problem], tmp_path: Path) -> None:
    problem = problem_of(
        {"parameters": {**PARAMETERS, "schedule": {"values": ["1f1b", schedule]}, "recompute": {"values": ["none", schedule]}}}
    )
    for configuration in problem.candidates():
        assert "/" not in configuration.id and len(configuration.id) <= 200
    use(problem, tmp_path)


@pytest.mark.parametrize("job", [spaces.JOB, spaces.COMMAND])
def test_the_space_that_is_changed_is_right(job: bytes) -> None:
    text = mutations.toml_file(constrained("dp > 0"))
    assert judge(Case("right", {"job.toml": job, "space.toml": text}), spaces.read).answer == "accepted"


@pytest.mark.parametrize("parameters", ["5", "'dp'", "[1]", "{dp = 1}"])
def test_a_runner_declares_names_of_parameters(parameters: str, tmp_path: Path) -> None:
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "runner.toml").write_text(f'search_space = "torch"\nparameters = {parameters}\n')
    (tmp_path / "job.toml").write_bytes(spaces.JOB.replace(b'"simulated"', b'"./runner"'))
    with pytest.raises(InputError, match=r"runner\.toml`: .*parameters"):
        load_job(tmp_path / "job.toml")


@pytest.mark.slow
def test_hostile_spaces_are_accepted_or_refused() -> None:
    verdicts = [judge(case, spaces.read) for case in itertools.islice(spaces.cases(seed=0), 120)]
    assert [verdict for verdict in verdicts if verdict.answer not in ("accepted", "clear")] == []
    assert {verdict.answer for verdict in verdicts} == {"accepted", "clear"}
