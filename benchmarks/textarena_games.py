"""Test which base games of TextArena work offline with `TextArenaEnv`, and why the others fail.

    python benchmarks/textarena_games.py [--python OTHER_PYTHON] [--out docs/textarena_games.md]

A game works if a policy with random moves reaches its end, an invalid move that loses, or 60 turns without an error.
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
from rove import TextArenaEnv
from rove.core.records import ErrorInfo
from rove.integrations.environments.text_arena import random_bracket

MAX_TURNS = 60
CALL_TIMEOUT_S = 20.0


def base_games(python: str | None) -> list[str]:
    """Return one id per game, the shortest of its variants."""
    probe = TextArenaEnv("", python=python)
    probe.workers.start()
    variants: dict[str, list[str]] = defaultdict(list)
    for name, code in probe.workers.setup_result.items():
        if not name.endswith(("-raw", "-train")):
            variants[code].append(name)
    probe.workers.close()
    return sorted(min(names, key=lambda name: (len(name), name)) for names in variants.values())


def random_policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Return a random move of those in the prompt, or a random word if it shows none."""
    move = random_bracket(messages, state, rng)
    return move if move != "[0]" else rng.choice(["[0]", "[1]", "[up]", "[pass]", "[bid 1]"])


def try_game(game: str, python: str | None) -> tuple[bool, str, int]:
    """Return whether a game works, its result or error, and its number of roles."""
    env = TextArenaEnv(game, 1, max_turns=MAX_TURNS, call_seconds=CALL_TIMEOUT_S, python=python)
    [record] = env.generate_sync(vf.ScriptedClient(random_policy), limits={"timeout_seconds": 120.0})
    roles = 1 + len(record.model_roles)
    if record.error is not None:
        return False, reason(record.error), roles
    assert record.scores is not None
    end = "an invalid move" if record.scores.metrics["invalid_move"] else "finished"
    turns = f"{len(record.steps)} turn{'' if len(record.steps) == 1 else 's'}"
    return True, end if record.scores.metrics["finished"] else turns, roles


def head() -> str:
    """Return the text above the table."""
    python = ".".join(map(str, sys.version_info[:2]))
    introduction = (
        "This page lists the base games of TextArena and shows which of them work offline. "
        "The script `benchmarks/textarena_games.py` wrote this page. "
        f"With Python {python} and without a network, the script played each game with random moves for up to {MAX_TURNS} turns. "
        'In the column "result", "an invalid move" means that an invalid move lost the game, as is usual with random moves.'
    )
    return f"# TextArena's games\n\n{introduction}\n\n"


def reason(error: ErrorInfo) -> str:
    """Return the error of a game on one line, at most 160 characters, without local paths."""
    if "nltk" in error.message.lower() or "nltk" in error.traceback:
        return "needs NLTK data that it would download"
    lines = [line.strip() for line in error.message.splitlines() if re.search(r"\w", line)]
    first = re.sub(r"'?/\S*/site-packages/", "'…/", lines[0] if lines else "")
    return f"{error.type}: {first}"[:160].replace("|", "/")


def main() -> None:
    """Try all games, print the results and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    started, rows = time.monotonic(), []
    for game in base_games(args.python):
        works, result, roles = try_game(game, args.python)
        rows.append((works, game, roles, result))
        print(f"{'yes' if works else 'NO '} {game}: {result}", flush=True)
    count = sum(works for works, *_ in rows)
    lines = [f"Of {len(rows)} base games, {count} work offline.", "", "| game | roles | result |", "|---|---|---|"]
    lines += [f"| {game} | {roles} | {result} |" for works, game, roles, result in rows if works]
    lines += ["", "| game that does not work offline | why |", "|---|---|"]
    lines += [f"| {game} | `{result}` |" for works, game, _, result in rows if not works]
    print(f"{count} of {len(rows)} games work; {time.monotonic() - started:.0f} s")
    if args.out:
        args.out.write_text(head() + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
