"""Draw the pictures of the documentation: the output of real commands as SVG, and pages as PNG in a light and a dark scheme.

    make pictures

The commands run in a temporary folder, on the cores of this machine. Chromium draws the pages.
"""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = 112
TERMINALS = {
    "predict": "oppa predict examples/cpu.toml",
    "tune": "oppa tune examples/cpu.toml --trials 6 --study studies/cpu",
    "explain": "oppa explain studies/cpu dp=2,tp=2",
}
STUDY = ("oppa tune runners/simulated/jobs/llama-2-7b.toml --trials 12 --study studies/llama", "oppa report studies/llama")
"""Commands that make the page of a study. Its trials are simulated, so the page is the same on every machine."""
PAGES = {"report": "studies/llama/report.html"}
SCHEMES = {"light": 1, "dark": 0}
"""Numbers of the preferred colour scheme in Chromium."""
CURSOR = re.compile(r"\x1b\[\?25[hl]")
FONTS = re.compile(r"\s*@font-face \{[^}]*\}")
"""Fonts of another host, which a picture must not load."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main(target: Path) -> None:
    """Write all pictures into a folder."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None) or sys.exit("no Chromium is installed: `make browser`")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for linked in ("examples", "runners"):
            (folder / linked).symlink_to(ROOT / linked)
        for picture, line in TERMINALS.items():
            (target / f"{picture}.svg").write_text(_drawn(line, folder, picture))
        for line in STUDY:
            _output(line, folder)
        for picture, page in PAGES.items():
            _photograph(browser, folder / page, target / picture)


def _drawn(line: str, folder: Path, picture: str) -> str:
    """Return the SVG of a terminal that shows a command and its output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {line}\n", style="bold"), Text.from_ansi(_output(line, folder)), sep="")
    return FONTS.sub("", console.export_svg(title="", theme=MONOKAI, unique_id=picture))


def _output(line: str, folder: Path) -> str:
    """Return what a command prints, in colour and without animations."""
    environment = {**os.environ, "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "COLUMNS": str(COLUMNS)}
    argv = [sys.executable, "-m", *shlex.split(line)]
    ran = subprocess.run(argv, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return CURSOR.sub("", ran.stdout).replace(sys.executable, ".venv/bin/python").rstrip()


def _photograph(browser: str, page: Path, target: Path) -> None:
    """Draw the top of a page in both schemes."""
    options = [browser, "--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1200,1100"]
    for scheme, number in SCHEMES.items():
        chosen = [f"--blink-settings=preferredColorScheme={number}", f"--screenshot={target}-{scheme}.png"]
        subprocess.run([*options, *chosen, page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main(ROOT / "docs" / "_static")
