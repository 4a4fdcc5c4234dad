"""Sphinx configuration of the documentation site; `site_build.py` runs it."""

from __future__ import annotations

import re
from typing import Any

import rove

project = "rove"
author = "the rove authors"
copyright = f"the authors of {project}"
version = release = rove.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
templates_path: list[str] = []
nitpicky = False

# Pages. Headings get anchors as GitHub makes them, so that links between pages work in both places.
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # some pages go from a second to a fourth level
    "misc.highlighting_failure",  # some blocks of Python have an ellipsis in them
]

# API. Docstrings are written in Google's style, with single backticks for code.
default_role = "code"
autodoc_default_options = {
    "members": True,
    "undoc-members": False,
    "show-inheritance": True,
    "member-order": "bysource",
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# Copy buttons leave out prompts and printed lines.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = "rove"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": False}
# Colors whose contrast with their background is at least 4.5, in light and in dark.
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

SECTION = re.compile(r"^[A-Z][a-z]+:$")
CODE = re.compile(r"(`[^`]+`)")


def _escaped(line: str) -> str:
    """Return a line of a docstring with stars as themselves, and code that may be followed by a letter."""
    parts = CODE.split(line)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            parts[number] = part.replace("*", r"\*")
        elif parts[number + 1][:1].isalnum():
            parts[number] = part + "\\ "
    return "".join(parts)


def markdown_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Change a docstring, which has Markdown's code marks and indented examples, to what Sphinx reads."""
    section, code, converted = "", False, []
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        if line and not indented:
            section, code = line if SECTION.match(line) else "", False
        is_example = section in ("Example:", "Examples:")
        starts = indented and (is_example or not section) and not code and (is_example or lines[number - 1] == "")
        if starts and ">>>" not in line:
            code = True
            if is_example:
                converted[-1] = ".. rubric:: Example"
            converted += ["", ".. code-block:: python", ""]
        elif starts:
            section = "doctest"
        plain = code or section == "doctest" or line.lstrip().startswith(">>>")
        converted.append(line if plain or SECTION.match(line) else _escaped(line))
    lines[:] = converted


def setup(app: Any) -> None:
    """Connect to Sphinx, before napoleon (priority 500)."""
    app.connect("autodoc-process-docstring", markdown_docstring, priority=400)
