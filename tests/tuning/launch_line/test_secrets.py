"""A secret that a script sets never reaches the job, and trials that can do without it are not refused."""

import pytest

from oppa.cli.views.launch_line_view import understood_json
from oppa.errors import OppaError

KEY = "0123456789abcdef0123456789abcdef01234567"
HUB = "hf_abcdefghijklmnopqrstuvwx"
TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4 --output_dir out"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", KEY),
        ("WANDB_API_KEY", "secretsecret"),
        ("HF_TOKEN", HUB),
        ("HUGGING_FACE_HUB_TOKEN", HUB),
        ("COMET_API_KEY", "x7y"),
    ],
)
def test_a_key_of_a_tracker_or_the_hub_is_not_in_trials(name, value, job) -> None:
    made = job("bash run.sh", {"run.sh": f"export {name}={value} NCCL_DEBUG=INFO\n{TRAINER}\n"})
    assert value not in made.text and value not in str(made.problem) and value not in str(understood_json(made))
    assert "NCCL_DEBUG=INFO" in made.problem.command.argv and made.command.withheld == (name,)
    assert any(f"`{name}` of the script is a secret" in note and "your environment" in note for note in made.notes)


def test_another_secret_is_inherited_by_its_name_or_refused(job) -> None:
    files = {"run.sh": f"export AWS_SECRET_ACCESS_KEY={KEY}\n{TRAINER}\n"}
    with pytest.raises(OppaError, match="has a secret, `AWS_SECRET_ACCESS_KEY="):
        job("bash run.sh", files)
    with pytest.raises(OppaError, match="has a secret"):
        job("bash run.sh", files, environment={"AWS_SECRET_ACCESS_KEY": "another7"})
    made = job("bash run.sh", files, environment={"AWS_SECRET_ACCESS_KEY": KEY})
    assert KEY not in made.text and made.command.withheld == ("AWS_SECRET_ACCESS_KEY",)


@pytest.mark.parametrize("words", [f"--note {KEY}", "--note $WANDB_API_KEY", "--note=a-$WANDB_API_KEY"])
def test_a_word_with_the_value_of_such_a_key_is_refused(words, job) -> None:
    with pytest.raises(OppaError, match="secret") as refused:
        job("bash run.sh", {"run.sh": f"export WANDB_API_KEY={KEY}\n{TRAINER} {words}\n"})
    assert KEY not in str(refused.value) + refused.value.hint


def test_a_variable_with_the_value_of_such_a_key_is_refused(job) -> None:
    with pytest.raises(OppaError, match="secret") as refused:
        job("bash run.sh", {"run.sh": f"export WANDB_API_KEY={KEY}\nexport OWN=$WANDB_API_KEY\n{TRAINER}\n"})
    assert KEY not in str(refused.value) + refused.value.hint


def test_a_secret_that_the_user_types_is_refused(job) -> None:
    with pytest.raises(OppaError, match="has a secret"):
        job(f"WANDB_API_KEY={KEY} {TRAINER}")
