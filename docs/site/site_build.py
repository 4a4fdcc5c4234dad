"""Build the documentation site: `make docs`, or `python docs/site/site_build.py [OUTPUT]`.

Pages are copied to build/site_source with their links changed to work there: docs/PAGE.md becomes PAGE.md, the READMEs of
the environments become environments/NAME.md, and linked source files become downloads. Reference pages are made from the
code. Sphinx then writes build/site. No step needs a network.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import error_templates
import reference_pages
from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "build/site_source"
SITE = ROOT / "build/site"
LEFT_OUT = {"example_runs", "site"}
"""Folders of docs/ that are not pages."""
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "reference/benchmark_results.md",
    "benchmarks/LOG.md": "reference/benchmark_log.md",
}
"""Pages outside of docs/ → their place on the site. The README is not copied: docs/index.md is the first page."""
PAGES_BELOW = {"environments.md": "environments/*", "benchmarks.md": "reference/benchmark_*", "decisions/index.md": "*"}
"""Page → pages below it in the table of contents."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
OTHERS = "other pages"
"""Line in the table of contents of docs/index.md that stands for all pages of docs/ which the table does not name."""
GLOB = re.compile(r"^(\w+)/\*$", re.MULTILINE)


def place(path: Path) -> Path | None:
    """Return where a file or folder of the repository is on the site, relative to its root; None if it is not there."""
    name = path.relative_to(ROOT).as_posix()
    if name in PAGES:
        return Path(PAGES[name])
    if path.is_dir() and (path / "README.md").exists():
        path = path / "README.md"
    if path.is_relative_to(ROOT / "environments"):
        parts = path.relative_to(ROOT / "environments").parts
        if parts in ((), ("README.md",)):
            return Path("environments.md")
        if len(parts) == 2 and parts[1] == "README.md":
            return Path("environments") / f"{parts[0]}.md"
    if path.is_dir() or not path.exists():
        return None
    if path.is_relative_to(DOCS) and path.relative_to(DOCS).parts[0] not in LEFT_OUT:
        return path.relative_to(DOCS)
    return Path("files") / path.relative_to(ROOT)


def link_changer(page: Path, target: Path) -> Callable[[re.Match[str]], str]:
    """Return a function that changes one link of a page, and copies the file that it leads to if that is no page.

    Args:
        page: the page in the repository.
        target: its place on the site.
    """

    def changed(link: re.Match[str]) -> str:
        mark, text, address = link.groups()
        path, _, anchor = address.partition("#")
        if not path or ":" in path:
            return link[0]
        linked = Path(os.path.normpath(page.parent / path))
        there = place(linked) if linked.is_relative_to(ROOT) else None
        if there is None:
            if linked.is_dir():
                return text
            raise SystemExit(f"{page.relative_to(ROOT)}: the link {address} leads nowhere")
        if there.parts[0] == "files" and there.suffix == ".md":  # a report that is no page of the site
            return text
        if there.parts[0] == "files" or there.suffix != ".md":
            copy(linked, there)
        relative = os.path.relpath(there, target.parent)
        return f"{mark}[{text}]({relative}{'#' + anchor if anchor else ''})"

    return changed


def copy(file: Path, target: Path) -> None:
    """Copy a file to the site's source if it is new or changed."""
    write(target, file.read_bytes())


def write(target: Path, content: bytes) -> None:
    """Write a file of the site's source if its content changed, so that Sphinx builds only changed pages again."""
    path = SOURCE / target
    WRITTEN.add(path)
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


WRITTEN: set[Path] = set()


def stage(page: Path, target: Path) -> None:
    """Copy a page with changed links; code blocks stay as they are."""
    parts = re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    change = link_changer(page, target)
    text = "".join(part if part.startswith("```") and "{" not in part[:5] else LINK.sub(change, part) for part in parts)
    text = GLOB.sub(lambda line: line[0] if any((DOCS / line[1]).glob("*.md")) else "", text)
    if page == DOCS / "index.md":
        unlisted = [
            file.stem for file in sorted(DOCS.glob("*.md")) if not re.search(rf"^{file.stem}$", text, re.MULTILINE)
        ]
        text = text.replace(f"{OTHERS}\n", "".join(f"{name}\n" for name in unlisted if name != "index"))
    if below := PAGES_BELOW.get(target.as_posix()):
        text += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{below}\n```\n"
    write(target, text.encode())


def stage_pages() -> None:
    """Copy all pages, and the files of docs/ that they show."""
    for file in sorted(DOCS.rglob("*")):
        inside = file.relative_to(DOCS)
        if inside.parts[0] in LEFT_OUT or not file.is_file():
            continue
        if file.suffix == ".md":
            stage(file, inside)
        else:
            copy(file, inside)
    for name, target in PAGES.items():
        if name != "README.md":
            stage(ROOT / name, Path(target))
    for readme in sorted((ROOT / "environments").glob("*/README.md")):
        stage(readme, Path("environments") / f"{readme.parent.name}.md")


def stage_all() -> None:
    """Write build/site_source."""
    stage_pages()
    for name, text in reference_pages.api_pages():
        write(Path("reference/api") / name, text.encode())
    write(Path("reference/commands.md"), reference_pages.commands_page().encode())
    write(Path("reference/records.md"), reference_pages.records_page().encode())
    write(Path("reference/errors.md"), error_templates.errors_page().encode())
    for path in sorted(SOURCE.rglob("*"), reverse=True):
        if path.is_file() and path not in WRITTEN:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def title_of(text: str) -> str:
    """Return the first heading of a page."""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1] if heading else ""


def first_paragraph(text: str) -> str:
    """Return the first paragraph after the heading, on one line."""
    body = text.partition("\n# ")[2] if not text.startswith("# ") else text
    for part in body.split("\n\n")[1:]:
        if part.strip() and not part.startswith(("<", "!", "|", "#", "`", ":", "(")):
            return LINK.sub(r"\2", " ".join(part.split()))
    return ""


def llms_texts(order: list[str]) -> tuple[str, str]:
    """Return llms.txt (https://llmstxt.org: a title, a summary, links with descriptions) and all pages in one text.

    Args:
        order: pages in the order of the table of contents, without suffix.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    head = f"# rove\n\n> {first_paragraph(readme)}\n"
    links, pages = [], []
    for name in order:
        text = (SOURCE / f"{name}.md").read_text(encoding="utf-8")
        if name.startswith("reference/api/"):
            text = f"# API: {title_of(text)}\n"
        else:
            pages.append(text)
        links.append(f"- [{title_of(text)}]({name}.html): {first_paragraph(text)[:300]}".rstrip(": "))
    return f"{head}\n## Pages\n\n" + "\n".join(links) + "\n", head + "\n" + "\n\n".join(pages)


def order_of_pages(name: str = "index", visited: set[str] | None = None) -> list[str]:
    """Return the pages in the order of the table of contents, from the `toctree` blocks."""
    visited = set() if visited is None else visited
    if name in visited:
        return []
    visited.add(name)
    pages, folder = [name], Path(name).parent
    text = (SOURCE / f"{name}.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in (line.strip() for line in block.splitlines()):
            if line and not line.startswith(":"):
                line = re.sub(r"^.*<(.*)>$", r"\1", line)
                for file in sorted((SOURCE / folder).glob(f"{line}.md")):
                    pages += order_of_pages(file.relative_to(SOURCE).with_suffix("").as_posix(), visited)
    return pages


PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>')
CHANGES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r'(class="caption" role="heading")>'), r'\1 aria-level="2">'),
    (re.compile(r"<pre(?=>| id)"), '<pre tabindex="0"'),
    (re.compile(r'(<div class="table-wrapper[\w -]*")>'), r'\1 tabindex="0">'),
    (PARAMETERS, lambda match: re.sub(r"(</?)dd\b", r"\1span", match[1])),
]
"""What is changed in HTML pages: heading levels, scrolling with the keyboard, and a list of parameters without terms."""


def make_accessible(output: Path) -> None:
    """Correct the HTML of all pages where the theme's is not accessible."""
    for file in output.rglob("*.html"):
        text = changed = file.read_text(encoding="utf-8")
        for pattern, replacement in CHANGES:
            changed = pattern.sub(replacement, changed)
        if changed != text:
            file.write_text(changed, encoding="utf-8")


def main(output: Path = SITE) -> int:
    """Build the site; return the exit status of Sphinx."""
    stage_all()
    flags = [
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-c",
        str(DOCS / "site"),
        "-d",
        str(ROOT / "build/site_doctrees"),
    ]
    status = build_main([*flags, str(SOURCE), str(output)])
    make_accessible(output)
    short, full = llms_texts(order_of_pages())
    (output / "llms.txt").write_text(short, encoding="utf-8")
    (output / "llms-full.txt").write_text(full, encoding="utf-8")
    shutil.rmtree(output / ".doctrees", ignore_errors=True)
    if not status:
        print(f"the site is at {output / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SITE))
