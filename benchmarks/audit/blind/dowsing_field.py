"""Dowsing field: the model looks for a hidden spring; the rod tells roughly how far it is."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SIZE, MAX_TURNS = 12, 8
SYSTEM_PROMPT = (
    f"A spring is hidden in a field of {SIZE} by {SIZE} plots. Columns and rows are numbered from 1 to {SIZE}. You may dig "
    f"{MAX_TURNS} times. After each hole, the rod is still (more than 8 plots away, counted along columns and rows), "
    "trembles (5 to 8), bends (2 to 4) or dips (1). You earn 1 for the spring, 0.2 if your best hole made the rod dip, and "
    "0.1 if it made the rod bend. Reply with <dig>column,row</dig>."
)
PARTIAL = {"dips": 0.2, "bends": 0.1}
Plot = tuple[int, int]
PLOTS = [(column, row) for column in range(1, SIZE + 1) for row in range(1, SIZE + 1)]
SIGNS = ("finds the spring", "dips", "bends", "trembles", "is still")
FARMS = "Ashcombe Brockhill Cold-Norton Dunsop Elterwater Foxt Gunby Harpsden Ible Knotting Lissett Minskip".split()


def sign(plot: Plot, spring: Plot) -> str:
    """Return what the rod does over a plot."""
    away = abs(plot[0] - spring[0]) + abs(plot[1] - spring[1])
    return SIGNS[0 if away == 0 else 1 if away == 1 else 2 if away <= 4 else 3 if away <= 8 else 4]


def read_plot(text: str) -> Plot | None:
    """Return the plot in a reply, or None if there is none in the field."""
    found = re.fullmatch(r"\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*", text)
    plot = (int(found[1]), int(found[2])) if found else (0, 0)
    return plot if plot in PLOTS else None


def found_spring(state: vf.State) -> float:
    """Return 1 for the spring, and partial credit for the best hole otherwise."""
    signs = [made for _, made in state["holes"]]
    if SIGNS[0] in signs:
        return 1.0
    return max((PARTIAL.get(made, 0.0) for made in signs), default=0.0)


def holes_used(state: vf.State) -> float:
    return float(len(state["holes"]))


def dowser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Dig at the plot that splits the possible plots best."""
    left = [plot for plot in PLOTS if all(sign(hole, plot) == made for hole, made in state["holes"])]
    tried = rng.sample(left, min(12, len(left)))

    def spread(plot: Plot) -> int:
        made = [sign(plot, other) for other in left]
        return sum(made.count(kind) ** 2 for kind in set(made))

    column, row = min(tried, key=spread)
    return f"<dig>{column},{row}</dig>"


def digger(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Dig anywhere."""
    column, row = rng.choice(PLOTS)
    return f"<dig>{column},{row}</dig>"


class DowsingEnv(vf.MultiTurnEnv):
    """A search that ends at the spring."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["holes"] = []

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        plot = read_plot(self.parser.parse_answer(messages) or "")
        left = MAX_TURNS - len(state["trajectory"])
        if plot is None:
            return f"That is not a plot of this field. You may dig {left} more times."
        made = sign(plot, tuple(state["info"]["spring"]))
        state["holes"].append((plot, made))
        if made == SIGNS[0]:
            state["final_env_response"] = "Water! You have found the spring."
            return None
        return f"At {plot[0]},{plot[1]} the rod {made}. You may dig {left} more times."


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    fields = [(farm, number) for farm in FARMS for number in range(1, 61)]
    fields = [field for field in fields if (zlib.crc32(f"{field}".encode()) % 3 == 0) == held_out]
    rng.shuffle(fields)
    rows = []
    for farm, number in fields[:count]:
        question = f"Field {number} of {farm} farm. Where do you dig first?"
        rows.append({"question": question, "answer": "", "info": {"spring": rng.choice(PLOTS)}})
    return rows


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment of searches for springs.

    Args:
        num_examples: Number of fields in each dataset; a third of the fields is reserved for evaluation.
        seed: Random seed of the springs.
    """
    parser = vf.XMLParser(["dig"], answer_field="dig")
    rubric = vf.Rubric([found_spring], parser=parser)
    rubric.add_metric(holes_used)
    return DowsingEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"dowser": dowser, "digger": digger},
        max_turns=MAX_TURNS,
    )
