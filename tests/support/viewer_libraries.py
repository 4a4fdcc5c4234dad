"""Fetch the viewer's JavaScript libraries from npm and write them to rove/viewer/static/vendor, with their licenses.

    make viewer-libraries          # or: python tests/support/viewer_libraries.py

Each package is pinned by version and by the SHA-512 digest of its archive. A library becomes an ES module in the form that
`rove.viewer.html.bundled` joins into reports: each export is a declaration, and no text ends a <script>.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

FOLDER = Path(__file__).resolve().parents[2] / "rove/viewer/static/vendor"


class Library(NamedTuple):
    """An npm package.

    Args:
        version: The exact version.
        integrity: npm's digest of the archive: "sha512-" and base64.
        license: Name of the license.
        scripts: Written file → (exported name → script in the archive).
        styles: Written file → style sheet in the archive.
    """

    version: str
    integrity: str
    license: str
    scripts: dict[str, dict[str, str]]
    styles: dict[str, str] | None = None


LIBRARIES = {
    "preact": Library(
        "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        "MIT",
        {"preact.js": {"Preact": "dist/preact.mjs", "Hooks": "hooks/dist/hooks.mjs"}},
    ),
    "uplot": Library(
        "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        "MIT",
        {"uplot.js": {"Plot": "dist/uPlot.iife.min.js"}},
        {"uplot.css": "dist/uPlot.min.css"},
    ),
    "markdown-it": Library(
        "15.0.3",
        "sha512-+Az7Ojz3iRGu8KYMvJ6xVhvrxP3eE+vEtJX75Ow88XBpcQNV/0lGX5ZynIIBftREo4DC2jsveAMDaeltmm8QvQ==",
        "MIT",
        {"markdown.js": {"Markdown": "dist/browser/markdown-it.umd.min.js"}},
    ),
}


def archive_of(name: str, library: Library) -> dict[str, str]:
    """Return the text files of a package by path, without the leading `package/`.

    Raises:
        SystemExit: The archive has another digest.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"{name}@{library.version}"], cwd=folder, check=True)
        [file] = Path(folder).iterdir()
        content = file.read_bytes()
    digest = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if digest != library.integrity:
        raise SystemExit(f"{name}@{library.version} has the digest {digest}; expected {library.integrity}")
    files: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if (
                member.isfile()
                and (extracted := archive.extractfile(member))
                and re.search(r"LICENSE|js$|css$", member.name)
            ):
                files[member.name.partition("/")[2]] = extracted.read().decode()
    return files


def module_of(scripts: dict[str, str]) -> str:
    """Return one ES module that exports each script's value under its name.

    A script is an ES module, a UMD module, or assigns its value to a variable.
    """
    parts = []
    for name, source in scripts.items():
        source = re.sub(r"^//# sourceMappingURL=.*$", "", source, flags=re.MULTILINE).strip()
        source = source.replace("<!--", "\\x3c!--").replace("</script", "\\x3c/script")
        if exports := re.search(r"export\{([^}]*)\};?$", source):
            pairs = (pair.split(" as ") for pair in exports[1].split(","))
            returned = ",".join(f"{public}:{private}" for private, public in pairs)
            source = f"{source[: exports.start()]}return {{{returned}}};"
            source = re.sub(r'import\{options as (\w+)\}from"preact";', r"const \1=Preact.options;", source)
        elif "module.exports" in source:
            start = "const module={exports:{}},exports=module.exports;"
            source = f"{start}(function(){{{source}}}).call({{}});return module.exports;"
        else:
            source = f"{source}return uPlot;"
        parts.append(f"export const {name} = (() => {{{source}}})();\n")
    return "".join(parts)


def main() -> None:
    """Write all libraries, their licenses, and `libraries.json` with the digests of the written files."""
    FOLDER.mkdir(exist_ok=True)
    listed, licenses = [], []
    for name, library in LIBRARIES.items():
        files = archive_of(name, library)
        written = {
            file: module_of({key: files[path] for key, path in parts.items()})
            for file, parts in library.scripts.items()
        }
        written |= {file: files[path] for file, path in (library.styles or {}).items()}
        for file, text in written.items():
            (FOLDER / file).write_text(text, encoding="utf-8")
        digests = {file: hashlib.sha256(text.encode()).hexdigest() for file, text in written.items()}
        metadata = {
            "name": name,
            "version": library.version,
            "license": library.license,
            "integrity": library.integrity,
        }
        listed.append({**metadata, "files": digests})
        licenses.append(f"{name} {library.version}\n\n{files['LICENSE'].strip()}\n")
    (FOLDER / "libraries.json").write_bytes(msgspec.json.format(msgspec.json.encode(listed), indent=2) + b"\n")
    (FOLDER / "LICENSES.txt").write_text("\n\n".join(licenses), encoding="utf-8")


if __name__ == "__main__":
    main()
