"""A headless Chromium for pages of rove, which collects the errors of a page."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import start_rove

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDE, NARROW = (1440, 900), (390, 844)


def chromium_path() -> str:
    """Return the path of Chromium; skip the test if Chromium or playwright is not installed."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    return path or pytest.skip("there is no Chromium on this machine: apt-get install chromium")


@contextmanager
def serve_viewer(runs: Path, *flags: str) -> Iterator[str]:
    """Start `rove view` for some runs and yield its address."""
    with serve_command(runs.parent, "view", str(runs), *flags) as url:
        yield url


@contextmanager
def serve_command(folder: Path, *words: str) -> Iterator[str]:
    """Start `rove WORDS…` in a folder on a free port, and yield the address that it prints."""
    with start_rove(folder, *words, "--port", "0") as process:
        try:
            assert process.stdout is not None
            # Commands that load a model print its device first.
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


def accessibility_violations(page: Any) -> list[str]:
    """Return the violations of WCAG AA on a page, as axe reports them."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install axe-playwright-python"
    )
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    reported = axe.Axe().run(page, options=options).response["violations"]
    return [f"{violation['id']}: {[node['html'][:200] for node in violation['nodes'][:3]]}" for violation in reported]


class Tab:
    """A page of the viewer. `page_errors` collects errors of scripts and requests to other addresses.

    Args:
        browser: Browser from `chromium`.
        url: Address from `serve_viewer`.
        size: Width and height in pixels.
        scheme: "light" or "dark".
    """

    def __init__(self, browser: Any, url: str, size: tuple[int, int] = WIDE, scheme: str = "light"):
        self.url = url
        self.scheme = scheme
        self.page_errors: list[str] = []
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        # A page may be slow on a busy machine.
        self.page.set_default_timeout(int(os.environ.get("ROVE_BROWSER_TIMEOUT_MS", "60000")))
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.page_errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.page_errors.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self._check(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.page_errors.append(text)

    def _check(self, url: str) -> None:
        if not url.startswith(self.url):
            self.page_errors.append(f"request to another address: {url}")

    def open(self, path: str) -> Any:
        """Show `#/path` and wait until all requests have ended."""
        self.page.goto(f"{self.url}#/{path}")
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
