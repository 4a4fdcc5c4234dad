"""Take the guide's pictures of `rove view`, docs/viewer/*.png: every page in two themes and two widths.

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

from browser import NARROW, WIDE, Tab, chromium, serve_command, serve_viewer

from rove.core.records import RolloutRecord
from rove.runs.run import Run
from rove.runs.token_stats import read_tokens
from rove.viewer.api import AnnotationRequest, add_annotation
from rove.viewer.report import write_report
from rove.viewer.run_store import RunStore

FOLDER = Path(__file__).resolve().parents[2] / "docs/viewer"
MAX_PICTURE_BYTES = 150_000
"""Maximum size of a picture."""
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
    """Reduce a picture to 128 colors if Pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def take_picture(tab: Tab, name: str) -> None:
    """Take a picture of a tab."""
    tab.page.wait_for_timeout(200)
    size = tab.page.viewport_size["width"]
    file = FOLDER / f"{name}-{tab.scheme}-{size}.png"
    tab.page.screenshot(path=file)
    small(file)
    assert file.stat().st_size < MAX_PICTURE_BYTES, f"{file} has {file.stat().st_size:,} bytes"
    assert tab.overflow <= 0, f"{file} is {tab.overflow} pixels too wide"
    assert tab.page_errors == [], tab.page_errors


def line_with_token_stats(run: Run, step: int) -> int:
    """Return the line of a rollout in a step that has recorded token statistics."""
    rollout = read_tokens(run.path, step)[0]
    return run.ledger()[0][step, rollout.example_key, rollout.rollout_index].number


def line_with_most_versions(run: Run) -> int:
    """Return the line of the rollout that was sampled with the most policy versions."""

    def versions(record: RolloutRecord) -> int:
        return len({version for step in record.steps if step.tokens for version, _ in step.tokens.versions})

    return max(enumerate(map(versions, run.rollouts())), key=lambda pair: pair[1])[0]


def annotate_run(runs: Path) -> None:
    """Add a tag and a note to the first rollout of `teacher`."""
    add_annotation(
        RunStore(runs, annotate=True),
        AnnotationRequest("teacher", 0, ["good"], note="Blocks the diagonal and forces a draw."),
    )


def play_tictactoe(tab: Tab) -> None:
    """Play tic-tac-toe until each side has moved once."""
    tab.page.locator(".board").first.wait_for()
    if tab.page.get_by_role("button", name="square 4").is_visible():
        tab.page.get_by_role("button", name="square 4").click()
    tab.page.locator("article.assistant").first.wait_for()


def play_word_game(tab: Tab) -> None:
    """Make two guesses in the word game."""
    box = tab.page.get_by_label("guess")
    box.wait_for()
    for number, word in enumerate(("crane", "stole")):
        if tab.page.locator("article.assistant").count() == number:
            box.fill(word)
            box.press("Enter")
            tab.page.locator("article.assistant").nth(number).wait_for()
            box.wait_for()


def main(runs: Path, names: Sequence[str]) -> None:
    """Take the named pictures, or all of them."""
    FOLDER.mkdir(exist_ok=True)
    selected = names or (*PAGES, "report", "play", "word")
    against = ("play", "tictactoe", "-m", "scripted:optimal", "--web", "--seed", "1")
    word = ("play", "word_game", "--web", "--seed", "3")
    lines = {"line": line_with_token_stats(Run(runs / "rl"), 5)}
    if "versions" in selected:
        lines["mixed"] = line_with_most_versions(Run(runs / "rl-async"))
    annotate_run(runs)
    report = write_report(Run(runs / "teacher"), runs / "teacher/report.html", 20).as_uri()
    with ExitStack() as stack:
        browser = stack.enter_context(chromium())
        url = stack.enter_context(serve_viewer(runs, "--annotate"))
        games = {
            "play": (serve_command(runs, *against), play_tictactoe),
            "word": (serve_command(runs, *word), play_word_game),
        }
        games = {name: (stack.enter_context(game), begin) for name, (game, begin) in games.items() if name in selected}
        for scheme in ("light", "dark"):
            for size in (WIDE, NARROW):
                tab = Tab(browser, url, size, scheme)
                for name in [name for name in PAGES if name in selected]:
                    tab.open(PAGES[name].format(**lines))
                    if name == "noted":
                        tab.page.locator(".noting").scroll_into_view_if_needed()
                    take_picture(tab, name)
                tab.context.close()
                if "report" in selected:
                    sent = Tab(browser, report, size, scheme)
                    sent.open("")
                    take_picture(sent, "report")
                    sent.context.close()
                for name, (address, begin) in games.items():
                    role = Tab(browser, address, size, scheme)
                    role.page.goto(address)
                    begin(role)
                    take_picture(role, name)
                    role.context.close()
    subprocess.run(["du", "-ch", *sorted(FOLDER.glob("*.png"))], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
