"""Configuration of Sphinx, which builds the documentation site: `make docs`.

The source folder is the repository itself, so that guides link to records, decisions and priors as they do on any host of the source code.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

import oppa  # noqa: E402

project = "oppa"
author = "The oppa authors"
copyright = "the oppa authors"
version = release = oppa.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.typer",
]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/**/*.md",
    "results/**/*.md",
    "priors/README.md",
    "priors/**/*.md",
    "experiments/README.md",
    "experiments/baselines/README.md",
    "client/README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LOG.md",
    "SECURITY.md",
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "misc.highlighting_failure"]  # records begin below the first level; JSON with dots in place of values

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = "oppa"
html_extra_path = ["site"]
html_static_path = ["_static"]
html_css_files = ["oppa.css"]
html_show_sphinx = False
