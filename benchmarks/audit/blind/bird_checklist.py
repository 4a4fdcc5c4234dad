"""Bird checklist: which birds of the checklist are missing from the notes of a walk?"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Compare the checklist with the notes. List the birds of the checklist that were neither seen nor heard, separated "
    "by commas: <missing>robin, wren</missing>. If no bird is missing, write <missing></missing>."
)
BIRDS = (
    "blackbird blackcap bluethroat bullfinch bunting chaffinch chiffchaff coot crossbill curlew dipper dunnock fieldfare "
    "firecrest goldcrest goldfinch goshawk greenfinch hawfinch heron hoopoe jackdaw kestrel kingfisher lapwing linnet "
    "magpie mallard nightjar nuthatch osprey plover redstart redwing robin sandpiper siskin skylark snipe starling "
    "stonechat swallow swift teal treecreeper twite wheatear whinchat wren wryneck"
).split()
PLACES = (
    "at the reed bed",
    "by the old mill",
    "along the dike",
    "in the beech wood",
    "near the quarry",
    "on the heath",
)


def missing_birds(text: str) -> frozenset[str]:
    """Return the set of names in a list with commas."""
    return frozenset(name.strip().lower() for name in text.split(",") if name.strip())


def overlap(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the number of birds in both lists, divided by the number in either; 0 without a list."""
    given, right = parser.parse_answer(completion), missing_birds(answer)
    if given is None:
        return 0.0
    return len(given & right) / len(given | right) if given | right else 1.0


def exact(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the list is complete and has no other birds."""
    return float(parser.parse_answer(completion) == missing_birds(answer))


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        birds = rng.sample(BIRDS, rng.randint(8, 11))
        missing = set(rng.sample(birds, rng.choice((0, 1, 1, 2, 2, 3, 3, 4))))
        others = [bird for bird in BIRDS if bird not in birds]
        noted = [bird for bird in birds if bird not in missing] + rng.sample(others, rng.randint(1, 3))
        rng.shuffle(noted)
        notes = " ".join(f"{rng.choice(('Saw', 'Heard'))} a {bird} {rng.choice(PLACES)}." for bird in noted)
        answer = ", ".join(bird for bird in birds if bird in missing)
        rows.append({"question": f"Checklist: {', '.join(birds)}.\nNotes: {notes}", "answer": answer})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with checklists; in an eighth of them, no bird is missing.

    Args:
        num_examples: Number of checklists in each dataset.
        seed: Random seed of the checklists; evaluation checklists are drawn separately.
    """
    parser = vf.XMLParser(["missing"], answer_field="missing", extract_fn=missing_birds)
    rubric = vf.Rubric([overlap], parser=parser)
    rubric.add_metric(exact)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
