"""Runs and rollouts as text for a terminal, with control characters made visible."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from rove.cli.tables import message_text
from rove.core.errors import ConfigError, nearest
from rove.statistics.format import interval, number, seconds, sparkline
from rove.utils import terminal_text
from rove.viewer.queries import SCORE_PREFIX, TAG

MAX_CELL_CHARS = 34
"""Maximum characters of a cell."""
OPERATORS = {">=": "from", "<": "to", "=": "is"}
STATUS = {"running": "bold blue", "complete": "green", "stopped": "yellow", "unreadable": "red"}
ROLES = ("system", "user", "assistant", "tool")
THINKING = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def inert(text: str) -> str:
    """Escape control characters, so that the terminal only displays the text; a tab becomes four spaces."""
    return terminal_text.inert(text).replace("\t", "    ")


def clipped(text: str, width: int = MAX_CELL_CHARS) -> str:
    """Return a text as one line for a cell, clipped to `width` characters."""
    line = " ".join(inert(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


class Filter(NamedTuple):
    """A filter of rollouts, as query parameters of the viewer."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, text: str, known: Sequence[str]) -> Filter:
        """Parse a filter, such as `reward>=0.5 stop=answered win=1 tag=good error=`.

        Args:
            text: Conditions separated by spaces; values with spaces are quoted.
            known: Names of all values of rollouts; the prefix "score." may be omitted.

        Raises:
            ConfigError: A condition has no operator, or an unknown name.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"invalid filter: {error}") from error
        return cls(tuple(_condition(word, [*known, TAG]) for word in words))

    def __str__(self) -> str:
        signs = {kind: sign for sign, kind in OPERATORS.items()}
        parts = [key.split(".", 1) for key, _ in self.pairs]
        return " ".join(
            shlex.quote(f"{name}{signs[kind]}{value}") if " " in value else f"{name}{signs[kind]}{value}"
            for (kind, name), (_, value) in zip(parts, self.pairs, strict=True)
        )

    def toggled(self, pair: tuple[str, str]) -> Filter:
        """Return the filter with a condition added, or removed if it was present."""
        left = tuple(one for one in self.pairs if one != pair)
        return Filter(left if len(left) < len(self.pairs) else (*left, pair))


def _condition(word: str, known: Sequence[str]) -> tuple[str, str]:
    found = re.match(r"([^<>=]+)(>=|<|=)(.*)", word, re.DOTALL)
    if found is None:
        raise ConfigError(f"'{word}' is not a condition; expected one like reward>=0.5, turns<4 or stop=answered")
    name, sign, value = found.groups()
    for candidate in (name, SCORE_PREFIX + name):
        if candidate in known:
            return f"{OPERATORS[sign]}.{candidate}", value
    raise ConfigError(f"rollouts have no '{name}'; {nearest(name, [one.removeprefix(SCORE_PREFIX) for one in known])}")


# Cells


def estimate(seen: Mapping[str, Any]) -> str:
    """Return an interval as text; "" without one."""
    found = interval(seen)
    return "" if found == "–" else found


def brief(value: float) -> str:
    """Return a duration for a cell."""
    return "< 1 ms" if value < 0.001 else f"{value * 1000:.0f} ms" if value < 1 else seconds(value)


def run_cells(run: Mapping[str, Any], picked: bool) -> list[Text]:
    """Return the cells of a run."""
    reward: Mapping[str, Any] = run.get("reward") or {}
    measured = f"{number(reward.get('mean'))} {estimate(reward)}".strip()
    if "curve" in run:
        measured = f"{'loss ' * (run['measure'] == 'loss')}{measured} {sparkline(run['curve'], 12)}"
        of = f" of {run['planned']:,}" if run.get("planned") else ""
        count = f"{run['steps']:,}{of} steps"
    else:
        count = f"{run.get('rollouts', 0):,}" + (f", {run['failed']:,} failed" if run.get("failed") else "")
    status = Text(run["status"], STATUS.get(run["status"], ""))
    name = Text(clipped(run["name"]))
    if run.get("trouble"):
        measured = clipped(run["trouble"])
    return [Text("●" if picked else " "), name, status, Text(measured), Text(count), _tags(run)]


def rollout_cells(row: Mapping[str, Any]) -> list[Text]:
    """Return the cells of a rollout."""
    step = "" if row["step"] is None else f" · step {row['step']}"
    reward = Text("failed", "red") if row["error"] else Text(number(row["reward"]), "bold")
    ended = Text(clipped(str(row["error"] or row["stop"] or "–").replace("_", " "), 22))
    if row["truncated"]:
        ended.append(" truncated", "red")
    numbers = (str(row["turns"]), f"{row['completion_tokens']:,}", brief(row["seconds"]))
    return [Text(f"{row['example']} · {row['rollout']}{step}"), reward, ended, *map(Text, numbers), _tags(row)]


def _tags(annotated: Mapping[str, Any]) -> Text:
    noted = " ✎" * bool(annotated.get("note"))
    return Text(clipped(", ".join(annotated.get("tags") or ())) + noted, "cyan")


def heading(
    about: Mapping[str, Any], chosen: Filter, found: Mapping[str, Any], offset: int, sort: str, down: bool
) -> Text:
    """Return the title of a list of rollouts."""
    title = Text().append(inert(about["name"]), "bold")
    title.append(f"  {about['status']}", STATUS.get(about["status"], ""))
    if about.get("why"):
        title.append(f": {clipped(about['why'])}")
    title.append(f"  {clipped(about['env'])} · {clipped(about['model'])}", "dim")
    rows = len(found["rows"])
    first = offset + 1 if rows else 0
    line = f"\n{first:,} to {offset + rows:,} of {found['total']:,} rollouts, by {sort} {'▼' if down else '▲'}"
    progress = found["progress"]
    if not progress["done"]:
        line += f", {progress['bytes'] / progress['size']:.0%} read"
    if progress["bad"]:
        line += f", {progress['bad']:,} lines cannot be read"
    return title.append(line).append(f"  {inert(str(chosen))}", "cyan")


# A rollout


def outcome(found: Mapping[str, Any]) -> Text:
    """Return a rollout's stop condition, scores, timing, tags and note."""
    step = "" if found["step"] is None else f", step {found['step']}"
    text = Text().append(f"Example {found['example_id']}, rollout {found['rollout_index']}{step}\n", "bold")
    text.append(_why(found))
    if found["error"]:
        error = found["error"]
        text.append(f"\n{inert(error['phase'])}: {inert(error['type'])}: {inert(error['message'])}", "red")
    if found["scores"]:
        text.append(f"\nreward {number(found['reward'])}", "bold").append(f" = {_sum(found['scores'])}")
        metrics = [f"{inert(name)} {number(value)}" for name, value in found["scores"]["metrics"].items()]
        text.append("\n" + ", ".join(metrics) if metrics else "", "dim")
    parts = ", ".join(f"{name} {brief(value)}" for name, value in found["parts"].items())
    text.append(f"\n{brief(found['timing']['total'])}: {parts}", "dim")
    if found["tags"] or found["note"]:
        text.append(f"\n{', '.join(found['tags'])}", "cyan").append(f"  {inert(found['note'])}")
    return text


def _why(found: Mapping[str, Any]) -> str:
    count = len(found["steps"])
    turns = f"{count} turn{'s' * (count != 1)}"
    if found["error"]:
        return f"Failed after {turns}."
    stop = found["stop_condition"] or "no stop condition"
    reason = "the environment ended it" if stop == "has_final_env_response" else inert(stop).replace("_", " ")
    return f"After {turns}: {reason}{'; truncated' * found['is_truncated']}."


def _sum(scores: Mapping[str, Any]) -> str:
    weights = scores["weights"]
    return " + ".join(
        f"{inert(name)} {number(value)} × {number(weights.get(name, 0.0))}" for name, value in scores["rewards"].items()
    )


def messages(found: Mapping[str, Any]) -> Iterator[tuple[str, Text]]:
    """Yield the role ("other" if unknown) and text of each message; reasoning is dim."""
    for message in (*found["prompt"], *found["completion"]):
        role = str(message.get("role"))
        text = Text().append(f"{inert(role)}\n", "bold")
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        words = message_text(message)
        thought = THINKING.match(words) if role == "assistant" else None
        if reasoning or thought:
            text.append(inert(str(reasoning or (thought and thought[1]))).strip() + "\n", "dim italic")
        text.append(inert(words[thought.end() :] if thought else words).strip("\n"))
        yield role if role in ROLES else "other", text
