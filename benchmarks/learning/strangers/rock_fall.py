"""Rock fall: run down a slope of five lanes and avoid the rocks; the next two rows are visible."""

import random
import zlib

import rove as vf

LANES, LENGTH = 5, 7
STEP = {"left": -1, "stay": 0, "right": 1}


def show(row):
    return " ".join("#" if lane in row else "." for lane in range(1, LANES + 1))


def text(lane, field):
    then = show(field[1]) if len(field) > 1 else "goal"
    return f"lane {lane}\nnext {show(field[0])}\nthen {then}"


def make(rng):
    lane = start = rng.randint(1, LANES)
    field = []
    for _ in range(LENGTH):  # a way without rocks always exists
        lane = min(LANES, max(1, lane + rng.choice([-1, 0, 1])))
        field.append(sorted(rng.sample([n for n in range(1, LANES + 1) if n != lane], rng.choice([1, 2, 4]))))
    return {"question": text(start, field), "info": {"lane": start, "field": field}}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all slopes is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = str(row["info"])
        if key not in seen and (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


class RockEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["lane"], state["passed"] = state["info"]["lane"], 0

    async def env_response(self, messages, state, **kwargs):
        move, field = self.parser.parse_answer(messages), state["info"]["field"]
        lane = state["lane"] + STEP.get(move, 99)
        if not 1 <= lane <= LANES or lane in field[state["passed"]]:
            state["final_env_response"] = "Crash."
            return
        state["lane"] = lane
        state["passed"] += 1
        if state["passed"] == LENGTH:
            state["final_env_response"] = "Goal."
            return
        return text(lane, field[state["passed"] :])


def way(state):
    """The share of the rows that were passed."""
    return state["passed"] / LENGTH


def near_sighted(messages, state, rng):
    """Any move that the next row allows; never looks at the row after it."""
    lane_line, next_line, _ = messages[-1].content.split("\n")
    lane, row = int(lane_line.split()[1]), next_line.split()[1:]
    safe = [move for move, step in STEP.items() if 1 <= lane + step <= LANES and row[lane + step - 1] == "."]
    return f"<move>{rng.choice(safe) if safe else 'stay'}</move>"


def runner(messages, state, rng):
    """Random moves."""
    return f"<move>{rng.choice(sorted(STEP))}</move>"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with slopes of seven rows."""
    parser = vf.XMLParser(["move"], answer_field="move")
    return RockEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Avoid the rocks #. Answer <move>left</move>, stay or right.",
        parser=parser,
        rubric=vf.Rubric([way], parser=parser),
        policies={"near_sighted": near_sighted, "runner": runner},
        max_turns=LENGTH,
    )
