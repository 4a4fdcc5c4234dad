"""Evaluate models in every possible game, and show which goals they reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec
from rich.table import Table
from rich.text import Text

from rove.core.messages import as_messages, text_of
from rove.core.plain import JsonMapping, JsonObject
from rove.core.protocols import Client, SamplingParams
from rove.envs.loading import load_environment
from rove.rollouts.exhaustive import (
    ExhaustiveGame,
    Goals,
    Line,
    as_exhaustive_game,
    play_all_games,
    summarize,
    values_of,
)
from rove.stages.clients import make_client
from rove.stages.recipe import ExhaustiveConfig
from rove.utils.console import styled
from rove.utils.event_loop import run_async


def run_exhaustive(env_id: str, model: str, config: ExhaustiveConfig, device: str = "auto") -> JsonObject:
    """Evaluate a model's greedy policy in every possible game; return the result as `--json` shows it.

    Raises:
        ConfigError: There is no such model or environment, or it does not support exhaustive evaluation.
    """
    env = load_environment(env_id)
    game = as_exhaustive_game(env)

    # A greedy policy answers a position always alike, so each game has to be played once.
    sampling = SamplingParams.from_args({"temperature": 0.0, "max_tokens": config.max_tokens})

    async def play(client: Client) -> list[Line]:
        try:
            return await play_all_games(env, client, sampling, model)
        finally:
            await client.close()

    lines = run_async(play(make_client(model, env, device=device)))
    result = summarize(env, lines)
    rows = [_line_as_json(line, _failed_goals(game, line, config.goals)) for line in lines]
    failed_lines = [row for row in rows if row["failed"]]
    missed = [goal.text for goal in config.goals.missed(result)]
    return {"model": model, **msgspec.to_builtins(result), "missed": missed, "failed_lines": failed_lines}


def _failed_goals(game: ExhaustiveGame, line: Line, goals: Goals) -> list[str]:
    """Return the names of the goals that a game violates."""
    values = values_of(line.record)
    failed = [name for name in goals.never if values[name]]
    for step in line.record.steps:
        checks = game.check_answer(as_messages(step.prompt), text_of(step.completion[0]))
        failed += [name for name in goals.checks if not checks.get(name, True)]
    return list(dict.fromkeys(failed))


def _line_as_json(line: Line, failed: Sequence[str]) -> JsonObject:
    return {
        "opening": line.record.info,
        "replies": list(line.replies),
        "answers": [text_of(step.completion[0]) for step in line.record.steps],
        "probability": line.probability,
        "failed": failed,
    }


def exhaustive_table(config: ExhaustiveConfig, results: Mapping[str, JsonMapping]) -> Table:
    """Return a table with a column per model."""
    table = Table(title="every possible game, greedy", title_justify="left")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right", overflow="fold")
    columns = list(results.values())
    table.add_row("games", *(str(result["lines"]) for result in columns))
    for name in config.values:
        table.add_row(f"  {name}", *(str(result["counts"][name]) for result in columns))
    table.add_section()
    check_names = dict.fromkeys(chain.from_iterable(result["checks"] for result in columns))
    for name in check_names:
        checks = [result["checks"].get(name, {"taken": 0, "total": 0}) for result in columns]
        table.add_row(name, *(f"{check['taken']}/{check['total']}" for check in checks))
    table.add_section()
    table.add_row(styled(("exact means against a random opponent, %", "dim")))
    for name in config.values:
        table.add_row(f"  {name}", *(f"{100 * result['expected'][name]:.2f}" for result in columns))
    return table


def verdict(result: JsonMapping) -> Text:
    """Return a text about whether the model reached all goals, and which goals it missed."""
    missed = result["missed"]
    if missed:
        return styled((f"goals missed: {'; '.join(missed)}", "yellow"))
    return styled(("all goals reached", "green"))
