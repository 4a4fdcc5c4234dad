"""A real headless Chromium that looks at `rove view`, and tells of whatever goes wrong on the way."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import in_its_own

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDE, NARROW = (1440, 900), (390, 844)


def found() -> str:
    """The browser of this machine; without one, or without playwright to drive it, the test is skipped."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    return path or pytest.skip("there is no Chromium on this machine: apt-get install chromium")


@contextmanager
def viewing(runs: Path, *flags: str) -> Iterator[str]:
    """The address of a `rove view` of these runs."""
    with serving(runs.parent, "view", str(runs), *flags) as url:
        yield url


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[str]:
    """The address that `rove WORDS…` prints, at any free port, in this folder."""
    with in_its_own(folder, *words, "--port", "0") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.search(r"http://\S+", line)
            assert match, line
            yield match[0]
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser."""
    path = found()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # tests may run as root
        yield browser
        browser.close()


def violations(page: Any) -> list[str]:
    """What axe finds against WCAG AA on a page."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install axe-playwright-python"
    )
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    found = axe.Axe().run(page, options=options).response["violations"]
    return [f"{one['id']}: {[node['html'][:200] for node in one['nodes'][:3]]}" for one in found]


class Tab:
    """A page of the viewer. Errors of scripts, and requests that leave for elsewhere, are collected in `trouble`.

    Args:
        browser: of `chromium`.
        url: of `viewing`.
        size: width and height in pixels.
        scheme: "light" or "dark".
    """

    def __init__(self, browser: Any, url: str, size: tuple[int, int] = WIDE, scheme: str = "light"):
        self.url = url
        self.scheme = scheme
        self.trouble: list[str] = []
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(
            int(os.environ.get("ROVE_BROWSER_TIMEOUT_MS", "60000"))
        )  # of a page that has something to do: a busy machine is no fault
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.trouble.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self._check(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.trouble.append(text)

    def _check(self, url: str) -> None:
        if not url.startswith(self.url):
            self.trouble.append(f"asked elsewhere: {url}")

    def open(self, place: str) -> Any:
        """Show `#/place` and wait until nothing is asked any more."""
        self.page.goto(f"{self.url}#/{place}")
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_selector("h1")
        return self.page

    def wait(self, text: str) -> None:
        """Until a text is on the page."""
        self.page.get_by_text(text, exact=False).first.wait_for(state="visible")

    @property
    def overflow(self) -> int:
        """Pixels that the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
