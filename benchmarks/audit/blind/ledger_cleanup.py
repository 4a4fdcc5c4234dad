"""Ledger cleanup: remove duplicate postings from a petty cash ledger and report the total of one category."""

import copy
import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You keep a petty cash ledger. Some postings were entered twice (same date, category, text and amount). Look at the "
    "ledger with entries(), delete the second copy of each duplicate with delete(entry_id), and then report the total of "
    "the category in question as <total>amount</total>."
)
BRANCHES = "Lyon Ghent Turin Leeds Basel Porto Graz Turku Brno".split()
TEXTS = {
    "travel": ["taxi", "train ticket", "parking", "bus pass"],
    "office": ["paper", "toner", "folders", "stamps"],
    "catering": ["coffee", "sandwiches", "fruit", "cake"],
}


def key(entry):
    return entry["date"], entry["category"], entry["text"], entry["amount"]


def category_total(ledger, category):
    return round(sum(entry["amount"] for entry in ledger.values() if entry["category"] == category), 2)


def has_duplicates(ledger):
    keys = [key(entry) for entry in ledger.values()]
    return len(set(keys)) < len(keys)


def amount(text):
    try:
        return round(float(text.strip().lstrip("$").replace(",", "")), 2)
    except ValueError:
        return None


class LedgerEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(self.entries, args_to_skip=["state"])
        self.add_tool(self.delete, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["ledger"] = copy.deepcopy(state["info"]["ledger"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

    def entries(self, state: vf.State) -> list:
        """List all postings of the ledger."""
        return [{"id": entry_id, **entry} for entry_id, entry in state["ledger"].items()]

    def delete(self, entry_id: str, state: vf.State) -> str:
        """Delete a posting.

        Args:
            entry_id: id of the posting, such as E07
        """
        if entry_id not in state["ledger"]:
            raise ValueError(f"there is no posting '{entry_id}'")
        del state["ledger"][entry_id]
        return f"{entry_id} deleted, {len(state['ledger'])} postings left"


def correct(parser, completion, state, info) -> float:
    """1 if no duplicates are left and the total is that of the cleaned ledger."""
    ledger = state["ledger"]
    if has_duplicates(ledger):
        return 0.0
    return float(parser.parse_answer(completion) == category_total(ledger, info["category"]))


def postings_left(state) -> float:
    return float(len(state["ledger"]))


def bookkeeper(messages, state, rng):
    """Delete the duplicates one by one, then report the total."""
    if not state["trajectory"]:
        return vf.tool_call("entries")
    listing = json.loads(next(m.content for m in messages if m.role == "tool"))
    seen, extra = set(), []
    for entry in listing:
        if key(entry) in seen:
            extra.append(entry["id"])
        seen.add(key(entry))
    done = len(state["trajectory"]) - 1
    if done < len(extra):
        return vf.tool_call("delete", entry_id=extra[done])
    total = sum(e["amount"] for e in listing if e["id"] not in extra and e["category"] == state["info"]["category"])
    return f"<total>{total:.2f}</total>"


def sloppy(messages, state, rng):
    """Add up the category without removing anything."""
    if not state["trajectory"]:
        return vf.tool_call("entries")
    listing = json.loads(messages[-1].content)
    return f"<total>{sum(e['amount'] for e in listing if e['category'] == state['info']['category']):.2f}</total>"


def make_row(rng, branches):
    postings = []
    for _ in range(rng.randint(5, 8)):
        category = rng.choice(sorted(TEXTS))
        text, cents = rng.choice(TEXTS[category]), rng.randint(150, 6000)
        date = f"2024-{rng.randint(1, 6):02d}-{rng.randint(1, 28):02d}"
        postings.append({"date": date, "category": category, "text": text, "amount": cents / 100})
    category = rng.choice(sorted({p["category"] for p in postings}))
    postings += [dict(p) for p in rng.sample(postings, rng.randint(1, 3))]
    rng.shuffle(postings)
    ledger = {f"E{number:02d}": posting for number, posting in enumerate(postings, 1)}
    question = f"Clean up the ledger of the {rng.choice(branches)} branch ({len(ledger)} postings). What is the total of '{category}' afterwards?"
    return {"question": question, "info": {"ledger": ledger, "category": category}}


def load_environment(num_examples: int = 300, seed: int = 21, max_turns: int = 16) -> vf.Environment:
    """Ledgers with one to three duplicate postings."""
    parser = vf.XMLParser(["total"], answer_field="total", extract_fn=amount)
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(postings_left)
    return LedgerEnv(
        dataset=lambda: [
            make_row(random.Random(f"ledger/{seed}/train/{i}"), BRANCHES[:6]) for i in range(num_examples)
        ],
        eval_dataset=lambda: [
            make_row(random.Random(f"ledger/{seed}/eval/{i}"), BRANCHES[6:]) for i in range(num_examples // 3)
        ],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"bookkeeper": bookkeeper, "sloppy": sloppy},
        max_turns=max_turns,
    )
