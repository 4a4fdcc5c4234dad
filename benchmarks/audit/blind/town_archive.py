"""Town archive: find facts about invented towns with a search tool, and cite the documents."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer the question with the archive. search(query) lists documents, and read(doc) shows one. Give the year in "
    "<answer> tags, and cite the documents that prove it, such as: <answer>1234</answer> [d12] [d7]. Cite only documents "
    "that are needed."
)
STARTS = "Al Bren Cor Dun Esk Fal Gar Hol Ing Jor Kel Lor Mar Nev Orm".split()
ENDS = "by ford ham ley mouth ster ton wick".split()
FIRST = "Ada Bruno Carla Dario Elin Faisal Gita Henrik Irma Jonas Katja Lionel".split()
LAST = "Abney Birch Crane Doyle Ember Frost Gale Hobbs Irons Jarvis Knoll Lark Moss".split()
TOP = 4


@functools.cache
def archive(seed: int) -> tuple[dict[str, tuple[str, str]], list[dict[str, Any]]]:
    """Return the documents, as title and text, and the towns."""
    rng = random.Random(f"{seed}:archive")
    names = [start + end for start in STARTS for end in ENDS]
    people = [f"{first} {last}" for first in FIRST for last in LAST]
    rng.shuffle(names)
    rng.shuffle(people)
    numbers = rng.sample(range(1, 1000), 2 * len(names))
    documents, towns = {}, []
    for index, (town, person) in enumerate(zip(names, people)):
        history, office = f"d{numbers[2 * index]}", f"d{numbers[2 * index + 1]}"
        founded, bridge = rng.randint(1050, 1500), rng.randint(1501, 1890)
        documents[history] = (
            f"History of {town}",
            f"{town} was founded in {founded}. Its stone bridge was built in {bridge}.",
        )
        pets = rng.choice(["goats", "bees", "ducks"])
        documents[office] = (person, f"{person} is the mayor of {town} and breeds {pets}.")
        towns.append({"town": town, "person": person, "founded": founded, "bridge": bridge, "docs": [history, office]})
    return documents, towns


def search(query: str, state: vf.State) -> list[dict[str, str]]:
    """List documents whose titles or texts have words of the query, the best first.

    Args:
        query: words to look for
    """
    words = set(re.findall(r"\w+", query.lower()))
    documents, _ = archive(state["info"]["seed"])
    ranked = []
    for doc, (title, text) in documents.items():
        score = 2 * len(words & set(re.findall(r"\w+", title.lower()))) + len(
            words & set(re.findall(r"\w+", text.lower()))
        )
        if score:
            ranked.append((-score, doc, title))
    return [{"doc": doc, "title": title} for _, doc, title in sorted(ranked)[:TOP]]


def read(doc: str, state: vf.State) -> str:
    """Show a document.

    Args:
        doc: id of the document, such as d12
    """
    documents, _ = archive(state["info"]["seed"])
    if doc not in documents:
        raise ValueError("there is no such document")
    state["read"].append(doc)
    return documents[doc][1]


def _reply(completion: vf.Messages) -> str:
    last = completion[-1]
    return (last.content or "") if last.role == "assistant" else ""


def right(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the reply has exactly one answer and it is right."""
    return float(
        [text.strip() for text in re.findall(r"<answer>(.*?)</answer>", _reply(completion), re.DOTALL)] == [answer]
    )


def citations(completion: vf.Messages, state: vf.State) -> float:
    """Return the F1 score of the cited documents; a document that was not read in this rollout counts as wrong."""
    cited = set(re.findall(r"\[(d\d+)\]", _reply(completion)))
    needed = set(state["info"]["docs"])
    hits = cited & needed & set(state["read"])
    return 2 * len(hits) / (len(cited) + len(needed))


def grounded(completion: vf.Messages, answer: str, state: vf.State) -> float:
    """Return 0.6 for a right answer, plus up to 0.4 for its citations."""
    return right(completion, answer) * (0.6 + 0.4 * citations(completion, state))


def archivist(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Read the mayor's document, then the town's."""
    turn, info = len(state["trajectory"]), state["info"]
    if turn == 0:
        return vf.tool_call("search", query=info["person"])
    if turn == 1:
        return vf.tool_call("read", doc=info["docs"][1])
    if turn == 2:
        town = re.search(r"mayor of (\w+)", messages[-1].content).group(1)
        return vf.tool_call("search", query=f"History of {town}")
    if turn == 3:
        return vf.tool_call("read", doc=info["docs"][0])
    years = re.findall(r"\d{4}", messages[-1].content)
    year = years[0] if "founded" in info["asked"] else years[1]
    return f"<answer>{year}</answer> [{info['docs'][1]}] [{info['docs'][0]}]"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give any year."""
    return f"<answer>{rng.randint(1050, 1890)}</answer>"


class ArchiveEnv(vf.StatefulToolEnv):
    """An environment with two tools that read an archive."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(search, args_to_skip=["state"])
        self.add_tool(read, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["read"] = []

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(seed: int, evaluation: bool) -> list[dict[str, Any]]:
    rows = []
    for index, town in enumerate(archive(seed)[1]):
        if (index % 3 == 0) != evaluation:
            continue
        for asked, text in (("founded", "was the town founded"), ("bridge", "was the stone bridge built in the town")):
            rows.append(
                {
                    "question": f"In which year {text} whose mayor is {town['person']}?",
                    "answer": str(town[asked]),
                    "info": {"seed": seed, "asked": asked, "person": town["person"], "docs": town["docs"]},
                }
            )
    random.Random(f"{seed}:{evaluation}").shuffle(rows)
    return rows


def load_environment(seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with an archive; the towns of the evaluation are not asked about in training.

    Args:
        seed: Random seed of the archive and of the order of the rows.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([grounded])
    rubric.add_metric(right)
    rubric.add_metric(citations)
    return ArchiveEnv(
        dataset=lambda: _rows(seed, False),
        eval_dataset=lambda: _rows(seed, True),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"archivist": archivist, "guesser": guesser},
        max_turns=max_turns,
    )
