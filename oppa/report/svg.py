"""Draw SVG figures with one look; their colours follow the page around them, light or dark as the reader's settings are.

matplotlib draws with stand-ins for colours; each becomes a CSS variable. Text stays text, and the same figure gives the same bytes.
"""

import hashlib
import html
import io
import re
from collections.abc import Callable, Mapping
from typing import Any

from oppa import catalog
from oppa.report.plotting import Figure, mpl

_SCHEMES = [dict(re.findall(r"--(\w+): (#\w{6});", text)) for text in catalog.web("colours.css").split("@media")]
COLOURS: Mapping[str, tuple[str, str]] = {name: (light, _SCHEMES[1][name]) for name, light in _SCHEMES[0].items()}
"""Colours by name, on light and on dark paper, from `oppa/web/colours.css`."""
STAND_INS = {name: f"#01fe{number:02x}" for number, name in enumerate(COLOURS)}
POINTS_PER_INCH = 72
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_LOOK: Mapping[Any, Any] = {
    "axes.edgecolor": STAND_INS["soft"],
    "axes.facecolor": "none",
    "axes.labelcolor": STAND_INS["soft"],
    "axes.labelsize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": STAND_INS["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.size": 9,
    "grid.color": STAND_INS["rule"],
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": STAND_INS["ink"],
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "text.color": STAND_INS["ink"],
    "text.parse_math": False,  # a name may contain a dollar sign
    "xtick.color": STAND_INS["soft"],
    "ytick.color": STAND_INS["soft"],
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}


def render(draw: Callable[[Figure], None], *, width: float, height: float, description: str) -> str:
    """Return what `draw` draws, as an `<svg>` for a page that has `oppa/web/colours.css`.

    Args:
        width: Inches.
        height: Inches.
        description: Text for screen readers.
    """
    salt = hashlib.sha256(description.encode()).hexdigest()  # keeps ids different among the figures of a page
    with mpl.rc_context({**_LOOK, "svg.hashsalt": salt}):
        figure, written = Figure(figsize=(width, height)), io.StringIO()
        draw(figure)
        figure.savefig(written, format="svg", metadata={"Date": None})
    size = f"{width * POINTS_PER_INCH:g} {height * POINTS_PER_INCH:g}"
    label = f'role="img" aria-label="{html.escape(description)}"'
    return f'<svg viewBox="0 0 {size}" {label} stroke-linejoin="round" font-family="{FONT}">{_body(written.getvalue())}'


def standalone(svg: str) -> str:
    """Return a figure as the text of a separate file, with its colours, light and dark, and its paper."""
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', svg)
    assert size is not None  # `render` wrote it
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[1]}pt" height="{size[2]}pt" '
    paper = f'<style>{_colours()}</style><rect width="100%" height="100%" style="fill: var(--paper)"/>'
    return re.sub(r"<svg ([^>]*)>", lambda found: f"{opening}{found[1]}>{paper}", svg, count=1) + "\n"


def _colours() -> str:
    """Return CSS that defines the colours on screen and in print."""
    light, dark = (" ".join(f"--{name}: {pair[side]};" for name, pair in COLOURS.items()) for side in (0, 1))
    return f":root {{ {light} }} @media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _body(drawn: str) -> str:
    """Return matplotlib's SVG without its opening tag, in our colours, with short numbers, and with only the ids that are used."""
    text = drawn.partition("<svg ")[2].partition(">")[2]
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>|<!--.*?-->| font-family: [^;\"]*;", "", text, flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    for name, stand_in in STAND_INS.items():
        text = text.replace(stand_in, f"var(--{name})")
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    text = re.sub(r' (d|x|y|transform)="[^"]*"', lambda found: _short(found[0]), text)
    text = re.sub(r"\s*\n\s*", "\n", text).strip()
    return re.sub(r"<g([^>]*)>\n((?:<use [^>]*>\n)+)</g>", _with_one_style, text)


def _short(attribute: str) -> str:
    """Round the coordinates of an attribute to a hundredth of a point."""
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), attribute)


def _with_one_style(group: re.Match[str]) -> str:
    """Move the style that all marks of a group share to the group, so that thousands of marks stay small."""
    styles = re.findall(r' style="[^"]*"', group[2])
    if len(set(styles)) > 1:
        return group[0]
    return f"<g{group[1]}{styles[0]}>\n{group[2].replace(styles[0], '')}</g>"
