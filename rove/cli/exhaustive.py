"""What `rove demo ENV --prove MODEL` does: a player in every line of play, as numbers, a table and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.table import Table

from rove.cli.clients import make_client
from rove.cli.common import run_async
from rove.core.messages import as_messages, text_of
from rove.core.protocols import Client, SamplingParams
from rove.envs.loading import load_environment
from rove.games.exhaustive import ExhaustiveGame, Goals, Line, as_exhaustive_game, play_every_line, summarize, values_of


class ProofConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is proven, and what of it the table shows: `[proof]` of a demo.toml."""

    values: list[str]
    """Reward functions and metrics of 0 or 1."""
    goals: Goals = Goals()
    """What mastery is."""
    max_tokens: int | None = None
    """In one answer."""


def run_proof(env_id: str, model: str, config: ProofConfig) -> dict[str, Any]:
    """Play every line with a player's best moves; what `--json` shows of it.

    Raises:
        ConfigError: no such player or environment, or one without lines.
    """
    env = load_environment(env_id)
    game = as_exhaustive_game(env)

    sampling = SamplingParams.from_args({"temperature": 0.0, "max_tokens": config.max_tokens})

    async def play(client: Client) -> list[Line]:
        try:
            return await play_every_line(env, client, sampling, model)
        finally:
            await client.close()

    lines = run_async(play(make_client(model, env)))
    proof = summarize(env, lines)
    told = [_told(line, _failed_in(game, line, config.goals)) for line in lines]
    failed, missed = [line for line in told if line["failed"]], [one.text for one in config.goals.missed(proof)]
    return {"model": model, **msgspec.to_builtins(proof), "missed": missed, "failed_lines": failed}


def _failed_in(game: ExhaustiveGame, line: Line, goals: Goals) -> list[str]:
    """What a player does in one line that it should not."""
    values = values_of(line.record)
    failed = {name: True for name in goals.never if values[name]}
    for step in line.record.steps:
        seen = game.check_answer(as_messages(step.prompt), text_of(step.completion[0]))
        failed |= {name: True for name in goals.checks if not seen.get(name, True)}
    return list(failed)


def _told(line: Line, failed: Sequence[str]) -> dict[str, Any]:
    return {
        "opening": line.record.info,
        "replies": list(line.replies),
        "answers": [text_of(step.completion[0]) for step in line.record.steps],
        "probability": line.probability,
        "failed": failed,
    }


def proof_table(config: ProofConfig, proofs: Mapping[str, Mapping[str, Any]]) -> Table:
    """A column per player, by name."""
    table = Table(title="every line of play, greedy", title_justify="left")
    table.add_column("")
    for player in proofs:
        table.add_column(player, justify="right", overflow="fold")
    seen = list(proofs.values())
    table.add_row("lines", *(str(proof["lines"]) for proof in seen))
    for name in config.values:
        table.add_row(f"  {name}", *(str(proof["counts"][name]) for proof in seen))
    table.add_section()
    for name in dict.fromkeys(name for proof in seen for name in proof["checks"]):
        checks = [proof["checks"].get(name, {"seen": 0, "there": 0}) for proof in seen]
        table.add_row(name, *(f"{check['seen']}/{check['there']}" for check in checks))
    table.add_section()
    table.add_row("[dim]against a random opponent, exact, %[/dim]")
    for name in config.values:
        table.add_row(f"  {name}", *(f"{100 * proof['expected'][name]:.2f}" for proof in seen))
    return table


def verdict(proof: Mapping[str, Any]) -> str:
    """Mastered or not, and why not."""
    missed = proof["missed"]
    return f"[yellow]not mastered: {'; '.join(missed)}[/yellow]" if missed else "[green]mastered: proven[/green]"
