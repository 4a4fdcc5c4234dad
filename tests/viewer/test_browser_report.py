"""Test reports in a browser, opened as files: layout, accessibility, hostile content and no network access."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import NARROW, WIDE, Tab, accessibility_violations, chromium
from run_folders import make_record, make_scores, write_run_folder

from rove.runs.run import Run
from rove.viewer.report import write_report
from tests.viewer.test_report import trained

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EVIL = '<script>window.pwned = 1</script></script><img src="https://evil.example/x" onerror="window.pwned = 2">\u202egnp<!--'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def open_report(browser: Any, run: Run, path: Path, size: tuple[int, int] = WIDE, scheme: str = "light") -> Tab:
    tab = Tab(browser, write_report(run, path, 20).as_uri(), size, scheme)
    tab.open("")
    return tab


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_reports_fit_and_are_accessible(browser: Any, tmp_path: Path, size: tuple[int, int], scheme: str):
    runs = {"evaluation": Run(ROOT / "docs/example_runs/rl"), "training": trained(tmp_path / "rl")}
    for name, run in runs.items():
        tab = open_report(browser, run, tmp_path / f"{name}.html", size, scheme)
        tab.page.locator("details.rollout summary").first.click()
        tab.page.locator("article.message").first.wait_for()
        assert accessibility_violations(tab.page) == [], name
        assert tab.overflow <= 0 and tab.page_errors == [], name
        tab.context.close()


def test_the_report_of_an_evaluation_shows_scores_examples_and_rollouts(browser: Any, tmp_path: Path):
    tab = open_report(browser, Run(ROOT / "docs/example_runs/rl"), tmp_path / "report.html")
    page = tab.page
    assert page.locator("h1").inner_text() == "tictactoe · models/rl"
    assert "0.683 [0.667, 0.700]" in page.locator(".cards").inner_text()
    assert page.locator("table.values tr").nth(2).inner_text().split() == ["win", "0.483", "[0.467,", "0.500]", "1"]
    assert page.locator(".histogram").count() >= 7 and page.locator("details.rollout").count() == 20
    page.get_by_role("button", name="mean reward").click()
    page.get_by_role("button", name="mean reward").press("Enter")
    first = page.locator("table.examples tbody tr").first
    assert first.locator("td").nth(3).inner_text() == "0.7"
    first.get_by_role("link").focus()
    page.keyboard.press("Enter")
    rollout = page.locator("details.rollout[open]")
    rollout.wait_for()
    assert rollout.count() == 1 and "the environment sent a final response" in rollout.inner_text()
    assert rollout.locator(".board").count() >= 3
    page.get_by_text("settings", exact=False).last.click()
    assert tab.page_errors == []


def test_the_report_of_training_shows_curves_and_alerts(browser: Any, tmp_path: Path):
    tab = open_report(browser, trained(tmp_path / "rl"), tmp_path / "report.html")
    page = tab.page
    assert page.locator('.curves[data-key="reward"]').get_attribute("data-points") == "3"
    assert page.locator('.curves[data-key="held-out reward"] canvas').count() == 1
    assert "alert(1)" in page.locator(".alerts").inner_text() and page.locator(".alerts a").count() == 0
    page.locator('.curves[data-key="reward"]').focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert "step 2: 0.5" in page.locator(".charts output").first.inner_text()
    assert page.locator("details.rollout").count() == 4 and tab.page_errors == []


def test_hostile_content_of_a_run_is_shown_as_text(browser: Any, tmp_path: Path):
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    completion = [{"role": EVIL, "content": EVIL, "tool_calls": [call, EVIL], "reasoning_content": EVIL}]
    common: dict[str, Any] = {
        "completion": completion,
        "stop_condition": EVIL,
        "example_key": EVIL,
        "info": {EVIL: EVIL},
    }
    hostile = [make_record(0, i, step=1, scores=make_scores(i, **{EVIL: float(i)}), **common) for i in range(2)]
    for kind in ("eval", "rl"):
        with write_run_folder(tmp_path / kind, hostile, kind=kind, env=EVIL, model=EVIL) as run:
            run.append_metrics({"step": 1, "reward/mean": 0.5, f"eval/{EVIL}/reward/mean": 1.0})
            run.append_alert({"step": 1, "id": EVIL, "text": EVIL})
        tab = open_report(browser, run, tmp_path / f"{kind}.html")
        for element in tab.page.locator("details").all():
            element.evaluate("(fold) => { fold.open = true; }")
        assert tab.page.evaluate("window.pwned") is None
        assert tab.page.evaluate("document.querySelectorAll('script, img, iframe').length") == 2
        assert tab.page.locator("main").inner_text().count("window.pwned = 1") >= 12
        assert tab.overflow <= 0 and tab.page_errors == []
        tab.context.close()
