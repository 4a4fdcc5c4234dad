"""Word chains: each word begins with the last letter of the word before it; longer chains earn more."""

import functools
import random
import zlib

import rove as vf

WORDS = """
apple arrow angle alarm basin beach bison bread cabin camel candle canal carrot dance dawn desert diver dragon eagle
earth easel elbow engine ember fabric falcon fence ferry flute garden giant ginger glove grape hammer harbor hazel
honey horse igloo index inlet island ivory jacket jelly jungle kayak kernel kettle kitten ladder lantern lemon lizard
lobster magnet maple meadow mirror mitten nectar needle nickel night novel oasis olive onion orange otter paddle panda
parrot pencil pepper quarry quill rabbit radish raven ribbon river robin saddle salmon scarf shelf silver table tailor
talon temple tiger tulip turtle umbrella uncle urchin valley velvet violin walnut whale window winter yacht yarn yellow
yoghurt zebra zenith zigzag
""".split()


@functools.lru_cache(maxsize=None)
def longest(words, last=""):
    """Length of the longest chain with words of this tuple that may follow the letter `last`."""
    best = 0
    for word in words:
        if not last or word[0] == last:
            rest = tuple(other for other in words if other != word)
            best = max(best, 1 + longest(rest, word[-1]))
    return best


def best_chain(words, last=""):
    """One longest chain."""
    for word in words:
        if not last or word[0] == last:
            rest = tuple(other for other in words if other != word)
            if 1 + longest(rest, word[-1]) == longest(words, last):
                return [word, *best_chain(rest, word[-1])]
    return []


def parse(completion):
    return [word.strip().lower() for word in str(completion[-1].content or "").split(">")]


def is_chain(chain, words):
    return (
        len(set(chain)) == len(chain)
        and set(chain) <= set(words)
        and all(first[-1] == second[0] for first, second in zip(chain, chain[1:]))
    )


def chain_length(completion, info):
    """Length of a valid chain as a share of the longest possible; a single word is no chain."""
    chain = parse(completion)
    if len(chain) < 2 or not is_chain(chain, info["words"]):
        return 0.0
    return (len(chain) - 1) / (info["longest"] - 1)


def valid(completion, info):
    return float(is_chain(parse(completion), info["words"]))


def rows(count, split, seed):
    found = []
    rng = random.Random(f"{seed} {split}")
    while len(found) < count:
        words = tuple(sorted(rng.sample(WORDS, 11)))
        if (zlib.crc32(" ".join(words).encode()) % 5 == 0) != (split == "eval"):
            continue
        length = longest(words)
        longest.cache_clear()
        if not 4 <= length <= 9:
            continue
        shown = list(words)
        rng.shuffle(shown)
        found.append({"question": "Words: " + ", ".join(shown), "info": {"words": shown, "longest": length}})
    return found


def expert(messages, state, rng):
    return " > ".join(best_chain(tuple(state["info"]["words"])))


def beginner(messages, state, rng):
    """Start anywhere and take whatever fits."""
    words = list(state["info"]["words"])
    chain = [words.pop(rng.randrange(len(words)))]
    while fits := [word for word in words if word[0] == chain[-1][-1]]:
        chain.append(rng.choice(fits))
        words.remove(chain[-1])
    return " > ".join(chain)


def load_environment(num_train: int = 200, num_eval: int = 80, seed: int = 0) -> vf.Environment:
    rubric = vf.Rubric([chain_length])
    rubric.add_metric(valid)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_train, "train", seed),
        eval_dataset=lambda: rows(num_eval, "eval", seed),
        system_prompt=(
            "Make the longest chain you can from the given words: each word must begin with the last letter of the word "
            "before it, and no word may occur twice. Reply with the chain only: word > word > word"
        ),
        rubric=rubric,
        policies={"expert": expert, "beginner": beginner},
    )
