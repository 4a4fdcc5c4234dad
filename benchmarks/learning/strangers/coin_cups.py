"""Coin cups: find the cup with the coin. A probe says how near it is, but every probe costs."""

import json
import random
import zlib

import rove as vf

CUPS = 12


def make(rng):
    cups = sorted(rng.sample(range(1, CUPS + 1), rng.randint(4, 6)))
    return {"question": f"cups {' '.join(map(str, cups))}", "answer": str(rng.choice(cups))}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all sets of cups is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = f"{row['question']} {row['answer']}"
        if key not in seen and (zlib.crc32(row["question"].encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


def hint(cup, coin):
    gap = abs(cup - coin)
    return "here" if gap == 0 else "hot" if gap <= 2 else "warm" if gap <= 4 else "cold"


class CoinEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(self.probe, args_to_skip=["state"])

    async def setup_state(self, state, **kwargs):
        state["probes"] = 0

    def probe(self, cup: int, state: vf.State) -> str:
        """Say whether the coin is here, hot (1 or 2 cups away), warm (3 or 4) or cold."""
        state["probes"] += 1
        return hint(cup, int(state["answer"]))

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}


def right(completion, answer):
    """1 if the last message is the number of the right cup."""
    last = completion[-1]
    return float(last.role == "assistant" and (last.content or "").strip() == answer)


def cost(state):
    """The number of probes."""
    return float(state["probes"])


def call(cup, number):
    function = {"name": "probe", "arguments": json.dumps({"cup": cup})}
    return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{number}", "type": "function", "function": function}])


def cups_of(messages):
    return [int(cup) for cup in messages[1].content.split()[1:]]


def searcher(messages, state, rng):
    """Probe the middle cup, then name a cup that fits the hint: fast, but it often has to guess."""
    cups = cups_of(messages)
    middle = cups[len(cups) // 2]
    if not state["trajectory"]:
        return call(middle, 0)
    return str(rng.choice([cup for cup in cups if hint(middle, cup) == messages[-1].content]))


def guesser(messages, state, rng):
    """Probe at random, stop at random, name any of the cups."""
    cup = rng.choice(cups_of(messages))
    return call(cup, len(state["trajectory"])) if rng.random() < 0.5 else str(cup)


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with four to six of twelve cups."""
    return CoinEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="One cup has the coin. Each probe costs a little. Answer with the cup's number only.",
        rubric=vf.Rubric([right, cost], [1.0, -0.1]),
        policies={"searcher": searcher, "guesser": guesser},
        max_turns=5,
    )
