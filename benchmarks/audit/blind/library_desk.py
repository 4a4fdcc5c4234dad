"""Library desk: answer questions about loans with the tools of a library."""

from __future__ import annotations

import datetime
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You work at the desk of a library. Find the answer with the tools and write it in answer tags at the end, for example "
    "<answer>2026-03-14</answer> for a date or <answer>C4</answer> for a shelf."
)
MEMBERS = "Alvarez Becker Chen Dubois Engel Farkas Gallo Hansen Iqbal Jonsson Keller Lund".split()
STARTS = ["The Silent", "A Winter", "The Last", "Beyond the", "The Glass", "A Brief", "Under the", "The Painted"]
ENDS = ["River", "Orchard", "Machine", "Garden", "Letter", "Mountain", "Harbor", "Clockmaker", "Atlas", "Violin"]


def loans(member: str, state: vf.State) -> list[dict[str, str]]:
    """List the books that a member has borrowed, with the dates on which they are due."""
    borrowed = [{"title": b["title"], "due": b["due"]} for b in state["info"]["books"] if b["member"] == member]
    if not borrowed:
        raise ValueError("no loans found under this name")
    return borrowed


def shelf(title: str, state: vf.State) -> str:
    """Return the shelf on which a book belongs."""
    for book in state["info"]["books"]:
        if book["title"].lower() == title.lower():
            return book["shelf"]
    raise ValueError("no book has this title")


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the last message has the right answer in its tags."""
    if completion[-1].role != "assistant":
        return 0.0
    return float((parser.parse_answer(completion) or "").strip() == answer)


def librarian(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look up the loan, then the shelf if it is asked for."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("loans", member=info["member"])
    if turn == 1 and info["kind"] == "shelf":
        return vf.tool_call("shelf", title=info["title"])
    return f"It is <answer>{state['answer']}</answer>."


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess without a tool."""
    return f"<answer>{rng.choice('ABCDEF')}{rng.randint(1, 9)}</answer>"


class LibraryEnv(vf.StatefulToolEnv):
    """An environment with two tools that read the library's records."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(loans, args_to_skip=["state"])
        self.add_tool(shelf, args_to_skip=["state"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        titles = rng.sample([f"{start} {end}" for start in STARTS for end in ENDS], 14)
        books, first = [], datetime.date(2026, 1, 5)
        for title in titles:
            due = first + datetime.timedelta(days=rng.randrange(340))
            place = f"{rng.choice('ABCDEF')}{rng.randint(1, 9)}"
            books.append({"title": title, "member": rng.choice(MEMBERS), "due": due.isoformat(), "shelf": place})
        book = rng.choice(books)
        member, title = book["member"], book["title"]
        number = rng.randint(100_000, 999_999)
        if rng.random() < 0.5:
            kind, question = "due", f'Request {number}: when does {member} have to return "{title}"?'
        else:
            kind = "shelf"
            own = sorted((b for b in books if b["member"] == member), key=lambda b: (b["due"], b["title"]))
            book = own[0]
            title = book["title"]
            tied = len(own) > 1 and own[1]["due"] == book["due"]
            if tied:
                kind, question = "due", f'Request {number}: when does {member} have to return "{title}"?'
            else:
                question = f"Request {number}: on which shelf belongs the book that {member} has to return first?"
        info = {"books": books, "member": member, "title": title, "kind": kind}
        rows.append({"question": question, "answer": book[kind], "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with questions at the desk of a library.

    Args:
        num_examples: Number of questions in each dataset; each has its own books and loans.
        seed: Random seed of the datasets.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["answer"], answer_field="answer")
    return LibraryEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"librarian": librarian, "guesser": guesser},
        max_turns=max_turns,
    )
