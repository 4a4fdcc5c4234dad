"""`rove play --web`: the table, and the games at it."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from rich.console import Console

from rove.cli.common import hint, run_async, run_folder
from rove.cli.play import one_game
from rove.envs.environment import Environment
from rove.envs.multi_turn import TwoPlayer
from rove.protocols import Client, Sampling
from rove.records import RolloutRecord
from rove.runs import Run
from rove.server import listening
from rove.viewer.playing import AtTable, Seat, Table, make_table


def play_in_browser(
    env: Environment,
    env_id: str,
    client: Client | None,
    model: str | None,
    watch: bool,
    sampling: Sampling,
    seed: int | None,
    port: int,
    run_dir: Path | None,
    console: Console,
) -> None:
    """Games at a table until Ctrl-C; the first one of `seed`, each further one of a seed of its own."""
    seat: Seat = "model" if client is None else "none"
    if isinstance(env, TwoPlayer) and env.two_player and client is not None and not watch:
        seat = "opponent"
    table = Table(env_id, model or "", seat)
    if seat == "opponent" and isinstance(env, TwoPlayer):
        env.opponent = table.ask
    config = {"env": env_id, "model": model or "a person", "seat": seat}
    folder = run_folder(run_dir, "played", env_id, model or "person", identity=config)

    def keep(record: RolloutRecord) -> str:
        with Run(folder) as run:
            run.start("eval", config, config)
            index = len(run.ledger()[0])  # a number of its own, so that games on one example are all kept
            run.append_rollout(msgspec.structs.replace(record, rollout_index=index))
        return str(folder)

    async def games() -> None:
        at_table = AtTable(table, client)
        chosen = random.randrange(1 << 30) if seed is None else seed
        try:
            async with listening(make_table(table, keep), "127.0.0.1", port) as runner:
                console.print(f"play at http://127.0.0.1:{runner.addresses[0][1]}/ (Ctrl-C ends it)", soft_wrap=True)
                while True:
                    await table.finish(await one_game(env, at_table, model or "", sampling, chosen))
                    chosen += 1
        finally:
            await at_table.close()
            await env.tear_down()

    try:
        run_async(games())
    except KeyboardInterrupt:
        console.print("stopped")
        if (folder / "rollouts.jsonl").exists():
            hint(console, f"learn from the games that were kept: rove sft --data {folder} -m MODEL")
