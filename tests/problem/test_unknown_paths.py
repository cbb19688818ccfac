"""A value of unknown use is proposed to be read if it is named like an input."""

import re

import pytest

from oppa.errors import JobError
from oppa.problem.writes import harmless, harmless_keys, require_known


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
