"""The guide's pictures of `rove view`, docs/viewer/*.png: every page, light and dark, wide and narrow.

    make viewer-pictures RUNS=runs        # or: python tests/viewer_pictures.py RUNS

RUNS holds the runs `teacher` and `optimal` (of `rove eval tictactoe`) and `rl` (of `rove rl tictactoe`); docs/viewer.md has the
commands.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from browser import NARROW, WIDE, Tab, chromium, serving, viewing

from rove.runs import Run
from rove.viewer.report import write_report

FOLDER = Path(__file__).resolve().parents[1] / "docs/viewer"
MOST = 150_000
"""Bytes of a picture."""
PAGES = {
    "runs": "?pick=teacher&pick=optimal",
    "rollouts": "rollouts?run=teacher&is.score.lost=1",
    "rollout": "rollout?run=rl&line=2000",
    "siblings": "rollout?run=rl&line=2000&tab=group",
    "tokens": "rollout?run=rl&line=300&tab=tokens",
    "training": "training?run=rl",
    "compare": "compare?a=teacher&b=optimal",
}


def small(path: Path) -> None:
    """A picture of at most 256 colours, where Pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def take(tab: Tab, name: str) -> None:
    """A picture of what a tab shows."""
    tab.page.wait_for_timeout(200)
    size = tab.page.viewport_size["width"]
    file = FOLDER / f"{name}-{tab.scheme}-{size}.png"
    tab.page.screenshot(path=file)
    small(file)
    assert file.stat().st_size < MOST, f"{file} has {file.stat().st_size:,} bytes"
    assert tab.overflow <= 0, f"{file} is {tab.overflow} pixels too wide"
    assert tab.trouble == [], tab.trouble


def main(runs: Path) -> None:
    """Take all pictures."""
    FOLDER.mkdir(exist_ok=True)
    game = ("play", "tictactoe", "-m", "scripted:optimal", "--web", "--seed", "1")
    report = write_report(Run(runs / "rl"), runs / "rl/report.html", 20).as_uri()
    with chromium() as browser, viewing(runs, "--annotate") as url, serving(runs, *game) as table:
        for scheme in ("light", "dark"):
            for size in (WIDE, NARROW):
                tab = Tab(browser, url, size, scheme)
                for name, place in PAGES.items():
                    tab.open(place)
                    take(tab, name)
                sent = Tab(browser, report, size, scheme)
                sent.open("")
                take(sent, "report")
                sent.context.close()
                seat = Tab(browser, table, size, scheme)
                seat.page.goto(table)
                if seat.page.get_by_role("button", name="square 4").is_visible():
                    seat.page.get_by_role("button", name="square 4").click()
                seat.page.locator("article.assistant").first.wait_for()
                take(seat, "play")
                tab.context.close()
                seat.context.close()
    subprocess.run(["du", "-ch", *sorted(FOLDER.glob("*.png"))], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
