"""Word chain: each word begins with the last letter of the word before; the longer the chain, the better."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You and a partner build a chain of words from a list. Each word must begin with the last letter of the word before, "
    "and no word may be used twice. The partner begins. Your score is the number of words that you add before the chain "
    "ends, at most 8. A word that does not fit ends the chain; you keep the score so far. Answer <word>word</word>."
)
MAX_WORDS = 8
WORDS = """
    almond anise apple apricot artichoke asparagus aubergine avocado bacon bagel banana barley basil bean beet biscuit bread
    broccoli brownie butter cabbage cake caramel carrot cashew celery cheese cherry chestnut chicory chili chocolate
    cinnamon clove cocoa coconut coffee cookie corn cracker cream cress crumble cucumber currant curry custard date dill
    donut dough dressing dumpling egg eggplant elderberry endive espresso falafel fennel feta fig flour fondue fritter
    garlic gelato ginger gnocchi granola grape gravy guava ham hazelnut herring honey houmous icing jam jelly juice kale
    kebab ketchup kiwi kohlrabi kumquat lasagne leek lemon lemonade lentil lettuce lime lychee macaroni mango marzipan
    melon milk mint muesli muffin mushroom mustard nectarine noodle nougat nutmeg oat olive omelette onion orange oregano
    oyster pancake papaya paprika parsley parsnip pasta pea peach peanut pear pepper pesto pickle pie pistachio pizza plum
    polenta porridge potato pretzel pumpkin quiche quince quinoa radish raisin raspberry ravioli relish rhubarb rice risotto
    roll rosemary saffron sage salad salami salsa salt sauce scone semolina sesame shallot sorbet soup spinach sprout squash
    stew strawberry sugar sushi syrup taco tahini tapioca tarragon tart tea thyme toast toffee tofu tomato trifle truffle
    tuna turnip udon vanilla vinegar waffle walnut wasabi watercress watermelon yam yeast yogurt zucchini
""".split()  # noqa: SIM905


def followers(word: str, words: list[str], used: list[str]) -> list[str]:
    """Return the words of a list that may follow a word."""
    return [other for other in words if other[0] == word[-1] and other not in used]


def partner_word(words: list[str], used: list[str]) -> str | None:
    """Return the word with which the partner goes on: one that leaves the most words to choose from."""
    options = followers(used[-1], words, used)
    return max(options, key=lambda word: (len(followers(word, words, [*used, word])), word), default=None)


class ChainEnv(vf.MultiTurnEnv):
    """An environment with a partner who adds every second word."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(used=[state["info"]["first"]], score=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        words, used = state["info"]["words"], state["used"]
        word = (self.parser.parse_answer(messages) or "").strip().lower()
        if word not in followers(used[-1], words, used):
            return self.finish(state, "That word does not fit. The chain ends.")
        used.append(word)
        state["score"] += 1
        if state["score"] == MAX_WORDS:
            return self.finish(state, "The chain is complete.")
        reply = partner_word(words, used)
        if reply is None:
            return self.finish(state, "I have no word. The chain ends.")
        used.append(reply)
        return reply

    def finish(self, state: vf.State, news: str) -> None:
        state["final_env_response"] = news


def chain_length(state: vf.State) -> float:
    """Return the number of words that the model added, as a share of the most that count."""
    return state["score"] / MAX_WORDS


def planner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Look ahead to the longest chain within reach."""

    def depth(used: list[str], left: int) -> tuple[int, str]:
        best = (0, "stop")
        if left == 0:
            return best
        for word in followers(used[-1], words, used):
            chain = [*used, word]
            reply = partner_word(words, chain)
            reach = 1 + (depth([*chain, reply], left - 1)[0] if reply else 0)
            if reach > best[0]:
                best = (reach, word)
            if reach == left:
                break
        return best

    words = state["info"]["words"]
    return f"<word>{depth(state['used'], min(4, MAX_WORDS - state['score']))[1]}</word>"


def any_fit(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add any word of the list that begins with the right letter."""
    options = followers(state["used"][-1], state["info"]["words"], [])
    return f"<word>{rng.choice(options) if options else 'stop'}</word>"


def best_chain(words: list[str], used: list[str], left: int) -> bool:
    """Return whether `left` more words are possible."""
    if left == 0:
        return True
    for word in followers(used[-1], words, used):
        chain = [*used, word]
        if left == 1:
            return True
        reply = partner_word(words, chain)
        if reply and best_chain(words, [*chain, reply], left - 1):
            return True
    return False


def make_row(rng: random.Random) -> dict[str, Any]:
    """Return a list of words and the first word of a chain that can be completed."""
    while True:
        words = sorted(rng.sample(WORDS, 48))
        first = rng.choice(words)
        if best_chain(words, [first], MAX_WORDS):
            break
    question = f"Words: {', '.join(words)}\nFirst word: {first}"
    return {"question": question, "info": {"words": words, "first": first}}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with word chains.

    Args:
        num_examples: Number of chains for training, and for evaluation.
        seed: Random seed of the lists of words.
    """
    parser = vf.XMLParser(["word"], answer_field="word")
    return ChainEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([chain_length], parser=parser),
        policies={"planner": planner, "any_fit": any_fit},
        max_turns=MAX_WORDS,
    )
