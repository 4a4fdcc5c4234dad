"""Meeting end: when does a meeting end that is interrupted by breaks?"""

import random

import rove as vf

SYSTEM_PROMPT = "Work out when the meeting ends. Answer with the time as HH:MM, for example <answer>16:05</answer>."
TOPICS = ["budget", "hiring", "roadmap", "safety", "travel", "training", "website", "warehouse"]


def clock(minutes):
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def correct(completion, answer, parser):
    """1 if the time is right."""
    return float(parser.parse_answer(completion) == answer)


def make_row(rng):
    start = rng.randrange(7 * 60, 11 * 60)
    parts = [rng.randrange(15, 95) for _ in range(rng.randint(2, 4))]
    breaks = [rng.randrange(3, 40) for _ in parts[1:]]
    topics = rng.sample(TOPICS, len(parts))
    text = [f"A meeting starts at {clock(start)}."]
    for index, (topic, minutes) in enumerate(zip(topics, parts)):
        text.append(f"{minutes} minutes are about {topic}.")
        if index < len(breaks):
            text.append(f"A break of {breaks[index]} minutes follows.")
    text.append("When does it end?")
    return {"question": " ".join(text), "answer": clock(start + sum(parts) + sum(breaks))}


def make_rows(num_examples, seed):
    return [make_row(random.Random(seed + index)) for index in range(num_examples)]


def load_environment(num_examples: int = 500, num_eval_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Meetings with breaks.

    Args:
        num_examples: Number of training meetings.
        num_eval_examples: Number of evaluation meetings.
        seed: Random seed of the training meetings; the evaluation meetings use the next one.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=make_rows(num_examples, seed),
        eval_dataset=make_rows(num_eval_examples, seed + 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
    )
