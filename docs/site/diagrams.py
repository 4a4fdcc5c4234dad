"""Diagrams of the documentation, docs/diagrams/*.svg: `python docs/site/diagrams.py` writes them.

Text stays text, so that it can be searched and read aloud. Boxes have their own background and arrows a medium gray, so one
file is readable on a light and on a dark page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "diagrams"
GRAY = "#7483a3"
FILLS = {"plain": "#eef2fb", "model": "#fdf0d5", "score": "#e3f4e8", "frame": "none"}


class Box(NamedTuple):
    """A box with lines of text; the first line is bold. Sizes in pixels."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    kind: str = "plain"


class Arrow(NamedTuple):
    """An arrow through points, with a label at `label_at`."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    label_at: tuple[int, int] = (0, 0)


def _box(box: Box) -> str:
    frame = box.kind == "frame"
    dash = ' stroke-dasharray="5 4"' if frame else ""
    shape = (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="7" '
        f'fill="{FILLS[box.kind]}" stroke="{GRAY}"{dash}/>'
    )
    middle = box.x + box.width / 2
    first = box.y + 17 if frame else box.y + box.height / 2 - 8 * (len(box.lines) - 1) + 5
    color = GRAY if frame else "#1c2333"
    texts = (
        f'<text x="{middle}" y="{first + 16 * number}" text-anchor="middle" fill="{color}"{bold}>{escape(line)}</text>'
        for number, (line, bold) in enumerate(zip(box.lines, (' font-weight="600"', *[""] * len(box.lines))))
    )
    return shape + "".join(texts)


def _arrow(arrow: Arrow) -> str:
    path = "M" + " L".join(f"{x} {y}" for x, y in arrow.points)
    line = f'<path d="{path}" fill="none" stroke="{GRAY}" stroke-width="1.6" marker-end="url(#head)"/>'
    if not arrow.label:
        return line
    x, y = arrow.label_at
    return line + f'<text x="{x}" y="{y}" text-anchor="middle" fill="{GRAY}">{escape(arrow.label)}</text>'


def svg(title: str, width: int, height: int, boxes: list[Box], arrows: list[Arrow]) -> str:
    """Return a diagram as SVG; the title is its text for screen readers."""
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{GRAY}"/></marker>'
    )
    body = "\n".join([*map(_box, boxes), *map(_arrow, arrows)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13">\n'
        f"<title>{escape(title)}</title>\n<defs>{head}</defs>\n{body}\n</svg>\n"
    )


def chain(
    files: list[str], y: int = 20, width: int = 165, gap: int = 30, start: int = 10
) -> tuple[list[Box], list[Arrow]]:
    """Return boxes in a row, each with an arrow to the next."""
    boxes = [Box(start + number * (width + gap), y, width, 40, (file,)) for number, file in enumerate(files)]
    arrows = [Arrow(((box.x + width, y + 20), (box.x + width + gap, y + 20))) for box in boxes[:-1]]
    return boxes, arrows


def concepts() -> str:
    """Return the diagram of docs/concepts.md."""
    boxes = [
        Box(10, 10, 170, 300, ("Environment",), "frame"),
        Box(25, 40, 140, 60, ("Dataset", "a row per example")),
        Box(25, 125, 140, 75, ("Protocol", "tools, opponent,", "stop conditions")),
        Box(25, 225, 140, 70, ("Rubric", "reward functions", "with weights"), "score"),
        Box(235, 10, 395, 300, ("Group: all rollouts of one example",), "frame"),
        *(Box(250, 40 + 66 * row, 250, 56, (f"Rollout {row + 1}", "prompt → answer → reply → …")) for row in range(4)),
        *(
            Box(525, 40 + 66 * row, 90, 56, ("reward", value), "score")
            for row, value in enumerate(("1.2", "0.2", "1.2", "0.2"))
        ),
        Box(685, 10, 130, 235, ("Advantages",), "frame"),
        *(
            Box(700, 40 + 50 * row, 100, 38, (value,), "score")
            for row, value in enumerate(("+0.5", "−0.5", "+0.5", "−0.5"))
        ),
        Box(870, 40, 165, 80, ("Optimizer step", "makes tokens of good", "rollouts more likely"), "model"),
        Box(870, 165, 165, 80, ("Model", "new weights:", "policy version + 1"), "model"),
    ]
    arrows = [
        Arrow(((165, 70), (250, 70)), "prompt", (208, 62)),
        Arrow(((165, 162), (250, 162)), "turns", (208, 154)),
        *(Arrow(((500, 68 + 66 * row), (525, 68 + 66 * row))) for row in range(4)),
        Arrow(((630, 130), (685, 130)), "− mean", (657, 122)),
        Arrow(((815, 80), (870, 80))),
        Arrow(((952, 120), (952, 165))),
        Arrow(((952, 245), (952, 335), (375, 335), (375, 310)), "samples the next groups", (660, 329)),
        Arrow(((165, 260), (207, 260), (207, 300), (570, 300), (570, 296))),
    ]
    title = (
        "An environment gives a prompt; the model generates a group of rollouts; the rubric scores each one; a rollout's "
        "reward minus the group's mean is its advantage; an optimizer step with the advantages gives the model new weights."
    )
    return svg(title, 1045, 350, boxes, arrows)


def rollout() -> str:
    """Return the diagram of one rollout through the source files, in docs/architecture.md."""
    boxes, arrows = chain(["rollouts/evaluate.py", "rollouts/groups.py", "rollouts/runner.py", "envs/multi_turn.py"])
    below = [
        Box(205, 110, 165, 40, ("engine/client.py",)),
        Box(10, 110, 165, 40, ("engine/engine.py",)),
        Box(595, 110, 165, 40, ("rubrics/rubric.py",), "score"),
        Box(595, 200, 165, 40, ("runs/run.py",)),
    ]
    added_arrows = [
        Arrow(((595, 50), (565, 50)), "turn", (580, 68)),
        Arrow(((440, 60), (440, 130), (370, 130)), "request", (412, 122)),
        Arrow(((205, 130), (175, 130))),
        Arrow(((520, 60), (520, 130), (595, 130)), "state", (557, 122)),
        Arrow(((677, 150), (677, 200))),
    ]
    arrows[2] = Arrow(((565, 32), (595, 32)))
    title = (
        "evaluate.py calls groups.py, which calls runner.py, which runs multi_turn.py. Its turns go through runner.py to "
        "client.py and engine.py. The finished state goes to rubric.py, and the record to run.py."
    )
    return svg(title, 775, 250, [*boxes, *below], [*arrows, *added_arrows])


def step() -> str:
    """Return the diagram of one training step through the source files, in docs/architecture.md."""
    boxes, arrows = chain(["train/rl.py", "train/learner.py", "train/trainer.py"], y=110, gap=100)
    added_boxes = [
        Box(10, 20, 165, 40, ("train/collect.py",)),
        Box(275, 20, 165, 40, ("train/advantages.py",), "score"),
        Box(540, 20, 165, 40, ("train/sequences.py",)),
        Box(275, 195, 165, 40, ("train/backends.py",), "model"),
    ]
    arrows[0] = Arrow(arrows[0].points, "sequences", (224, 122))
    added_arrows = [
        Arrow(((92, 110), (92, 60))),
        Arrow(((175, 40), (275, 40)), "rewards", (224, 32)),
        Arrow(((160, 60), (160, 85), (620, 85), (620, 60)), "records", (480, 78)),
        Arrow(((92, 150), (92, 215), (275, 215)), "weights", (190, 207)),
    ]
    title = (
        "rl.py calls collect.py. Its rewards go to advantages.py and its records to sequences.py. The sequences go to "
        "learner.py and trainer.py, and the new weights to backends.py."
    )
    return svg(title, 720, 250, [*boxes, *added_boxes], [*arrows, *added_arrows])


def main() -> None:
    """Write all diagrams."""
    FOLDER.mkdir(exist_ok=True)
    for draw in (concepts, rollout, step):
        (FOLDER / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
