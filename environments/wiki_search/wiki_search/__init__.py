"""Wiki search: the model answers questions with three tools that search the encyclopedia of an invented world."""

from __future__ import annotations

import functools
import json
import random
import re
from itertools import islice
from typing import Any

import rove as vf

from .encyclopedia import encyclopedia, words_of
from .questions import questions
from .world import FEWEST, MOST

SYSTEM_PROMPT = (
    "Use the encyclopedia to answer the question. Search for pages, list the sections of a page, and read sections. You may need "
    "facts from several pages. When you know the answer, write only a name, a year or a number in <answer> tags, for example:\n"
    "<answer>873</answer>"
)
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def normal(answer: str | None) -> str:
    """Normalize an answer: "the River Cael" to "cael", "12,437 inhabitants" to "12437", "in the year 873" to "873"."""
    text = re.sub(r"(?<=\d)[,.\u202f ](?=\d{3}\b)", "", answer or "")
    words = words_of(re.sub(r"(?<!\w)-(?=\d)", "minus ", text))
    while len(words) > 1 and words[0] in ("the", "a", "an", "in", "year", "river", "town", "of"):
        del words[0]
    words = [str(NUMBERS.index(word)) if word in NUMBERS else word for word in words]
    if len(words) == 2 and words[0].isdigit() and words[1].isalpha():
        del words[1]
    return " ".join(words)


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the normalized answer is right."""
    return float(normal(parser.parse_answer(completion)) == normal(answer))


def answered(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if there is an answer, right or wrong."""
    return float(bool(parser.parse_answer(completion)))


def sections_read(completion: vf.Messages) -> float:
    """Return the number of different sections that were read."""
    return float(len(_read(completion)))


def support_found(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return the fraction of the required sections that were read."""
    needed = {section for section, _ in info["support"]}
    return len(needed & _read(completion)) / len(needed)


def _read(completion: vf.Messages) -> set[str]:
    results = [message["content"] for message in completion if message["role"] == "tool"]
    return {text[1 : text.index("]")] for text in results if text.startswith("[")}


class WikiSearchEnv(vf.ToolEnv):
    """An environment with three tools that read one encyclopedia, which is generated when it is first needed."""

    def __init__(self, world_seed: int, num_articles: int, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.encyclopedia = functools.partial(encyclopedia, world_seed, num_articles)
        for tool in (self.search_pages, self.view_sections, self.read_section):
            self.add_tool(tool)

    def search_pages(self, query: str) -> str:
        """Search the encyclopedia for pages that contain the words of a query. Each line of the result has the form
        "page_id: title"; the best match comes first.

        Args:
            query: The names or words to search for.
        """
        pages = self.encyclopedia().search(query)
        return (
            "\n".join(f"{page.thing.page_id}: {page.thing.title}" for page in pages) or "No page contains these words."
        )

    def view_sections(self, page_id: str) -> str:
        """List the section_id of every section of a page.

        Args:
            page_id: A page_id from the result of search_pages.
        """
        page = self.encyclopedia().pages.get(page_id)
        if page is None:
            raise ValueError(f"there is no page '{page_id}'; use a page_id from the result of search_pages")
        return "\n".join(page.section_id(i) for i in range(len(page.texts)))

    def read_section(self, section_id: str) -> str:
        """Return the text of a section.

        Args:
            section_id: A section_id from the result of view_sections.
        """
        text = self.encyclopedia().sections.get(section_id)
        if text is None:
            raise ValueError(f"there is no section '{section_id}'; use a section_id from the result of view_sections")
        return f"[{section_id}] {text}"


def _call(tool: str, argument: str, *values: str) -> vf.AssistantMessage:
    functions = [{"name": tool, "arguments": json.dumps({argument: value})} for value in values]
    calls = [{"id": f"{tool}_{i}", "type": "function", "function": each} for i, each in enumerate(functions)]
    return vf.AssistantMessage(None, tool_calls=calls)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the required sections, and give the right answer only if they state the required facts."""
    support, turn = state["info"]["support"], len(state["trajectory"])
    results = [message.content for message in messages if message.role == "tool"]
    sections = list(dict.fromkeys(section for section, _ in support))
    pages = list(dict.fromkeys(section.partition(":")[0] for section in sections))
    if turn == 0:
        return _call("search_pages", "query", *(page.replace("-", " ") for page in pages))
    if turn == 1:
        return _call(
            "view_sections", "page_id", *(page for page in pages if any(f"{page}: " in text for text in results))
        )
    if turn == 2:
        return _call(
            "read_section",
            "section_id",
            *(section for section in sections if any(section in text.split() for text in results)),
        )
    proven = all(any(text.startswith(f"[{section}]") and fact in text for text in results) for section, fact in support)
    return f"<answer>{state['answer'] if proven else 'unknown'}</answer>"


def first_hit(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Search for the whole question, read the first page, and answer with a name or a number from it."""
    question, turn = state["prompt"][-1]["content"], len(state["trajectory"])
    if turn == 0:
        return _call("search_pages", "query", question)
    if turn == 1:
        return _call("view_sections", "page_id", messages[-1].content.partition(":")[0])
    if turn == 2:
        return _call("read_section", "section_id", *messages[-1].content.splitlines())
    text = " ".join(message.content.partition("] ")[2] for message in messages if message.role == "tool")
    pattern = r"\d[\d,]*" if question.startswith(("In what year", "How many")) else r"(?<!\. )\b[A-Z]\w+(?: [A-Z]\w+)*"
    candidates = [match for match in re.findall(pattern, text) if match not in question]
    return f"<answer>{rng.choice(candidates or ['unknown'])}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer without searching: one of two names in the question, a number, or a fixed word."""
    question = state["prompt"][-1]["content"]
    if " or " in question and question.startswith(("Who", "Which")):
        guess = rng.choice(question.rstrip("?").partition(", ")[2].split(" or "))
    elif question.startswith("In what year"):
        guess = rng.randint(720, 1220)
    else:
        guess = (
            rng.randint(2, 99) if question.startswith("How many") else rng.choice(["May", "June", "a hare", "Verrin"])
        )
    return f"<answer>{guess}</answer>"


def load_environment(
    num_examples: int = 1000,
    seed: int = 0,
    min_hops: int = 1,
    max_hops: int = 3,
    num_articles: int = 3000,
    world_seed: int = 0,
    max_turns: int = 12,
    judge: Any = None,
) -> vf.Environment:
    """Return an environment with questions about the encyclopedia of an invented world.

    Args:
        num_examples: Number of questions in the dataset.
        seed: Random seed of the dataset. With any seed, a fifth of all possible questions is used only for evaluation.
        min_hops, max_hops: Number of facts that an answer requires, 1 to 3.
        num_articles: Number of articles in the encyclopedia.
        world_seed: Random seed of the encyclopedia; each seed gives a different world.
        max_turns: Maximum model turns, including turns with tool calls.
        judge: Client, or name of a model in endpoints.toml, that judges the answers instead of a comparison; see
            `JudgeRubric`.
    """
    if not 1 <= min_hops <= max_hops <= 3:
        raise vf.ConfigError(f"min_hops is {min_hops}, max_hops {max_hops}; need 1 <= min_hops <= max_hops <= 3")
    if not FEWEST <= num_articles <= MOST:
        raise vf.ConfigError(f"num_articles is {num_articles}; expected {FEWEST} to {MOST}")
    parser = vf.XMLParser(["answer"])

    def rows(evaluation: bool) -> list[dict[str, Any]]:
        pages = encyclopedia(world_seed, num_articles).pages
        generated = questions(pages, f"{seed}:{evaluation}", range(min_hops, max_hops + 1), evaluation)
        return [question.row() for question in islice(generated, num_examples)]

    if judge is None:
        rubric = vf.Rubric([correct], parser=parser)
    else:
        judge_options: dict[str, Any] = {"judge_model": judge} if isinstance(judge, str) else {"judge_client": judge}
        rubric = vf.JudgeRubric(parser, **judge_options)
        rubric.add_reward_func(rubric.verdict)
    for metric in (answered, sections_read, support_found):
        rubric.add_metric(metric)
    return WikiSearchEnv(
        world_seed,
        num_articles,
        dataset=lambda: rows(False),
        eval_dataset=lambda: rows(True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"solver": solver, "first_hit": first_hit, "guesser": guesser},
        max_turns=max_turns,
    )
