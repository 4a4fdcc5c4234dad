"""Test tags and notes in a browser: entered with the keyboard, used as filters, shown as text, changed only with --annotate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import NARROW, WIDE, Tab, accessibility_violations, chromium, serve_viewer
from run_folders import make_record, write_run_folder

from rove.runs.annotations import Annotations, Change, RolloutId, annotate

pytestmark = pytest.mark.slow

EVIL = '<script>window.pwned=1</script>"><img>'


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("one", "other"):
        write_run_folder(tmp_path / "runs" / name, [make_record(example, i) for example in range(2) for i in range(2)])
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_rollout_gets_tags_and_a_note_and_is_found_by_them(browser: Any, runs: Path, size: tuple[int, int]):
    with serve_viewer(runs, "--annotate") as url:
        tab = Tab(browser, url, size, "dark" if size == NARROW else "light")
        page = tab.open("rollout?run=one&line=2")
        page.keyboard.press("t")
        page.keyboard.type("good")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="remove the tag good").wait_for()
        # the field for the next tag has the focus
        assert page.evaluate("document.activeElement.list.id") == "tags-Add-a-tag"
        page.keyboard.type(EVIL)
        page.keyboard.press("Enter")
        page.get_by_role("button", name=f"remove the tag {EVIL}").wait_for()
        page.get_by_role("textbox", name="Note").fill(f"{EVIL}\nsecond line")
        page.get_by_role("button", name="Save note").click()
        page.locator("#said", has_text="note saved").wait_for(state="attached")
        assert accessibility_violations(page) == [] and tab.overflow <= 0
        page.keyboard.press("Tab")
        page.locator("h1").click()
        page.keyboard.press("Escape")
        tab.wait("4 rollouts")
        if size == NARROW:
            page.get_by_text("Filter by").click()
        page.get_by_role("button", name=f"{EVIL} 1").click()
        tab.wait("1 rollout")
        row = page.locator("table.rollouts tbody tr")
        assert "good" in row.inner_text() and "second line" in row.inner_text()
        assert page.evaluate("window.pwned") is None and page.locator("main img").count() == 0
        assert accessibility_violations(page) == [] and tab.overflow <= 0
        page = tab.open("rollout?run=one&line=2")
        page.get_by_role("button", name="remove the tag good").click()
        page.get_by_role("button", name="remove the tag good").wait_for(state="detached")
        assert tab.page_errors == []
    annotations = Annotations(runs / "one").rollouts[(None, "key1", 0)]
    assert annotations == ((EVIL,), f"{EVIL}\nsecond line")


def test_selected_runs_get_a_tag_and_the_table_is_filtered_by_it(browser: Any, runs: Path):
    with serve_viewer(runs, "--annotate") as url:
        tab = Tab(browser, url)
        page = tab.open("?pick=one&pick=other")
        page.get_by_label("Tag selected runs").fill("keep")
        page.wait_for_timeout(4500)  # the table is rendered again in this time
        assert page.get_by_label("Tag selected runs").input_value() == "keep"
        page.get_by_role("button", name="Add").click()
        page.locator("tbody .tag").nth(1).wait_for()
        assert accessibility_violations(page) == [] and tab.overflow <= 0
        page = tab.open("?pick=other")
        page.get_by_role("button", name="remove the tag keep").click()
        page.locator("tbody .tag").nth(1).wait_for(state="detached")
        page.locator('select[data-key="tag"]').select_option("keep")
        page.locator("tbody tr").nth(1).wait_for(state="detached")
        assert "one" in page.locator("tbody").inner_text() and tab.page_errors == []


def test_without_the_flag_annotations_are_shown_but_cannot_be_changed(browser: Any, runs: Path):
    annotate(runs / "one", Change(["good"], note="see this", rollout=RolloutId("key0", 1)))
    annotate(runs / "one", Change(["keep"]))
    with serve_viewer(runs) as url:
        tab = Tab(browser, url)
        page = tab.open("rollout?run=one&line=1")
        assert page.locator("aside .tag").inner_text() == "good"
        assert page.locator("aside .remark").inner_text() == "see this"
        assert page.locator("textarea, .tagging").count() == 0 and accessibility_violations(page) == []
        page = tab.open("?pick=one")
        assert page.locator("tbody .tag").inner_text() == "keep" and page.locator(".tagging").count() == 0
        request = "{method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'}"
        status = page.evaluate(f"fetch('/api/annotate', {request}).then((answer) => answer.status)")
        assert status == 403
