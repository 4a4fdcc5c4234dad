"""The picture of the README: docs/learning_curve-light.svg and -dark.svg. `python docs/site/learning_curve.py` writes them.

The figures are those of seed 0 in benchmarks/RESULTS.md ("Tic-Tac-Toe with the new initial weights"); the base model and the
teacher are in the table of README.md. The board is a game of docs/example_runs/rl: a trained model draws against the perfect
opponent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import rove

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("base", "SFT", "RL 1", "RL 2", "RL 3")
ROW = r"^\| 0 \| {stage} \| ([\d.]+) / [\d.]+ / [\d.]+ \| ([\d.]+) / [\d.]+ \| (\d+) of (\d+) \|$"
THEMES: Mapping[str, Mapping[str, str]] = {
    "light": {
        "ground": "#ffffff",
        "text": "#1f2430",
        "faint": "#5c6474",
        "grid": "#e2e5ec",
        "win": "#0b63c5",
        "draw": "#b35309",
    },
    "dark": {
        "ground": "#15181e",
        "text": "#e8eaf0",
        "faint": "#a4abba",
        "grid": "#333945",
        "win": "#6db3ff",
        "draw": "#ffb266",
    },
}
LEFT, TOP, WIDTH, HEIGHT = 62, 64, 470, 216


class Stage(NamedTuple):
    """A stage of training: shares in % over 1,000 games each, and games lost of all possible games."""

    name: str
    wins: float
    draws: float
    lost: str


def stages() -> list[Stage]:
    """Return the measured stages, the base model first."""
    results = (ROOT / "benchmarks/RESULTS.md").read_text(encoding="utf-8")
    measured_stages = [Stage("base", 0.0, 0.0, "–")]  # random weights: no valid move in 2,000 games
    for stage in STAGES[1:]:
        row = re.search(ROW.format(stage=stage), results, re.MULTILINE)
        assert row, stage
        measured_stages.append(Stage(stage, float(row[1]), float(row[2]), f"{row[3]} of {row[4]}"))
    return measured_stages


def game() -> list[tuple[int, str, str]]:
    """Return the moves of a drawn game as (square, mark, what the model thought)."""
    for record in rove.Run(ROOT / "docs/example_runs/rl").rollouts():
        scored = record.scores is not None and record.scores.metrics.get("drawn") == 1
        if (
            scored
            and "random_move_prob" in record.info
            and record.info["random_move_prob"] == 0
            and len(record.steps) == 5
        ):
            break
    else:
        raise SystemExit("no drawn game of five turns in docs/example_runs/rl")
    moves, board = [], ["." if cell.isdigit() else cell for cell in str(record.prompt[-1]["content"]).split()]
    for message in record.completion:
        text = str(message["content"])
        if message["role"] == "assistant":
            thought, square = re.findall(r"<think>(.*?):? ?\d*</think><move>(\d)</move>", text)[0]
            moves.append((int(square), "X", thought))
            board[int(square)] = "X"
        else:
            cells = re.findall(r"[XO\d]", text.rpartition(".")[2])
            moves += [(n, "O", "") for n, cell in enumerate(cells) if cell == "O" and board[n] != "O"]
            board = ["." if cell.isdigit() else cell for cell in cells]
    return moves


def _text(x: float, y: float, words: str, color: str, size: int = 12, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" font-size="{size}" text-anchor="{anchor}"{weight}>{words}</text>'


def _chart(theme: Mapping[str, str]) -> list[str]:
    data = stages()
    xs = [LEFT + WIDTH * number / (len(data) - 1) for number in range(len(data))]
    parts = [
        _text(
            LEFT,
            28,
            "A 0.5 M model learns Tic-Tac-Toe on one CPU core",
            theme["text"],
            15,
            bold=True,
        )
    ]
    for share in (0, 25, 50, 75, 100):
        y = TOP + HEIGHT * (1 - share / 100)
        parts.append(f'<path d="M{LEFT} {y:g} H{LEFT + WIDTH}" stroke="{theme["grid"]}"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{share}%", theme["faint"], anchor="end"))
    for x, stage in zip(xs, data, strict=True):
        parts.append(_text(x, TOP + HEIGHT + 22, stage.name, theme["text"], 13, "middle", True))
        parts.append(_text(x, TOP + HEIGHT + 40, stage.lost, theme["faint"], 12, "middle"))
    parts.append(_text(LEFT, TOP + HEIGHT + 60, "Below each stage: lost games of all possible games.", theme["faint"]))
    for field, color, dash in (("wins", theme["win"], ""), ("draws", theme["draw"], ' stroke-dasharray="7 4"')):
        ys = [TOP + HEIGHT * (1 - getattr(stage, field) / 100) for stage in data]
        path = " L".join(f"{x:g} {y:g}" for x, y in zip(xs, ys, strict=True))
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2.5"{dash}/>')
        parts += [f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{color}"/>' for x, y in zip(xs, ys, strict=True)]
        first, above = (1, False) if field == "draws" else (1, True)
        for x, y, stage in list(zip(xs, ys, data, strict=True))[first:]:
            over = above == (stage.wins >= stage.draws)
            parts.append(_text(x, y - 9 if over else y + 19, f"{getattr(stage, field):g}", color, 12, "middle", True))
    legend = TOP + HEIGHT - 34
    for row, (words, color, dash) in enumerate(
        (
            ("wins against a random opponent", theme["win"], ""),
            ("draws against the perfect opponent", theme["draw"], ' stroke-dasharray="7 4"'),
        )
    ):
        y = legend + 20 * row
        parts.append(f'<path d="M{LEFT + 180} {y - 4} h30" stroke="{color}" stroke-width="2.5"{dash}/>')
        parts.append(_text(LEFT + 218, y, words, theme["text"]))
    return parts


def _board(theme: Mapping[str, str]) -> list[str]:
    left, top, cell = 606, 64, 72
    moves = game()
    parts = [_text(left, 28, "The model (X) draws with the best player", theme["text"], 14, bold=True)]
    for number in (1, 2):
        parts.append(
            f'<path d="M{left + cell * number} {top} v{3 * cell}" stroke="{theme["faint"]}" stroke-width="2"/>'
        )
        parts.append(
            f'<path d="M{left} {top + cell * number} h{3 * cell}" stroke="{theme["faint"]}" stroke-width="2"/>'
        )
    for number, (square, mark, _) in enumerate(moves, 1):
        x, y = left + cell * (square % 3), top + cell * (square // 3)
        color = theme["win"] if mark == "X" else theme["draw"]
        parts.append(_text(x + cell / 2, y + cell / 2 + 13, mark, color, 38, "middle", True))
        parts.append(_text(x + cell - 6, y + 16, str(number), theme["faint"], 12, "end"))
    blocks = [(number, thought) for number, (_, _, thought) in enumerate(moves, 1) if "block" in thought]
    words = "; ".join(f"move {number}: “{thought}”" for number, thought in blocks)
    parts.append(_text(left, top + 3 * cell + 22, f"X, {words}", theme["text"], 12))
    parts.append(_text(left, top + 3 * cell + 40, "A draw, the best result that is possible.", theme["faint"]))
    return parts


def picture(theme: Mapping[str, str]) -> str:
    """Return the picture as SVG."""
    last = stages()[-1]
    title = (
        f"Wins against a random opponent rise from 0 to {last.wins:g} percent, draws against the perfect opponent from 0 to "
        f"{last.draws:g} percent, from the base model through SFT and three stages of RL."
    )
    body = "\n".join([*_chart(theme), *_board(theme)])
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 350" width="960" height="350" role="img" '
        f'aria-label="{title}" font-family="system-ui, -apple-system, sans-serif">\n<title>{title}</title>\n'
        f'<rect width="960" height="350" rx="10" fill="{theme["ground"]}"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    """Write both pictures."""
    for name, theme in THEMES.items():
        (ROOT / f"docs/learning_curve-{name}.svg").write_text(picture(theme), encoding="utf-8")


if __name__ == "__main__":
    main()
