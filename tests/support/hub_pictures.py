"""Take the guide's pictures of a hub's pages, docs/hub/*.png: list, card, leaderboard and run in two themes and two widths.

    make hub-pictures        # or: python tests/support/hub_pictures.py

The script pushes example environments with evaluations of their scripted policies to a temporary hub.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import NARROW, WIDE, Tab, chromium, serve_command
from viewer_pictures import small

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/hub"
RUNS = {
    "tictactoe": ["optimal", "teacher", "random"],
    "reverse_text": ["oracle"],
    "double_check": [],
    "word_game": [],
    "lookup": [],
}
"""Environment → scripted policies whose runs are pushed with it."""
MAX_PICTURE_BYTES = 150_000
"""Maximum size of a picture."""


def rove(folder: Path, *words: str, **env: str) -> str:
    """Run a command and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "rove.cli.main", *words],
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def push_environments(folder: Path, url: str, token: str) -> None:
    """Push the environments, with their runs."""
    env = {"ROVE_HUB": url, "ROVE_HUB_TOKEN": token}
    for name, players in RUNS.items():
        source, options = ROOT / "environments" / name, []
        for player in players:
            run = f"runs/{name}-{player}"
            arguments = ("-m", f"scripted:{player}", "-n", "60", "-r", "2", "--run-dir", run)
            rove(folder, "eval", name, "--env-dir", str(source.parent), *arguments)
            options += ["--with-run", run]
        rove(folder, "push", str(source), "--yes", *options, **env)


def main() -> None:
    """Take all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder_name, chromium() as browser:
        folder = Path(folder_name)
        token = json.loads(rove(folder, "hub", "token", "rove", "--json"))["token"]
        with serve_command(folder, "hub", "serve", "--name", "our hub") as url:
            push_environments(folder, url, token)
            for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", NARROW), ("dark", NARROW)):
                tab = Tab(browser, url, size, scheme)
                for name in ("list", "card", "leaderboard", "run"):
                    tab.page.goto(f"{url}/rove/tictactoe/" if name != "list" else url)
                    if name == "run":
                        tab.page.locator(".leaderboard a").first.click()
                        tab.page.locator("details.rollout summary").first.click()
                    if name == "leaderboard":
                        tab.page.get_by_role("heading", name="Leaderboard").evaluate("one => one.scrollIntoView()")
                    file = FOLDER / f"{name}-{scheme}-{size[0]}.png"
                    tab.page.screenshot(path=file)
                    small(file)
                    assert file.stat().st_size < MAX_PICTURE_BYTES, f"{file} has {file.stat().st_size:,} bytes"
                    assert tab.overflow <= 0 and tab.page_errors == [], (file, tab.overflow, tab.page_errors)
                tab.context.close()
    subprocess.run(["du", "-ch", *sorted(FOLDER.glob("*.png"))], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
