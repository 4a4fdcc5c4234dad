"""Library hop: find the author of a book with one tool, then the shelf of the author with another."""

import json
import random
import zlib

import rove as vf

BOOKS = ["River", "Winter", "Garden", "Shadow", "Island", "Mirror", "Harvest", "Lantern", "Desert", "Orchard"]
AUTHORS = ["Adler", "Brandt", "Castro", "Dubois", "Ekman", "Fischer", "Greco", "Hansen", "Ito", "Jansen"]
SHELVES = [f"{letter} {number}" for letter in "ABCDEF" for number in range(1, 7)]


def make(rng):
    books, authors = rng.sample(BOOKS, 6), rng.sample(AUTHORS, 6)
    by = dict(zip(books, authors))
    shelves = dict(zip(authors, rng.sample(SHELVES, 6)))
    book = rng.choice(books)
    return {"question": f"Where is {book}?", "answer": shelves[by[book]], "info": {"by": by, "shelves": shelves}}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all libraries is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = str(row)
        if key not in seen and (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


class LibraryEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(self.author, args_to_skip=["info"])
        self.add_tool(self.shelf, args_to_skip=["info"])

    def author(self, book: str, info: dict) -> str:
        """Return the author of a book."""
        return info["by"].get(book, "unknown book")

    def shelf(self, name: str, info: dict) -> str:
        """Return the shelf of an author."""
        return info["shelves"].get(name, "unknown author")

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "info": state["info"]}


def found(completion, answer):
    """1 if the last message is the right shelf and nothing else."""
    last = completion[-1]
    return float(last.role == "assistant" and (last.content or "").strip() == answer)


def call(tool, **arguments):
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{tool}", "type": "function", "function": function}])


def librarian(messages, state, rng):
    """Author, shelf, answer."""
    step = len(state["trajectory"])
    if step == 0:
        return call("author", book=messages[-1].content.removeprefix("Where is ").removesuffix("?"))
    return call("shelf", name=messages[-1].content) if step == 1 else messages[-1].content


def visitor(messages, state, rng):
    """Random calls, then a random shelf."""
    kind = rng.choice(["author", "shelf", "stop"])
    if kind == "author":
        return call("author", book=rng.choice(BOOKS))
    return call("shelf", name=rng.choice(AUTHORS)) if kind == "shelf" else rng.choice(SHELVES)


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with a new library of six books for each question."""
    return LibraryEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Find the shelf with the tools. Answer only with the shelf, for example: B 4",
        rubric=vf.Rubric([found]),
        policies={"librarian": librarian, "visitor": visitor},
        max_turns=5,
    )
