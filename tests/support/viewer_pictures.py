"""The guide's pictures of `rove view`, docs/viewer/*.png: every page, light and dark, wide and narrow.

    make viewer-pictures RUNS=runs        # or: python tests/support/viewer_pictures.py RUNS [NAME]...

RUNS holds the runs `teacher` and `optimal` (of `rove eval tictactoe`), `rl` (of `rove rl`), `rl-high` (with a higher learning
rate) and `rl-async` (with `--max-off-policy-steps 4`); docs/viewer.md has the commands. This script tags and notes a rollout of
`teacher`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from browser import NARROW, WIDE, Tab, chromium, serving, viewing

from rove.core.records import RolloutRecord
from rove.runs.run import Run
from rove.runs.token_stats import read_tokens
from rove.viewer.api import AnnotationRequest, add_annotation
from rove.viewer.report import write_report
from rove.viewer.run_store import RunStore

FOLDER = Path(__file__).resolve().parents[2] / "docs/viewer"
MOST = 150_000
"""Bytes of a picture."""
PAGES = {
    "runs": "?base=teacher&pick=teacher&pick=optimal",
    "matrix": "?view=matrix",
    "overview": "run?run=rl",
    "settings": "settings?run=rl&with=rl-high",
    "rollouts": "rollouts?run=teacher&sort=reward",
    "reasons": "rollouts?run=teacher&why=1",
    "rollout": "rollout?run=rl&line=2000",
    "group": "rollout?run=rl&line=2000&tab=group",
    "tokens": "rollout?run=rl&line={line}&tab=tokens&color=entropy",
    "versions": "rollout?run=rl-async&line={mixed}&tab=tokens&color=version",
    "training": "training?run=rl&smooth=0.6",
    "overlay": "training?run=rl&run=rl-high",
    "compare": "compare?a=teacher&b=optimal",
    "noted": "rollout?run=teacher&line=0",
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


def known_line(run: Run, step: int) -> int:
    """A rollout of a step whose tokens the trainer knew."""
    kept = read_tokens(run.path, step)[0]
    return run.ledger()[0][step, kept.example_key, kept.rollout_index].number


def mixed_line(run: Run) -> int:
    """The rollout that the most versions of the weights have played."""

    def versions(record: RolloutRecord) -> int:
        return len({version for step in record.steps if step.tokens for version, _ in step.tokens.versions})

    return max(enumerate(map(versions, run.rollouts())), key=lambda one: one[1])[0]


def remark(runs: Path) -> None:
    """Tag the first rollout of `teacher`, and write a note on it."""
    add_annotation(
        RunStore(runs, annotate=True),
        AnnotationRequest("teacher", 0, ["good"], note="Blocks the diagonal and forces a draw."),
    )


def play(tab: Tab) -> None:
    """Tic-Tac-Toe, after a move of each side."""
    tab.page.locator(".board").first.wait_for()
    if tab.page.get_by_role("button", name="square 4").is_visible():
        tab.page.get_by_role("button", name="square 4").click()
    tab.page.locator("article.assistant").first.wait_for()


def guess(tab: Tab) -> None:
    """The word game, after two guesses."""
    box = tab.page.get_by_label("guess")
    box.wait_for()
    for number, word in enumerate(("crane", "stole")):
        if tab.page.locator("article.assistant").count() == number:
            box.fill(word)
            box.press("Enter")
            tab.page.locator("article.assistant").nth(number).wait_for()
            box.wait_for()


def main(runs: Path, names: Sequence[str]) -> None:
    """Take these pictures; all when none is named."""
    FOLDER.mkdir(exist_ok=True)
    wanted = names or (*PAGES, "report", "play", "word")
    against = ("play", "tictactoe", "-m", "scripted:optimal", "--web", "--seed", "1")
    word = ("play", "word_game", "--web", "--seed", "3")
    lines = {"line": known_line(Run(runs / "rl"), 5)}
    if "versions" in wanted:
        lines["mixed"] = mixed_line(Run(runs / "rl-async"))
    remark(runs)
    report = write_report(Run(runs / "teacher"), runs / "teacher/report.html", 20).as_uri()
    with ExitStack() as stack:
        browser = stack.enter_context(chromium())
        url = stack.enter_context(viewing(runs, "--annotate"))
        games = {"play": (serving(runs, *against), play), "word": (serving(runs, *word), guess)}
        games = {name: (stack.enter_context(game), begin) for name, (game, begin) in games.items() if name in wanted}
        for scheme in ("light", "dark"):
            for size in (WIDE, NARROW):
                tab = Tab(browser, url, size, scheme)
                for name in [name for name in PAGES if name in wanted]:
                    tab.open(PAGES[name].format(**lines))
                    if name == "noted":
                        tab.page.locator(".noting").scroll_into_view_if_needed()
                    take(tab, name)
                tab.context.close()
                if "report" in wanted:
                    sent = Tab(browser, report, size, scheme)
                    sent.open("")
                    take(sent, "report")
                    sent.context.close()
                for name, (address, begin) in games.items():
                    role = Tab(browser, address, size, scheme)
                    role.page.goto(address)
                    begin(role)
                    take(role, name)
                    role.context.close()
    subprocess.run(["du", "-ch", *sorted(FOLDER.glob("*.png"))], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
