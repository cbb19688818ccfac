"""No statement of a launch line's script lets a trial write where the user writes."""

import pytest

from oppa.errors import InputError
from oppa.problem.describe import changes

TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4"


def words(made) -> tuple[str, ...]:
    return made.problem.command.argv


def test_a_variable_that_a_script_exports_declares_no_key_of_the_same_name(job) -> None:
    with pytest.raises(InputError, match="`output_dir /abs/mine` looks like a path"):
        job("./run.sh", {"run.sh": 'export output_dir=/abs/mine; python hyd.py --bs {b=1:1,2} output_dir=$output_dir "$@"'})


def test_an_exported_variable_follows_the_option_that_has_its_value(job) -> None:
    script = f"export OUT=/x/o\nexport DATA=/x/d\nexport RUN=/x\n{TRAINER} --output_dir $OUT --train_file $DATA/a --logging_dir $RUN/logs\n"
    made = job("bash run.sh", {"run.sh": script})
    assert "OUT={folder}/writes/OUT" in words(made) and "DATA=/x/d" in words(made)
    assert "RUN={folder}/writes/RUN" in words(made), "the program may read a variable that begins a path"
    assert "RUN=/x -> 'RUN={folder}/writes/RUN': a trial writes into its own folder" in changes(made.problem)
    assert {"OUT=/x/o", "DATA=/x/d", "RUN=/x"} <= set(made.problem.restored.command.argv)


def test_a_variable_whose_text_only_occurs_in_the_line_is_unknown(job) -> None:
    script = f"export OUT=/x/o RUN=/x\n{TRAINER} --output_dir out --train_file /x/o\n"
    with pytest.raises(InputError, match=r"`\$OUT /x/o` looks like a path; `\$RUN /x` looks like a path"):
        job("bash run.sh", {"run.sh": script})


@pytest.mark.parametrize("text", ["$((1/0))", "${HF_TOKEN/hf/}", "$DATA/a"])
def test_what_nothing_states_is_named_before_it_can_look_like_a_path(job, text) -> None:
    with pytest.raises(InputError, match=r"the launch line needs `.*`, which nothing here states") as refused:
        job("bash run.sh", {"run.sh": f"{TRAINER} --output_dir out --x {text}\n"}, environment={"HF_TOKEN": "hf_x"})
    assert "command.paths" not in refused.value.hint


@pytest.mark.parametrize(("name", "value"), [("PASS", "SECRET7"), ("KEY", "SECRET7"), ("TRACKER", "0123456789" * 4)])
def test_a_secret_of_the_environment_is_not_in_the_job(job, name, value) -> None:
    with pytest.raises(InputError, match=f"the launch line needs `.{name}`") as refused:
        job("bash run.sh", {"run.sh": f"{TRAINER} --output_dir out --k ${name}\n"}, environment={name: value})
    assert value not in str(refused.value)


def test_an_exported_variable_is_followed_through_one_that_the_line_sets(job) -> None:
    script = f"export DATA=$ROOT/d\n{TRAINER} --output_dir out --train_file $DATA/a\n"
    made = job("ROOT=/x bash run.sh", {"run.sh": script})
    assert "DATA=/x/d" in words(made)
