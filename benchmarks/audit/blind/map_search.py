"""Map search: find a buried chest on a map; after each dig the model learns how far away it is."""

import random

import rove as vf

SIZE = 15
GUESSES = 6
COLUMNS = "ABCDEFGHIJKLMNO"
SYSTEM_PROMPT = (
    "A chest is buried on a map with the columns A to O and the rows 1 to 15. Say where to dig; you are told how many squares "
    "the chest is away (columns plus rows). You can dig six times. Reply <dig>C7</dig>"
)


def read_square(text):
    """The column and row of a square such as C7, or None."""
    text = (text or "").strip().upper()
    if len(text) < 2 or text[0] not in COLUMNS or not text[1:].isdecimal() or not 1 <= int(text[1:]) <= SIZE:
        return None
    return COLUMNS.index(text[0]), int(text[1:]) - 1


def write_square(square):
    return f"{COLUMNS[square[0]]}{square[1] + 1}"


def distance(a, b):
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def surveyor(messages, state, rng):
    """Dig only where the chest can still be."""
    squares = [(column, row) for column in range(SIZE) for row in range(SIZE)]
    fits = [square for square in squares if all(distance(square, dug) == far for dug, far in state["digs"])]
    return f"<dig>{write_square(rng.choice(fits))}</dig>"


def digger(messages, state, rng):
    """Dig anywhere."""
    return f"<dig>{write_square((rng.randrange(SIZE), rng.randrange(SIZE)))}</dig>"


class MapEnv(vf.MultiTurnEnv):
    """Answers each dig with a distance."""

    async def setup_state(self, state, **kwargs):
        state.update(digs=[], tries=0, found=False)

    async def env_response(self, messages, state, **kwargs):
        state["tries"] += 1
        square, chest = read_square(self.parser.parse_answer(messages)), read_square(state["answer"])
        if square is None:
            reply = "There is no such square."
        else:
            far = distance(square, chest)
            state["digs"].append((square, far))
            if far == 0:
                state["found"] = True
                state["final_env_response"] = "You found the chest!"
                return None
            reply = f"The chest is {far} squares away."
        if state["tries"] == GUESSES:
            state["final_env_response"] = f"{reply} It was at {state['answer']}."
            return None
        return f"{reply} You can dig {GUESSES - state['tries']} more times."


def found(state):
    """1 if the chest was found."""
    return float(state["found"])


def early(state):
    """The share of digs that were left when the chest was found."""
    return float(state["found"]) * (1 - state["tries"] / GUESSES)


def rows(count, seed, part):
    squares = [write_square((column, row)) for column in range(SIZE) for row in range(SIZE)]
    random.Random("map").shuffle(squares)
    squares = squares[:75] if part else squares[75:]
    random.Random(seed).shuffle(squares)
    return [{"question": "Where do you dig?", "answer": square} for square in squares[:count]]


def load_environment(num_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Maps with one chest; at most 150 for training and 75 for evaluation."""
    parser = vf.XMLParser(["dig"], answer_field="dig")
    rubric = vf.Rubric([found, early], [1.0, 0.2], parser=parser)
    return MapEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"surveyor": surveyor, "digger": digger},
        max_turns=GUESSES,
    )
