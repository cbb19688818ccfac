"""A settings file that is not of its kind is refused with its name and the line."""

import pytest

from oppa.errors import InputError
from oppa.problem.settings_text import read_settings


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("train.yaml", "a: 1\nb: [4\nc: 2\n", 3),
        ("train.yaml", "a: 1\n\tb: 2\n", 2),
        ("train.yml", "a: 1\nb: 2001-13-45\n", 2),
        ("train.json", '{"a": 1,\n"b": }\n', 2),
        ("train.toml", "a = 1\nb =\n", 2),
    ],
)
def test_an_error_of_syntax_names_the_file_and_the_line(name, text, line, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"`{tmp_path / name}` is not .*line {line}") as refused:
        read_settings(tmp_path / name, hint="name another file")
    assert "\n" not in refused.value.message


def test_an_alias_of_yaml_is_refused_with_the_file(tmp_path):
    (tmp_path / "train.yaml").write_text("a: &a [1]\nb: *a\n")
    with pytest.raises(InputError, match=r"train\.yaml` cannot be read: it has an alias"):
        read_settings(tmp_path / "train.yaml", hint="name another file")
