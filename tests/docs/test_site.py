"""The documentation site: it builds without warnings, its links work, and its reference is complete."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import error_templates
import pytest
import reference_pages
from browser import WIDE, accessibility_violations, chromium
from settings_page import TABLES
from tiers import each_row

from rove.core.settings_docs import documented_fields
from rove.utils.files import file_lock

ROOT = Path(__file__).resolve().parents[2]
CHECKED_PAGES = (
    "index.html",
    "first_hour/2_environment.html",
    "concepts.html",
    "training.html",
    "settings.html",
    "reference/api/rubrics.html",
)


@pytest.mark.broad
def test_every_error_message_is_on_the_page_of_errors() -> None:
    page, sites = error_templates.errors_page(), error_templates.raise_sites()
    assert len(sites) > 900
    passed_on = [raise_site for raise_site in sites if error_templates.passes_on(raise_site.text)]
    assert len(passed_on) < 0.06 * len(sites), "messages without text of their own cannot be found by text"
    missing = [
        raise_site
        for raise_site in sites
        if raise_site not in passed_on and error_templates.code(raise_site.text) not in page
    ]
    assert missing == []


def test_every_metric_of_training_is_on_its_page() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    names = {
        name
        for file in (ROOT / "rove/train").glob("*.py")
        for name in re.findall(r"""^ +"([a-z_]+/[a-z_/]+)": """, file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(names) > 25
    assert sorted(name for name in names if f"`{name}`" not in page and f"/{name}`" not in page) == []


@pytest.mark.broad
def test_every_error_class_with_a_message_has_a_fix() -> None:
    assert {template.error for template in error_templates.templates()} == set(error_templates.FIXES)


@each_row(
    ("expression", "text"),
    [
        ("'a' 'b'", "ab"),
        ("f'{name} is {value!r}'", "{name} is {value}"),
        ("f'{self.config.seed}'", "{seed}"),
        ("f'no {x}; {nearest(x, known)}'", "no {x}; {did you mean …?}"),
        ("'a' if x else 'b'", "a | b"),
        ("f'{len(rows)} rows' + tail", "{rows} rows{tail}"),
        ("words", "the words"),
    ],
)
def test_an_expression_becomes_a_template(expression: str, text: str) -> None:
    constants: dict[str, ast.expr] = {"words": ast.Constant("the words")}
    assert error_templates.template(ast.parse(expression, mode="eval").body, constants) == text


@pytest.mark.parametrize(("text", "code"), [("a", "`a`"), ("run `a`", "`` run `a` ``"), ("```", "```` ``` ````")])
def test_code_with_backticks(text: str, code: str) -> None:
    assert error_templates.code(text) == code


class Page(HTMLParser):
    """Links, pictures and anchors of a page."""

    def __init__(self, file: Path):
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [link for name in ("href", "src") if (link := values.get(name))]
        if element_id := values.get("id"):
            self.ids.add(element_id)


@pytest.fixture(scope="module")
def site() -> Path:
    # Workers of pytest-xdist must not build at the same time: one would read the other's unfinished search index.
    with file_lock(ROOT / "build/site.lock"):
        built = subprocess.run(
            [sys.executable, str(ROOT / "docs/site/site_build.py")], capture_output=True, text=True, check=False
        )
    assert (built.returncode, built.stderr) == (0, "")
    return ROOT / "build/site"


@pytest.mark.broad
def test_links_of_the_site_lead_to_existing_pages_and_anchors(site: Path) -> None:
    pages = {file: Page(file) for file in site.rglob("*.html")}
    assert len(pages) > 60
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert parts.scheme in ("http", "https", "data", "mailto"), link
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchors = pages[target].ids if target in pages else {parts.fragment}
            if not target.exists() or (parts.fragment and parts.fragment not in anchors):
                broken.append(f"{file.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.broad
def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|link)[^>]+(?:src|href)=["']((?:https?:)?//[^"']+)""")
    assert {file.name: urls for file in site.rglob("*.html") if (urls := loads.findall(file.read_text()))} == {}


@pytest.mark.broad
def test_every_public_name_command_and_setting_is_in_the_reference(site: Path) -> None:
    api = {file.stem: Page(file).ids for file in (site / "reference/api").glob("*.html")}
    names = {f"rove.{name.name}" for name in reference_pages.public_names("rove")}
    assert names - set().union(*api.values()) == set()
    for module in reference_pages.PACKAGES:
        text = (site / f"reference/api/{module}.html").read_text(encoding="utf-8")
        assert [name.name for name in reference_pages.public_names(module) if f">{name.name}<" not in text] == []
    commands = Page(site / "reference/commands.html").ids
    assert {path.replace(" ", "-") for path, _ in reference_pages.commands()} <= commands
    settings = (site / "settings.html").read_text(encoding="utf-8")
    fields = [name for kind in TABLES.values() for name in documented_fields(kind.__module__, kind.__name__)]
    assert [name for name in fields if f">{name}<" not in settings] == []


def test_every_package_that_exports_names_is_in_the_reference() -> None:
    exporters = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in (ROOT / "rove").rglob("__init__.py")
        if re.search(r"^__all__ ", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert exporters == {"rove", *reference_pages.PACKAGES}


@pytest.mark.broad
def test_llms_txt_lists_every_page(site: Path) -> None:
    index = (site / "llms.txt").read_text(encoding="utf-8")
    assert index.startswith("# rove\n\n> ")
    links = re.findall(r"\]\((\S+?)\)", index)
    assert [link for link in links if not (site / link).exists()] == []
    pages = {file.relative_to(site).as_posix() for file in site.rglob("*.html")}
    assert pages - set(links) == {"genindex.html", "search.html"}
    full = (site / "llms-full.txt").read_text(encoding="utf-8")
    assert "# Settings of training" in full and "# Errors by text" in full


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "scheme"), [(WIDE, "light"), (WIDE, "dark"), ((390, 844), "light")], ids=["light", "dark", "narrow"]
)
def test_pages_are_accessible_and_fit_the_window(site: Path, size: tuple[int, int], scheme: str) -> None:
    problems: dict[str, Any] = {}
    with chromium() as browser:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        page = context.new_page()
        for name in CHECKED_PAGES:
            page.goto((site / name).as_uri())
            width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            problems[name] = accessibility_violations(page) + ([f"{width} pixels too wide"] if width > 0 else [])
        page.goto((site / "search.html").as_uri() + "?q=advantage")
        page.wait_for_selector("#search-results li a", timeout=20_000)
    assert not any(problems.values()), problems
