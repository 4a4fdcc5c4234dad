"""Word endings: inflect a word of an invented language whose endings follow the last vowel of the word."""

import random
import zlib

import rove as vf

CASES = {"to": "d V", "from": "l V n", "with": "s V"}


def make(rng):
    letters = [rng.choice("ptkmlrsn" if i % 2 == 0 else "aouie") for i in range(rng.randint(3, 6))]
    number, case = rng.choice(["one", "many"]), rng.choice(sorted(CASES))
    vowel = "o" if [c for c in letters if c in "aouie"][-1] in "aou" else "e"
    plural = "" if number == "one" else (" r" if letters[-1] in "aouie" else f" {vowel} r")
    root = " ".join(letters)
    answer = f"{root}{plural} {CASES[case].replace('V', vowel)}"
    return {"question": f"{root}, {number}, {case}", "answer": answer, "info": {"root": root}}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all roots is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = row["question"]
        if key not in seen and (zlib.crc32(row["info"]["root"].encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


def correct(completion, answer, info):
    """1 if the word is right, 0.2 if only its root is."""
    reply = (completion[-1].content or "").strip()
    if reply == answer:
        return 1.0
    return 0.2 if reply.startswith(info["root"] + " ") and len(reply) <= len(info["root"]) + 12 else 0.0


def speaker(messages, state, rng):
    """Always right."""
    return state["answer"]


def tourist(messages, state, rng):
    """The root with a random ending."""
    root = messages[-1].content.split(",")[0]
    vowel = rng.choice("oe")
    return f"{root}{rng.choice(['', ' r', f' {vowel} r'])} {rng.choice(sorted(CASES.values())).replace('V', vowel)}"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with invented words of three to six letters."""
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Write the word with its ending, letter by letter.",
        rubric=vf.Rubric([correct]),
        policies={"speaker": speaker, "tourist": tourist},
    )
