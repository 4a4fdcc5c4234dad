"""A real headless Chromium for pages of rove, which collects the errors of a page."""

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


def chromium_path() -> str:
    """Return the path of this machine's browser; without one, or without playwright to drive it, the test is skipped."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    return path or pytest.skip("there is no Chromium on this machine: apt-get install chromium")


@contextmanager
def viewing(runs: Path, *flags: str) -> Iterator[str]:
    """Start `rove view` for some runs and yield its address."""
    with serving(runs.parent, "view", str(runs), *flags) as url:
        yield url


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[str]:
    """Start `rove WORDS…` in a folder, at a free port, and yield the address that it prints."""
    with in_its_own(folder, *words, "--port", "0") as process:
        try:
            assert process.stdout is not None
            # Commands that load a model first say on which device.
            urls = (match[0] for line in process.stdout if (match := re.search(r"http://\S+", line)))
            url = next(urls, None)
            assert url is not None, "the command has ended without an address"
            yield url
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser."""
    path = chromium_path()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # tests may run as root
        yield browser
        browser.close()


def violations(page: Any) -> list[str]:
    """Return what violates WCAG AA on a page, as axe reports it."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install axe-playwright-python"
    )
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    reported = axe.Axe().run(page, options=options).response["violations"]
    return [f"{violation['id']}: {[node['html'][:200] for node in violation['nodes'][:3]]}" for violation in reported]


class Tab:
    """A page of the viewer. Errors of scripts, and requests to other addresses, are collected in `trouble`.

    Args:
        browser: Browser from `chromium`.
        url: Address from `viewing`.
        size: Width and height in pixels.
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
        # A page may be slow on a busy machine.
        self.page.set_default_timeout(int(os.environ.get("ROVE_BROWSER_TIMEOUT_MS", "60000")))
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.trouble.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self._check(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.trouble.append(text)

    def _check(self, url: str) -> None:
        if not url.startswith(self.url):
            self.trouble.append(f"request to another address: {url}")

    def open(self, place: str) -> Any:
        """Show `#/place` and wait until all requests have ended."""
        self.page.goto(f"{self.url}#/{place}")
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_selector("h1")
        return self.page

    def wait(self, text: str) -> None:
        """Wait until a text is on the page."""
        self.page.get_by_text(text, exact=False).first.wait_for(state="visible")

    @property
    def overflow(self) -> int:
        """Number of pixels by which the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
