"""Evaluate models in every possible game, and show which goals they reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    sampling = SamplingParams.from_args({"temperature": 0.0, "max_tokens": config.max_tokens})

    async def play(client: Client) -> list[Line]:
        try:
            return await play_all_games(env, client, sampling, model)
        finally:
            await client.close()

    lines = run_async(play(make_client(model, env, device=device)))
    result = summarize(env, lines)
    shown = [_line_as_json(line, _failed_goals(game, line, config.goals)) for line in lines]
    failed, missed = [line for line in shown if line["failed"]], [one.text for one in config.goals.missed(result)]
    return {"model": model, **msgspec.to_builtins(result), "missed": missed, "failed_lines": failed}


def _failed_goals(game: ExhaustiveGame, line: Line, goals: Goals) -> list[str]:
    """Return the goals that one game violates."""
    values = values_of(line.record)
    failed = {name: True for name in goals.never if values[name]}
    for step in line.record.steps:
        seen = game.check_answer(as_messages(step.prompt), text_of(step.completion[0]))
        failed |= {name: True for name in goals.checks if not seen.get(name, True)}
    return list(failed)


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
    shown = list(results.values())
    table.add_row("games", *(str(result["lines"]) for result in shown))
    for name in config.values:
        table.add_row(f"  {name}", *(str(result["counts"][name]) for result in shown))
    table.add_section()
    for name in dict.fromkeys(name for result in shown for name in result["checks"]):
        checks = [result["checks"].get(name, {"seen": 0, "total": 0}) for result in shown]
        table.add_row(name, *(f"{check['seen']}/{check['total']}" for check in checks))
    table.add_section()
    table.add_row(styled(("exact means against a random opponent, %", "dim")))
    for name in config.values:
        table.add_row(f"  {name}", *(f"{100 * result['expected'][name]:.2f}" for result in shown))
    return table


def verdict(result: JsonMapping) -> Text:
    """Return whether the model reached all goals, and which it missed."""
    missed = result["missed"]
    if missed:
        return styled((f"goals missed: {'; '.join(missed)}", "yellow"))
    return styled(("all goals reached", "green"))
