"""A launch line has placeholders and variables that trials fill in, and other braces that are the program's own."""

import re

import pytest

from oppa.errors import InputError

TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4 --output_dir out"


def test_a_placeholder_that_the_shell_has_split_is_named(job) -> None:
    with pytest.raises(InputError, match="the shell has split a placeholder: `batch=4:2` has no braces") as refused:
        job("torchrun train.py --batch batch=4:2 4 8")
    assert "quote it" in refused.value.hint


def test_braces_in_a_script_or_in_json_are_no_placeholders(job) -> None:
    made = job(f"""{TRAINER} --lr_scheduler_kwargs '{{"a": 1}}'""")
    assert '{{"a": 1}}' in made.problem.command.argv


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            "python train.py --bs '{bs:4,8}' --epochs '{e=1:1,2}'",
            "the placeholder `{bs:4,8}` has choices without its present value",
            "name the present value first: `'{bs=4:4,8}'`",
        ),
        (
            "'BATCH_SIZE={micro_batch=8:4,8,16}' torchrun --nproc-per-node 2 train.py --foo '{x=1:1,2}'",
            "the variable `BATCH_SIZE` has the placeholder `{micro_batch=8:4,8,16}`",
            """`--set 'space.parameters.batch_size={values=[8,4,16],default=8,env="BATCH_SIZE"}'`""",
        ),
        (
            "pyhton train.py '{x=1:1,2}'",
            "`pyhton` may start ranks of its own",
            "is no program here, check its spelling",
        ),
    ],
)
def test_what_would_reach_the_program_as_text_is_refused(line, message, hint, job) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as refused:
        job(line)
    assert hint in refused.value.hint


def test_a_variable_that_a_parameter_varies_is_not_set_in_front_of_trials(job) -> None:
    workers = 'space.parameters.workers={values=[4,8,16],env="WORKERS"}'
    made = job("A=1 WORKERS=8 python train.py", settings=[workers])
    assert made.problem.command.argv == ("env", "A=1", "python", "train.py") and made.problem.space["workers"].default == 8
    stated = job("WORKERS=8 python train.py", settings=[workers, "space.parameters.workers.default=16"])
    assert stated.problem.space["workers"].default == 16
    with pytest.raises(InputError, match="the default of `workers`, 2, is not one of its values"):
        job("WORKERS=2 python train.py", settings=[workers])


@pytest.mark.parametrize("word", ["model={a:1,b:2}", "betas={adam:[0.9,0.95]}", "{loss:,.2f}", "{x:8}"])
def test_braces_of_other_meaning_are_the_programs_own(word, job) -> None:
    argv = job(f"python train.py '{word}' --epochs '{{e=1:1,2}}'").problem.command.argv
    assert argv[2] == word.replace("{", "{{").replace("}", "}}")


@pytest.mark.parametrize(("option", "knob", "count"), [("--bs", "bs", 1), ("--batch-size", "batch_size", 1), ("--workers", "workers", 0)])
def test_a_knob_that_may_be_the_batch_has_a_note(option, knob, count, job) -> None:
    made = job(f"python train.py {option} '{{{knob}=4:4,8}}'")
    variable = job("python train.py", settings=[f'space.parameters.{knob}={{values=[4,8],env="{knob.upper()}"}}'])
    for notes in (made.notes, variable.notes):
        assert sum("may be the batch" in note for note in notes) == count
