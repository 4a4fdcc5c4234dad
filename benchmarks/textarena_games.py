"""Every base game of TextArena through `TextArenaEnv`, offline: which can be played, which not, and why.

    python benchmarks/textarena_games.py [--python OTHER_PYTHON] [--out docs/textarena_games.md]

A game counts as played when a random player gets to its end, to an invalid move that loses, or through 60 turns.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

import rove as vf
from rove.core.records import ErrorInfo
from rove.integrations.environments.text_arena import TextArenaEnv, random_bracket

TURNS = 60
SECONDS = 20.0


def base_games(python: str | None) -> list[str]:
    """One id per game: the shortest of its variants."""
    probe = TextArenaEnv("", python=python)
    probe.workers.start()
    variants: dict[str, list[str]] = defaultdict(list)
    for name, code in probe.workers.setup_result.items():
        if not name.endswith(("-raw", "-train")):
            variants[code].append(name)
    probe.workers.close()
    return sorted(min(names, key=lambda name: (len(name), name)) for names in variants.values())


def mover(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A random move of those shown; a word where none is."""
    move = random_bracket(messages, state, rng)
    return move if move != "[0]" else rng.choice(["[0]", "[1]", "[up]", "[pass]", "[bid 1]"])


def outcome(game: str, python: str | None) -> tuple[bool, str, int]:
    """Whether a game can be played, how it ended, and with how many players."""
    env = TextArenaEnv(game, 1, max_turns=TURNS, call_seconds=SECONDS, python=python)
    [record] = env.generate_sync(vf.ScriptedClient(mover), limits={"timeout_seconds": 120.0})
    players = 1 + len(record.model_roles)
    if record.error is not None:
        return False, reason(record.error), players
    assert record.scores is not None
    ended = "an invalid move" if record.scores.metrics["invalid_move"] else "finished"
    turns = f"{len(record.steps)} turn{'' if len(record.steps) == 1 else 's'}"
    return True, ended if record.scores.metrics["finished"] else turns, players


def head() -> str:
    """Return the text above the table."""
    python = ".".join(map(str, sys.version_info[:2]))
    about = (
        "This page lists the base games of TextArena and shows which of them work offline. "
        "The script `benchmarks/textarena_games.py` wrote this page. "
        f"With Python {python} and without a network, the script played each game with random moves for up to {TURNS} turns. "
        'In the column "result", "an invalid move" means that an invalid move lost the game, as is usual with random moves.'
    )
    return f"# TextArena's games\n\n{about}\n\n"


def reason(error: ErrorInfo) -> str:
    """Why a game failed, on one line and without the places where things lie here."""
    if "nltk" in error.message.lower() or "nltk" in error.traceback:
        return "needs NLTK data that it would download"
    lines = [line.strip() for line in error.message.splitlines() if re.search(r"\w", line)]
    said = re.sub(r"'?/\S*/site-packages/", "'…/", lines[0] if lines else "")
    return f"{error.type}: {said}"[:160].replace("|", "/")


def main() -> None:
    """Play them all and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began, rows = time.monotonic(), []
    for game in base_games(given.python):
        played, told, players = outcome(game, given.python)
        rows.append((played, game, players, told))
        print(f"{'yes' if played else 'NO '} {game}: {told}", flush=True)
    count = sum(played for played, *_ in rows)
    lines = [f"Of {len(rows)} base games, {count} work offline.", "", "| game | roles | result |", "|---|---|---|"]
    lines += [f"| {game} | {players} | {told} |" for played, game, players, told in rows if played]
    lines += ["", "| game that does not work offline | why |", "|---|---|"]
    lines += [f"| {game} | `{told}` |" for played, game, _, told in rows if not played]
    print(f"{count} of {len(rows)}; {time.monotonic() - began:.0f} s")
    if given.out:
        given.out.write_text(head() + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
