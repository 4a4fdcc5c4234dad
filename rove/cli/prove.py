"""What `rove demo ENV --prove MODEL` does: a player in every line of play, as numbers, a table and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.table import Table

from rove.cli.answerers import make_client
from rove.cli.common import run_async
from rove.envs.loading import load_environment
from rove.envs.multi_turn import MultiTurnEnv
from rove.errors import ConfigError
from rove.lines import Line, Lined, Proof, every_line, prove, values_of
from rove.messages import as_messages, text_of
from rove.protocols import Client, Sampling


class Goals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What mastery is, and what of it the table shows: `[proof]` of a demo.toml."""

    values: list[str]
    """Reward functions and metrics of 0 or 1."""
    never: list[str] = []
    """Those of them that must be 0 in every line."""
    expected: dict[str, float] = {}
    """The least mean against a uniformly random opponent."""
    checks: dict[str, float] = {}
    """The least share of what was there that was seen."""
    max_tokens: int | None = None
    """In one answer."""

    def failed_in(self, env: Lined, line: Line) -> list[str]:
        """What a player does in one line that it should not."""
        values = values_of(line.record)
        failed = {name: True for name in self.never if values[name]}
        for step in line.record.steps:
            seen = env.check_answer(as_messages(step.prompt), text_of(step.completion[0]))
            failed |= {name: True for name in self.checks if not seen.get(name, True)}
        return list(failed)

    def missed(self, proof: Proof) -> list[str]:
        """What a player lacks, in words; nothing when it masters the game."""
        found = [f"{name} in {proof.counts[name]} lines" for name in self.never if proof.counts[name]]
        for name, least in self.expected.items():
            if proof.expected[name] < least:
                found.append(f"{name} {100 * proof.expected[name]:.2f} % against random, {100 * least:g} wanted")
        for name, least in self.checks.items():
            check = proof.checks.get(name)
            if check is not None and check.seen < least * check.there:
                found.append(f"{name} {check.seen} of {check.there}, {100 * least:g} % wanted")
        return found


def run_proof(env_id: str, model: str, goals: Goals, temperature: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """Play every line with a player's best moves, or those that it draws at a temperature; what `--json` shows of it.

    Raises:
        ConfigError: no such player or environment, or one without lines.
    """
    env = load_environment(env_id)
    if not (isinstance(env, MultiTurnEnv) and isinstance(env, Lined)):
        raise ConfigError(f"environment '{env_id}' cannot be played line by line (see rove.lines.Lined)")

    async def play(client: Client) -> list[Line]:
        try:
            sampling = Sampling(temperature=temperature, max_tokens=goals.max_tokens)
            return await every_line(env, client, sampling, model, seed)
        finally:
            await client.close()

    lines = run_async(play(make_client(model, env)))
    proof = prove(env, lines)
    told = [_told(line, goals.failed_in(env, line)) for line in lines]
    failed = [line for line in told if line["failed"]]
    return {"model": model, **msgspec.to_builtins(proof), "missed": goals.missed(proof), "failed_lines": failed}


def _told(line: Line, failed: Sequence[str]) -> dict[str, Any]:
    return {
        "opening": line.record.info,
        "replies": list(line.replies),
        "answers": [text_of(step.completion[0]) for step in line.record.steps],
        "probability": line.probability,
        "failed": failed,
    }


def proof_table(goals: Goals, proofs: Mapping[str, Mapping[str, Any]]) -> Table:
    """A column per player, by name."""
    table = Table(title="every line of play, greedy", title_justify="left")
    table.add_column("")
    for player in proofs:
        table.add_column(player, justify="right", overflow="fold")
    seen = list(proofs.values())
    table.add_row("lines", *(str(proof["lines"]) for proof in seen))
    for name in goals.values:
        table.add_row(f"  {name}", *(str(proof["counts"][name]) for proof in seen))
    table.add_section()
    for name in dict.fromkeys(name for proof in seen for name in proof["checks"]):
        checks = [proof["checks"].get(name, {"seen": 0, "there": 0}) for proof in seen]
        table.add_row(name, *(f"{check['seen']}/{check['there']}" for check in checks))
    table.add_section()
    table.add_row("[dim]against a random opponent, exact, %[/dim]")
    for name in goals.values:
        table.add_row(f"  {name}", *(f"{100 * proof['expected'][name]:.2f}" for proof in seen))
    return table


def verdict(proof: Mapping[str, Any]) -> str:
    """Mastered or not, and why not."""
    missed = proof["missed"]
    return f"[yellow]not mastered: {'; '.join(missed)}[/yellow]" if missed else "[green]mastered: proven[/green]"
