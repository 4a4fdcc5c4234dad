"""`rove play --cases`: games that were kept, played again."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from rove.cli.common import run_async
from rove.core.errors import RunError
from rove.core.protocols import Client, SamplingParams
from rove.envs.environment import Environment
from rove.games.replay_cases import ReplayCase, run_replay_cases
from rove.runs.run import Run
from rove.viewer.format import number
from rove.viewer.play_session import OWN_ROLES


def run_cases(
    env: Environment, client: Client, model: str, sampling: SamplingParams, folder: Path, console: Console
) -> int:
    """Play the games of a run folder again and print how they go now; returns how many go worse.

    Raises:
        RunError: the folder is no run, or has no games to play.
    """
    run = Run(folder)
    told = run.config()["identity"].get("role", "")
    role = "" if told in OWN_ROLES else str(told)

    async def play() -> list[ReplayCase]:
        try:
            games = run_replay_cases(env, client, run.finished(), model=model, sampling=sampling, role=role)
            return [case async for case in games]
        finally:
            await client.close()
            await env.tear_down()

    cases = run_async(play())
    if not cases:
        raise RunError(f"{folder} has no games; keep some: rove play ENV -m MODEL --web --run-dir {folder}")
    console.print(cases_table(cases))
    worse = sum(case.is_worse for case in cases)
    console.print(f"{worse} of {len(cases)} games go worse than when they were kept")
    return worse


def cases_table(cases: list[ReplayCase]) -> Table:
    """A row for each game: its reward then and now."""
    table = Table(title="games played again")
    for name in ("game", "example", "then", "now", ""):
        table.add_column(name, justify="right" if name else "left")
    for place, case in enumerate(cases, start=1):
        now = "failed" if case.now.reward is None else number(case.now.reward)
        better = case.now.reward is not None and case.now.reward > (case.then.reward or 0.0)
        told = "worse" if case.is_worse else "better" if better else "the same"
        table.add_row(str(place), str(case.then.example_id), number(case.then.reward or 0.0), now, told)
    return table
