"""Serve the live page: a single file that loads no external resource and runs only its own script."""

import base64
import functools
import hashlib
import re
from pathlib import Path

from oppa import catalog

LIVE_PAGE = "live-page"
"""File in the service's folder with the address of the page and its token, while the service runs; only its owner can read it."""
_FILE = Path(__file__).with_name("page.html")


@functools.cache
def page() -> str:
    """Return the HTML of the page, with the script and the style that draw its charts."""
    style, script, rest = _FILE.read_text().split("/* charts */")
    return f"{style}{catalog.charts_style()}{script}{catalog.charts_script()}{rest}"


@functools.cache
def policy_of_page() -> dict[str, str]:
    """Return HTTP headers that allow only the page's own script and style."""
    script, style = (_hash(re.findall(rf"<{tag}>(.*?)</{tag}>", page(), re.DOTALL)) for tag in ("script", "style"))
    allowed = {"default-src": "'none'", "script-src": script, "style-src": style, "connect-src": "'self'"}
    nothing = dict.fromkeys(("base-uri", "form-action", "frame-ancestors"), "'none'")
    content = "; ".join(f"{name} {value}" for name, value in {**allowed, **nothing}.items())
    return {"content_security_policy": content, "referrer_policy": "no-referrer"}


def _hash(texts: list[str]) -> str:
    assert len(texts) == 1
    return f"'sha256-{base64.b64encode(hashlib.sha256(texts[0].encode()).digest()).decode()}'"
