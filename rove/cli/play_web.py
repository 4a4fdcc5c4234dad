"""`rove play --web`: games in the browser."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from rove.cli.common import hint
from rove.core.plain import JsonMapping
from rove.core.protocols import Client, SamplingParams
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.envs.multi_turn import TwoPlayer, env_with_opponent
from rove.rubrics.parser import XMLParser
from rove.runs.run import Run
from rove.server import listening
from rove.stages.naming import run_folder
from rove.utils.event_loop import run_async
from rove.viewer.play_roles import PlayRoles, RoleOptions, one_game
from rove.viewer.play_session import PlayClient, PlaySession, make_play_app

FOLDER_SUFFIXES: Mapping[str, str] = {"opponent": "against-model", "model": "by-person", "none": "watched"}
"""Suffixes of run folders for games in roles other than the first, so that a person's games stay separate from the model's."""


def play_in_browser(
    env: Environment,
    env_id: str,
    client: Client | None,
    model: str | None,
    watch: bool,
    role_options: RoleOptions,
    role_clients: Mapping[str, Client],
    sampling: SamplingParams,
    seed: int | None,
    port: int,
    run_dir: Path | None,
    console: Console,
) -> None:
    """Serve games until Ctrl-C; `seed` chooses the first example, and increases by one per game."""
    session = set_up_session(env, env_id, model, watch, role_options.person)
    kept_in: list[Path] = []

    def keep(record: RolloutRecord) -> str:
        config = {"env": env_id, "model": "a person" if session.role == "model" else model, "role": session.role}
        config |= {"model_roles": role_options.models} if role_options.models else {}
        folder = run_dir
        if run_dir is not None and session.role != session.model_roles[0]:
            folder = run_dir.with_name(f"{run_dir.name}-{folder_of(session.role)}")
        kept_in.append(keep_game(folder, config, record))
        return str(kept_in[-1])

    async def games() -> None:
        player = PlayClient(session, client)
        roles = PlayRoles(
            role_clients, lambda role: PlayClient(session, None, role) if session.is_person_role(role) else None
        )
        chosen = random.randrange(1 << 30) if seed is None else seed
        try:
            async with listening(make_play_app(session, keep), "127.0.0.1", port) as runner:
                console.print(f"play at http://127.0.0.1:{runner.addresses[0][1]}/ (Ctrl-C stops it)", soft_wrap=True)
                while True:
                    game = env
                    if isinstance(env, TwoPlayer):
                        game = env_with_opponent(env, session.ask if session.role == "opponent" else None)
                    record = await one_game(game, player, model or "", sampling, chosen, roles)
                    if client is not None:
                        session.add_roles(roles.used)
                    await session.finish(record)
                    chosen += 1
        finally:
            await player.close()
            await roles.close()
            await env.tear_down()

    try:
        run_async(games())
    except KeyboardInterrupt:
        console.print("stopped")
        for folder in dict.fromkeys(kept_in):
            hint(console, f"train on the recorded games: rove sft --data {folder} -m MODEL")


def folder_of(role: str) -> str:
    """Return the suffix of a run folder for games that a person played in a role."""
    named = re.sub(r"\W+", "-", role).strip("-")
    return FOLDER_SUFFIXES.get(role) or f"as-{named or 'any'}"


def set_up_session(
    env: Environment, env_id: str, model: str | None, watch: bool, person_roles: Sequence[str] = ()
) -> PlaySession:
    """Return the session of an environment: the roles that a person may play, and the fields of an answer."""
    roles: list[str] = ["none", "model"] if model is not None else ["model"]
    if model is not None and isinstance(env, TwoPlayer) and env.two_player:
        roles.insert(1 if watch else 0, "opponent")
    roles = list(dict.fromkeys([*person_roles, *roles]))
    parser = env.parser
    fields = parser.get_fields() if isinstance(parser, XMLParser) and env.message_type == "chat" else []
    answer = parser.answer_field if isinstance(parser, XMLParser) and parser.answer_field in fields else ""
    return PlaySession(env_id, model or "", roles, fields if answer else [], answer)


def keep_game(run_dir: Path | None, config: JsonMapping, record: RolloutRecord) -> Path:
    """Append a game to a run folder; return the folder."""
    folder = run_folder(run_dir, "played", str(config["env"]), str(config["model"]), identity=config)
    with Run(folder) as run:
        run.start("eval", config, config)
        index = len(run.ledger()[0])  # a unique index, so that repeated games on one example are all recorded
        run.append_rollout(msgspec.structs.replace(record, rollout_index=index))
    return folder
