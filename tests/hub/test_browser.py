"""A hub's pages in a real browser, from a server and from files: search, cards, leaderboard, keyboard, contrast, hostile text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import NARROW, WIDE, Tab, chromium
from hub_site import create_example_hub
from hubs import HubThread

from rove.hub.server.export import export

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def hub_urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the addresses of one hub: on a server and exported to files."""
    folder = tmp_path_factory.mktemp("browsed")
    store = create_example_hub(folder / "hub")
    export(store, folder / "a site", "test")
    store.close()
    server = HubThread(folder / "hub")
    yield {"served": server.client.url + "/", "file": (folder / "a site").as_uri() + "/"}
    server.close()


def open_page(browser: Any, address: str, path: str = "", **options: Any) -> Tab:
    """Open a page of a hub in a new tab."""
    tab = Tab(browser, address, **options)
    leaf = "index.html" if address.startswith("file:") and not path.endswith(".html") else ""
    tab.page.goto(f"{address}{path}{leaf}")
    tab.page.wait_for_selector("h1")
    return tab


def first_run_path(tab: Tab) -> str:
    """Return the path of the first run on a card's leaderboard."""
    return tab.page.locator(".leaderboard a").first.get_attribute("href")


@pytest.fixture(params=["served", "file"])
def address(request: pytest.FixtureRequest, hub_urls: dict[str, str]) -> str:
    return hub_urls[request.param]


PAGE_VARIANTS = [
    ("served", WIDE, "light"),
    ("served", WIDE, "dark"),
    ("served", NARROW, "light"),
    ("served", NARROW, "dark"),
    ("file", WIDE, "light"),
    ("file", NARROW, "dark"),
]


@pytest.mark.parametrize(("kind", "size", "scheme"), PAGE_VARIANTS, ids=lambda value: str(value))
def test_pages_fit_the_screen_are_accessible_and_load_nothing_external(
    browser: Any, hub_urls: dict[str, str], kind: str, size: tuple[int, int], scheme: str
):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install axe-playwright-python"
    )
    violations, address = {}, hub_urls[kind]
    paths = ["", "acme/my-sums/", "zeta/evil/"]
    for card in paths[1:]:
        tab = open_page(browser, address, card)
        paths.append(card + first_run_path(tab))
        tab.context.close()
    for path in paths:
        tab = open_page(browser, address, path, size=size, scheme=scheme)
        tab.page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert tab.overflow <= 0, f"{path} is {tab.overflow} pixels too wide"
        assert tab.page.evaluate("window.pwned") is None and tab.page.locator("#pwned").count() == 0
        is_report = "/runs/" in path  # in addition to its script, a report has an element with its data
        elements = tab.page.evaluate("document.querySelectorAll('script, img, iframe, form form').length")
        assert elements == (2 if is_report else 1), path
        background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = "rgb(21, 21, 20)" if is_report else "rgb(22, 22, 21)"
        assert (background == dark) == (scheme == "dark"), background
        assert tab.page_errors == [], path
        options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "preload": False}
        violations[path] = [
            f"{violation['id']}: {[node['html'][:200] for node in violation['nodes'][:3]]}"
            for violation in axe.Axe().run(tab.page, options=options).response["violations"]
        ]
        tab.context.close()
    assert not any(violations.values()), violations


def test_the_list_is_filtered_while_typing(browser: Any, address: str):
    tab = open_page(browser, address)
    page, listed = tab.page, tab.page.locator(".environments li:visible")
    assert listed.count() == 3
    page.get_by_label("Search").fill("Numbers ADD")
    tab.wait("1 environment found")
    assert "acme/my-sums" in listed.inner_text()
    page.get_by_label("Search").fill("")
    page.get_by_label("compatibility").select_option("verifiers v0")
    tab.wait("1 environment found")
    assert "zeta/chess" in listed.inner_text()
    page.get_by_role("link", name="Show all").click()
    listed.nth(2).wait_for()
    page.get_by_role("link", name="game").first.click()
    listed.nth(2).wait_for(state="detached")
    assert listed.count() == 2 and page.get_by_label("tag", exact=True).input_value() == "game"
    page.get_by_label("owner").select_option("acme")
    tab.wait("0 environments found")
    tab.context.close()
    assert tab.page_errors == []


def test_keyboard_navigation_from_the_list_to_a_run_and_back(browser: Any, address: str):
    tab = open_page(browser, address)
    page = tab.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("sums")
    tab.wait("1 environment found")
    page.locator(".environments li:visible h2 a").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="acme/my-sums").wait_for()
    first = page.locator(".leaderboard").first.locator("tbody tr").first
    assert [cell.inner_text() for cell in first.locator("td").all()][:3] == ["1", "lab/large", "1.050 [1.020, 1.080]"]
    assert first.get_by_role("img", name="reward 1.050, 95% interval 1.020 to 1.080").is_visible()
    first.get_by_role("link").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="lab/large").wait_for()
    page.locator("details.rollout summary").first.focus()
    page.keyboard.press("Enter")
    tab.wait("What is 1 + 1?")
    page.get_by_role("link", name="acme/my-sums").click()
    page.get_by_role("heading", name="Leaderboard").wait_for()
    tab.context.close()
    assert tab.page_errors == []


def test_commands_contain_the_hub_address_and_can_be_copied(browser: Any, address: str):
    tab = open_page(browser, address, "acme/my-sums/")
    commands = [
        command.evaluate("one => one.lastChild.parentNode.textContent")
        for command in tab.page.locator(".command").all()
    ]
    folder = address.rstrip("/")
    assert f"pip install --index-url {folder}/acme/simple/ my-sums" in commands[1]
    path = Path(folder.removeprefix("file://").replace("%20", " ")).as_posix() if "file:" in folder else folder
    assert f"rove install acme/my-sums --hub {path}" in commands[0].replace("'", "")
    if address.startswith("http"):
        tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab.page.get_by_role("button", name="Copy: pip").click()
        tab.wait("Copied")
        assert (
            tab.page.evaluate("navigator.clipboard.readText()")
            == f"pip install --index-url {folder}/acme/simple/ my-sums"
        )
    tab.context.close()
    assert tab.page_errors == []


def test_pages_work_without_javascript(browser: Any, address: str):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    leaf = "index.html" if address.startswith("file:") else ""
    page.goto(address + leaf)
    assert page.locator(".environments li").count() == 3
    page.get_by_role("link", name="acme/my-sums").click()
    for words in ("lab/large", "rove install acme/my-sums --hub HUB", "Add two numbers; see the paper", "yanked:"):
        assert words in page.locator("main").inner_text()
    if not leaf:
        page.goto(address)
        page.get_by_label("Search").fill("chess")
        page.get_by_role("button", name="Search").click()
        page.get_by_text("1 environment found").wait_for()
    context.close()
