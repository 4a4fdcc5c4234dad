"""The tokens of a rollout with their colors: classes and descriptions for the page, from the records of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.statistics.format import signed, version_words
from rove.utils.units import counted


class Token(NamedTuple):
    """A sampled token; unknown values are None."""

    id: int
    text: str | None
    logprob: float | None = None
    trainer: float | None = None
    """The trainer's log-probability before the step."""
    entropy: float | None = None
    version: int | None = None
    """Version of the weights that sampled the token."""

    @property
    def ratio(self) -> float | None:
        """The trainer's probability divided by the sampler's probability."""
        if self.logprob is None or self.trainer is None:
            return None
        return math.exp(min(700.0, self.trainer - self.logprob))


class Scale(NamedTuple):
    """Colors p0, p1, …: a token gets the first color whose limit it meets."""

    value: Callable[[Token], float | None]
    limits: tuple[float, ...]
    meets: Callable[[float, float], bool]
    words: str
    """Description of a limit, with its number as {}."""
    rest_label: str
    """Description of tokens that meet no limit."""


SCALES = {
    "logprob": Scale(
        lambda t: t.logprob, (0.9, 0.6, 0.3, 0.1, 0.02), lambda v, end: math.exp(min(0.0, v)) >= end, "≥ {:.0%}", "less"
    ),
    "entropy": Scale(lambda t: t.entropy, (0.05, 0.2, 0.5, 1.0, 2.0), lambda v, end: v <= end, "≤ {:g} nats", "more"),
    "ratio": Scale(
        lambda t: t.ratio, (0.01, 0.05, 0.1, 0.2, 0.5), lambda v, end: abs(v - 1) <= end, "within {:.0%}", "further"
    ),
}
COLORS = {
    "logprob": ("log-probability", "darker: the sampled token was less likely"),
    "entropy": ("entropy", "darker: the model was less certain"),
    "advantage": ("advantage", "whether training makes the token more or less likely"),
    "mask": ("loss mask", "marked tokens are trained; prompts and replies are not"),
    "version": ("policy version", "darker: older weights sampled the token"),
    "ratio": (
        "trainer-to-sampler ratio",
        "darker: the trainer's probability before the step differs more from the sampler's",
    ),
}
"""Title and explanation by color."""
FROM_TRAINER = ("entropy", "ratio")
"""Colors that need the trainer's statistics."""
OLDEST = 5
"""Highest color number of policy versions: all versions with at least this many newer versions share this color."""


def color_tokens(turns: Sequence[JsonMapping], advantage: float | None, color: str) -> JsonObject:
    """Return a rollout's tokens as the page shows them.

    Args:
        turns: Turns of `rollouts.describe_rollout`, with the trainer's statistics if there are any.
        color: A key of `COLORS`; any other text means "logprob".

    Returns:
        `color` and `words`, its explanation; `offered` colors as [name, title]; `legend` as [class, words]; `summary`;
        `spelled`, whether token texts are known; `missing`, whether the color needs statistics that this rollout lacks; `turns`,
        each with `tokens` as [text, class, description], `versions`, `left_out`, `fresh` and `advantage`.
    """
    version_set: set[int] = set()
    for turn in turns:
        version_set |= {version for version, _ in turn["versions"]}
    versions = sorted(version_set)
    has_versions = bool(versions) and versions[-1] > 0
    offered = [[name, title] for name, (title, _) in COLORS.items()]
    if not has_versions:
        offered = [pair for pair in offered if pair[0] != "version"]
    if color not in {name for name, _ in offered}:
        color = "logprob"
    sampled = [list(_sampled(turn)) for turn in turns]
    everything = list(chain.from_iterable(sampled))
    lines = []
    for turn, tokens in zip(turns, sampled, strict=True):
        trained = turn.get("trained")
        weight = trained["advantage"] if trained else advantage
        prompt = [[_text(id, text), "given", f"{id}: prompt, not trained"] for id, text in turn["prompt"]]
        looks = [
            [_text(t.id, t.text), _look(color, t, weight, versions), f"{t.id}: {_words(t, has_versions)}"]
            for t in tokens
        ]
        lines.append(
            {
                "tokens": prompt + looks,
                "versions": version_words(turn["versions"]) if has_versions else "",
                "left_out": turn["left_out"],
                "fresh": turn["fresh"],
                "advantage": trained["advantage"] if trained else None,
            }
        )
    return {
        "color": color,
        "words": COLORS[color][1],
        "offered": offered,
        "legend": list(_legend(color, versions)),
        "summary": ", ".join(_summary(everything, advantage)),
        "spelled": any(token.text is not None for token in everything),
        "missing": color in FROM_TRAINER and not any(turn.get("trained") for turn in turns),
        "turns": lines,
    }


def _sampled(turn: JsonMapping) -> Iterator[Token]:
    """Yield the sampled tokens of a turn, each with its known values."""
    trained = turn.get("trained") or {"logprobs": [], "entropies": []}
    versions: list[int] = []
    for version, count in turn["versions"]:
        versions += [version] * min(count, len(turn["sampled"]))  # a damaged record may claim any count

    def at(values: Sequence[object], position: int) -> JsonValue:
        return values[position] if position < len(values) else None

    for i, (id, text) in enumerate(turn["sampled"]):
        yield Token(
            id,
            text,
            at(turn["logprobs"], i),
            at(trained["logprobs"], i),
            at(trained["entropies"], i),
            at(versions, i),
        )


def _text(id: int, text: str | None) -> str:
    return f"{id} " if text is None else text or "·"


def _look(color: str, token: Token, advantage: float | None, versions: Sequence[int]) -> str:
    if color == "mask":
        return "trained"
    if color == "advantage":
        if not advantage:
            return "sampled"
        return "good" if advantage > 0 else "poor"
    if color == "version":
        return "sampled" if token.version is None else f"p{_age(token.version, versions)}"
    scale = SCALES[color]
    value = scale.value(token)
    if value is None:
        return "sampled"
    for position, end in enumerate(scale.limits):
        if scale.meets(value, end):
            return f"p{position}"
    return f"p{len(scale.limits)}"


def _age(version: int, versions: Sequence[int]) -> int:
    return min(len(versions) - 1 - versions.index(version), OLDEST)


def _words(token: Token, has_versions: bool) -> str:
    phrases = []
    if token.logprob is not None:
        probability = math.exp(min(0.0, token.logprob))
        phrases.append(f"log-probability {token.logprob:.4g}, probability {probability:.4g}")
    if token.trainer is not None:
        ratio = "–" if token.ratio is None else f"{token.ratio:.4g}"
        entropy = "–" if token.entropy is None else f"{token.entropy:.4g}"
        phrases.append(f"trainer's log-probability {token.trainer:.4g}, ratio {ratio}, entropy {entropy}")
    if has_versions and token.version is not None:
        phrases.append(f"policy version {token.version:,}")
    return "; ".join(phrases)


def _summary(tokens: Sequence[Token], advantage: float | None) -> Iterator[str]:
    yield counted(len(tokens), "sampled token")
    for name, value in (("log-probability", "logprob"), ("entropy", "entropy"), ("ratio", "ratio")):
        numbers = [number for token in tokens if (number := getattr(token, value)) is not None]
        if numbers:
            yield f"mean {name} {fmean(numbers):.4g}"
    if advantage is not None:
        yield f"reward minus group mean {signed(advantage)}"


def _legend(color: str, versions: Sequence[int]) -> Iterator[tuple[str, str]]:
    if color in SCALES:
        scale = SCALES[color]
        yield from ((f"p{i}", scale.words.format(end)) for i, end in enumerate(scale.limits))
        yield f"p{len(scale.limits)}", scale.rest_label
    elif color == "version":
        yield from ((f"p{_age(version, versions)}", f"version {version:,}") for version in versions)
    elif color == "mask":
        yield from (("trained", "trained"), ("given", "not trained"))
    else:
        yield from (("good", "above the group mean"), ("poor", "below"), ("sampled", "equal"), ("given", "not trained"))
