"""Draw the pictures of the documentation: the output of real commands as SVG, and pages as PNG in a light and a dark scheme.

    python docs/pictures.py [FOLDER]    # in the environment of `make setup`; Chromium makes the pages

A study of the example job is made first, in a temporary folder. Without Chromium only the terminals are drawn.
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
    "tune": "oppa tune examples/cpu.toml --trials 6 --study {study}",
    "predict": "oppa predict examples/cpu.toml",
    "explain": "oppa explain {study} dp=2,tp=2",
    "surrogate": "oppa show {study} --surrogate",
}
PAGES = {"report": "{study}/report.html"}
SCHEMES = {"light": 1, "dark": 0}
"""Numbers of the preferred colour scheme in Chromium."""
CURSOR = re.compile(r"\x1b\[\?25[hl]")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main(target: Path) -> None:
    """Write all pictures into a folder."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        names = {"study": str(Path(folder, "cpu-001"))}
        for name, line in TERMINALS.items():
            _draw(line.format(**names), target / f"{name}.svg", hide=folder)
        _output(f"oppa report {names['study']}")
        for name, page in PAGES.items():
            _photograph(Path(page.format(**names)), target, name)


def _draw(line: str, file: Path, hide: str) -> None:
    """Run a command, and draw what it prints below its line."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {line.replace(hide, 'studies')}", style="bold"))
    console.print(Text.from_ansi(_output(line).replace(hide, "studies")), soft_wrap=False)
    file.write_text(console.export_svg(title="", theme=MONOKAI, unique_id=file.stem))


def _output(line: str) -> str:
    """Return what a command prints in colour."""
    environment = {**os.environ, "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "COLUMNS": str(COLUMNS)}
    argv = [sys.executable, "-m", *shlex.split(line)]
    ran = subprocess.run(argv, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return CURSOR.sub("", ran.stdout).rstrip()


def _photograph(page: Path, target: Path, name: str) -> None:
    """Draw the top of a page in both schemes."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no Chromium is installed: {name} is not drawn")
    options = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1200,1100"]
    for scheme, number in SCHEMES.items():
        picture = target / f"{name}-{scheme}.png"
        chosen = f"--blink-settings=preferredColorScheme={number}"
        subprocess.run([browser, *options, chosen, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "_static")
