"""The options of a program are those of its calls, and of the functions and classes of which a parser makes options."""

import ast

import pytest

from oppa.problem.program_options import program_options
from oppa.problem.program_writes import program_writes


def found(source, *words):
    """Return the first name and the default of each option."""
    return [(each.names[0], each.value) for each in program_options(ast.parse(source), words).defaults]


FIELDS = "@dataclass\nclass C:\n    bs: int = 8\n    out_dir: str = {}\n"


@pytest.mark.parametrize("value", ["'a'", "field(default='a')", "field(default='a', metadata={'help': 'b'})"])
@pytest.mark.parametrize(
    ("call", "name"),
    [("tyro.cli(C)", "--out-dir"), ("HfArgumentParser((C, TrainingArguments))", "--out_dir"), ("TrlParser([C])", "--out_dir")],
)
def test_the_fields_of_a_parsed_class_are_options(value, call, name):
    assert found(FIELDS.format(value) + call) == [(name, "a")]
    assert found(FIELDS.format(value) + "print(C())") == []


def test_the_fields_of_a_class_that_is_a_field_and_of_one_that_is_extended_are_options():
    source = FIELDS.format("'a'") + "class B:\n    log_dir: str = 'b'\nclass D(B):\n    train_it: C = C()\ntyro.cli(D)"
    assert found(source) == [("--log-dir", "b"), ("--train-it.out-dir", "a")]


@pytest.mark.parametrize(
    ("parameter", "name"),
    [
        ("out_dir: str = 'a'", "--out-dir"),
        ("*, out_dir='a'", "--out-dir"),
        ("out_dir: Path = Path('a')", "--out-dir"),
        ("out_dir: str = typer.Option('a', '-o', '--out')", "--out"),
        ("out_dir: Annotated[str, typer.Option('--out', '-o')] = 'a'", "--out"),
    ],
)
def test_the_parameters_of_a_command_are_options(parameter, name):
    for form in ("def main({}): pass\ntyper.run(main)", "@app.command()\ndef main({}): pass"):
        assert (name, "a") in found(form.format(f"bs: int, {parameter}"))
    assert found(f"def main({parameter}): pass\nfire.Fire(main)") in ([("--out_dir", "a")], [("--out", "a")])
    assert found(f"def main({parameter}): pass\nmain()") == []


def test_one_of_several_commands_is_the_one_that_the_line_names():
    source = "@app.command()\ndef train_it(out: str = 'a'): pass\n@app.command()\ndef test(to: str = 'b'): pass"
    assert found(source) == [] and found(source, "train-it") == [("--out", "a")]


def test_a_path_that_an_option_of_a_signature_states_is_not_one_of_the_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in (
        "def main(out: str = 'a'): torch.save(x, f'{out}/x')\ntyper.run(main)",
        "class C:\n    out: str = 'a'\ncfg = tyro.cli(C)\ntorch.save(x, cfg.out)",
    ):
        (tmp_path / "train.py").write_text(source)
        shown = program_writes(["python", "train.py"])
        assert shown.paths == shown.unseen == () and [each.names for each in shown.defaults] == [("--out",)]
