"""A value of unknown use is proposed to be read if it is named like an input."""

import re

import pytest

from oppa.errors import JobError
from oppa.problem.file_writes import harmless_keys
from oppa.problem.writes import harmless, require_known


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("--dataset_mixer_list org/name", "read"),
        ("model.partial_pretrain=org/name", "read"),
        ("--meta_path data/a.json", "read"),
        ("--save_every_n 100", "read"),
        ("--model_dir runs/a", "redirect"),
        ("--data_output_dir runs/a", "redirect"),
        ("--run-folder runs/a", "redirect"),
    ],
)
def test_what_is_named_like_an_input_is_proposed_to_be_read(words, kind):
    with pytest.raises(JobError) as error:
        require_known(harmless("plain", ["python", "train.py", *words.split()]).unknown)
    assert f"""--set 'command.paths."{re.split("[ =]", words)[0]}"={kind}'""" in error.value.hint


def test_a_text_of_several_lines_is_no_path():
    assert harmless_keys("transformers", {"system_prompt": "First think, then answer:\n<think>\n...\n</think>"}).unknown == ()
    assert [each.name for each in harmless_keys("transformers", {"prompts": "data/prompts"}).unknown] == ["prompts"]


@pytest.mark.parametrize("word", ["--resume", "--auto-resume true", "--resume_from mine", "--load mine", "--snapshot mine"])
def test_what_continues_an_earlier_run_is_unknown(word):
    found = harmless("plain", ["python", "train.py", *word.split()])
    assert [each.name for each in found.unknown] == [word.split()[0]]


@pytest.mark.parametrize("word", ["--logs mine", "--tb mine", "--tensorboard mine", "--export mine", "--dump mine", "--log mine"])
def test_a_name_without_a_slash_is_a_path_where_the_option_names_an_output(word):
    assert harmless("plain", ["python", "train.py", *word.split()]).unknown
    assert not harmless("plain", ["python", "train.py", word.split()[0], "true", "--log-level", "info", "--log-every", "10"]).unknown
