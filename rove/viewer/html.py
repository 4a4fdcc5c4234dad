"""Shortened texts, and a self-contained HTML page made of the viewer's own style and scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import msgspec

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="main" tabindex="-1">
<noscript><p>Without JavaScript this page shows only a summary:</p><pre>{plain_text}</pre></noscript>
</main>
<p id="said" role="status" class="unseen"></p>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(?:vendor/)?(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)


def finite(value: object) -> float | None:
    """Return a finite number as a float; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def utf8_text(value: str) -> str:
    """Return a text that UTF-8 can encode: bytes of a file name that are not UTF-8 become "?"."""
    return value.encode("utf-8", "replace").decode()


def whole_page(title: str, plain_text: str, data: Mapping[str, object]) -> str:
    """Return a page in one file that works offline.

    The run's data is JSON without "<" and is only inserted as text. The content security policy allows only the page's
    own style and script.
    """
    code = page_code()
    # Without "<" no text of the run can end the element that contains it.
    inert = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    texts = {"title": html.escape(title), "plain_text": html.escape(plain_text)}
    return PAGE.format(**texts, **code._asdict(), data=inert)


class PageCode(NamedTuple):
    """The code of `whole_page`, which is the same for every run."""

    style: str
    script: str
    policy: str
    """Content security policy: no other style or script runs, and nothing is loaded."""


@cache  # a hub serves such a page for each run: bundling 170 kB takes longer than the rest of the page
def page_code() -> PageCode:
    """Return the style and the script of `whole_page`, and the policy that allows only them."""
    files = {name: content.decode() for name, content in static_files().items()}
    style = files["vendor/uplot.css"] + files["style.css"]
    script = bundled("report", {Path(name).stem: text for name, text in files.items() if name.endswith(".js")})
    sources = f"style-src {_digest(style)}; script-src {_digest(script)}; img-src data:"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    return PageCode(style, script, policy)


def static_files() -> dict[str, bytes]:
    """Return the pages' files by name; files of other projects are in `vendor/` (tests/support/viewer_libraries.py)."""
    folder = resources.files("rove.viewer") / "static"
    own_files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    return own_files | {f"vendor/{file.name}": file.read_bytes() for file in (folder / "vendor").iterdir()}


def bundled(entry: str, files: Mapping[str, str]) -> str:
    """Join an ES module and its imports into one script; each module becomes a function that runs once and returns its exports.

    Args:
        files: Modules by name. Imports must be named, one statement per line; exports must be declarations.
    """
    return '"use strict";\n' + "\n".join(_bundle_parts(entry, files, []))


def _bundle_parts(name: str, files: Mapping[str, str], done: list[str]) -> Iterator[str]:
    source = files[name]
    for _, needed in IMPORT.findall(source):
        if needed not in done:
            yield from _bundle_parts(needed, files, done)
    done.append(name)
    exported = ", ".join(EXPORT.findall(source))
    body = EXPORT.sub("", IMPORT.sub(r"const {\1} = $\2;\n", source))
    assert not re.search(r"^(im|ex)port |</script|<!--", body, re.MULTILINE), f"{name}.js is of another form"
    yield f"const ${name} = (() => {{\n{body}return {{ {exported} }};\n}})();"


def _digest(source: str) -> str:
    """Return the hash of a script or style for the policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
