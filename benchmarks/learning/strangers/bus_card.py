"""Bus card: find one time or bay on a card of four to eight buses."""

import random
import zlib

import rove as vf

TOWNS = ["Arden", "Holt", "Selby", "Corby", "Ripley", "Wells", "Tring", "Oakham", "Malton", "Nairn", "Leek", "Frome"]


def make(rng):
    count = rng.randint(4, 8)
    towns = rng.sample(TOWNS, count)
    times = rng.sample([f"{hour}:{minute:02}" for hour in range(6, 22) for minute in range(0, 60, 5)], count)
    bays = rng.sample("ABCDEFGHJK", count)
    card = "\n".join(f"{town} {time} bay {bay}" for town, time, bay in zip(towns, times, bays))
    n = rng.randrange(count)
    question, answer = rng.choice([(f"When to {towns[n]}?", times[n]), (f"Which bay to {towns[n]}?", bays[n])])
    return {"question": f"{card}\n{question}", "answer": answer}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all cards is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = row["question"]
        if key not in seen and (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


def correct(completion, answer, parser):
    """1 if the text in the tags is right."""
    return float(parser.parse_answer(completion) == answer)


def traveller(messages, state, rng):
    """Always right."""
    return f"<answer>{state['answer']}</answer>"


def hurried(messages, state, rng):
    """The right column of a random line."""
    *card, question = messages[-1].content.split("\n")
    words = rng.choice(card).split()
    return f"<answer>{words[1] if question.startswith('When') else words[3]}</answer>"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with cards of four to eight buses."""
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric([correct], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Read the card. Answer <answer>time or bay</answer>",
        parser=parser,
        rubric=rubric,
        policies={"traveller": traveller, "hurried": hurried},
    )
