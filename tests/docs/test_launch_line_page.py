"""The commands of the page on launch lines that vary an environment variable do so, and state its present value."""

import re
import shlex
from pathlib import Path

from oppa.tuning.launch_line.line_job import load_line
from tests.tuning.launch_line.conftest import GPUS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "launch-line.md"


def test_the_shown_variables_vary_from_their_present_value() -> None:
    shown = re.findall(r"^oppa tune --set ('space\.parameters\..*?') -- (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(shown) == 2
    for setting, line in shown:
        problem = load_line(shlex.split(line), settings=shlex.split(setting), environment={}, machine=GPUS).problem
        assert {problem.variables(each)["MALLOC_ARENA_MAX"] for each in problem.candidates()} == {"1", "2", "4"}
        assert problem.space["arenas"].default == 2 and "MALLOC_ARENA_MAX=2" not in problem.command.argv
