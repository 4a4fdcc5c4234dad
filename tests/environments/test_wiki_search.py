"""Tests of environments/wiki_search: the world, its articles, questions, answers, tools, and rollouts."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row
from toy_envs import generate_sync, scripted_client

import rove as vf

vf.load_environment("wiki_search")
wiki: Any = importlib.import_module("wiki_search")
library: Any = importlib.import_module("wiki_search.encyclopedia")
articles: Any = importlib.import_module("wiki_search.articles")
questions_module: Any = importlib.import_module("wiki_search.questions")
model: Any = importlib.import_module("wiki_search.world")
phrases: Any = importlib.import_module("wiki_search.phrases")
words: Any = importlib.import_module("wiki_search.words")

SMALL = 500


@functools.cache
def small_encyclopedia(seed: int) -> Any:
    """Return a small encyclopedia."""
    return library.Encyclopedia(articles.write_pages(model.make_world(seed, SMALL), seed))


def make_questions(
    pages: Any, count: int, hops: range = range(1, 4), evaluation: bool = False, seed: str = "0"
) -> list[Any]:
    return list(itertools.islice(questions_module.questions(pages, seed, hops, evaluation), count))


def values(record: vf.RolloutRecord) -> dict[str, float]:
    assert record.error is None, record.error
    assert record.scores is not None
    return {**record.scores.rewards, **record.scores.metrics}


# The world


@pytest.mark.parametrize("count", [model.FEWEST, 3000, model.MOST])
def test_a_world_has_the_requested_number_of_things_with_unique_names(count):
    things = [thing for kind in model.make_world(1, count).values() for thing in kind]
    assert len(things) == count
    assert len({thing.title for thing in things}) == len({thing.page_id for thing in things}) == count


@given(st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_no_fact_contradicts_another(seed):
    world = model.make_world(seed, SMALL)
    for person in world["person"]:
        facts = person.facts
        assert facts["birthplace"].facts["founded"] < facts["born"] < facts["died"]
        if facts["teacher"]:
            assert facts["teacher"].facts["born"] + 20 <= facts["born"]
            assert facts["teacher"].facts["died"] > facts["born"] + 14
    for kind, maker in (("book", "author"), ("invention", "inventor"), ("building", "architect"), ("guild", "founder")):
        for thing in world[kind]:
            assert thing.facts[maker].facts["born"] + 20 < thing.facts["year"] < thing.facts[maker].facts["died"]
            assert thing.facts[maker].facts["occupation"] == model.MAKERS[kind]
    for battle in world["battle"]:
        sides = [battle.facts[side] for side in ("victor", "loser") if battle.facts[side]]
        assert len(set(map(id, sides))) == len(sides)
        assert all(side.facts["born"] + 20 < battle.facts["year"] < side.facts["died"] for side in sides)
    assert all(fair.facts["honours"].facts["died"] < fair.facts["year"] for fair in world["festival"])


@given(st.integers(0, 2**32))
@settings(max_examples=5, deadline=None)
def test_every_river_ends_in_a_sea(seed):
    rivers = {river.name: river for river in model.make_world(seed, SMALL)["river"]}
    for river in rivers.values():
        passed = []
        while river.facts["mouth"] in rivers:
            passed.append(river)
            river = rivers[river.facts["mouth"]]
            assert river not in passed


# The articles


def test_every_gap_of_a_sentence_is_a_fact_or_has_fill_words():
    world = model.make_world(0, 3000)
    for kind, text in phrases.SECTIONS.items():
        allowed = {"name", "they", "their", "them", "first", "a_occupation", "a_emblem", *words.FILL}
        allowed |= {name for thing in world[kind] for name in thing.facts}
        assert set(articles.GAP.findall(text)) <= allowed


def test_every_questioned_fact_is_in_exactly_one_sentence_in_all_its_wordings():
    for kind, name in {*questions_module.LINKS, *questions_module.ASKS, *questions_module.COUNTS}:
        sentences = [
            wordings
            for _, section_sentences in articles._sections(phrases.SECTIONS[kind])
            for wordings in section_sentences
        ]
        stating = [wordings for wordings in sentences if any({name, f"a_{name}"} & {*gaps} for _, gaps in wordings)]
        assert len(stating) == 1, (kind, name)
        assert all({name, f"a_{name}"} & {*gaps} for _, gaps in stating[0]), (kind, name)


def test_pages_have_at_least_three_sections_with_unique_headings():
    book = small_encyclopedia(0)
    assert len(book.pages) == SMALL
    assert len(book.sections) == sum(len(page.texts) for page in book.pages.values())
    for page in book.pages.values():
        assert 3 <= len(page.texts) == len(set(page.headings))
        for text in page.texts:
            assert "{" not in text
            assert re.match(r"[A-Z“\d]", text)
            assert text.endswith(".")


def test_articles_of_a_kind_have_different_texts_and_headings():
    book = small_encyclopedia(0)
    for kind in phrases.SECTIONS:
        pages = [page for page in book.pages.values() if page.thing.kind == kind]
        texts = Counter(" ".join(page.texts).replace(page.thing.title, "") for page in pages)
        assert texts.most_common(1)[0][1] == 1
        assert len({tuple(page.headings) for page in pages}) >= 4


def test_values_and_lists_are_formatted_as_text():
    thing = model.Thing
    books = [thing("book", f"The {name}", {"year": year}) for name, year in (("A", 801), ("B", 802), ("C", 803))]
    assert articles.as_text(books[:1]) == "“The A” (801)"
    assert articles.as_text(books) == "“The A” (801), “The B” (802) and “The C” (803)"
    assert [articles.as_text(value) for value in (873, 12437, "May")] == ["873", "12,437", "May"]
    assert articles.as_text(thing("river", "River Cael")) == "the River Cael"


# The questions


def number(text: str) -> int:
    return int(text.replace(",", ""))


def answer_from(question: Any) -> str:
    """Return the answer computed from the support facts alone, without the world model."""
    facts = [fact for _, fact in question.support]
    if question.kind == "count":
        return str(len(re.split(", | and ", facts[-1])))
    if question.kind == "difference":
        first, second = (int(fact) for fact in facts if fact.isdigit())
        return str(abs(first - second))
    if question.kind == "comparison":
        most = re.search(r"\b(later|younger|more|longer)\b", question.text)
        pages = [section.partition(":")[0] for section, _ in question.support]
        return (max if most else min)(zip(map(number, facts), pages))[1].replace("-", " ")
    return facts[-1]


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_question_is_answered_by_its_support_sections(hops, seed):
    book = small_encyclopedia(seed)
    for question in make_questions(book.pages, 300, range(hops, hops + 1)):
        assert len(question.support) == hops
        for section, fact in question.support:
            assert fact in book.sections[section], question
        assert wiki.normal(answer_from(question)) == wiki.normal(question.answer), question
        assert question.answer in book.sections[question.support[-1][0]] or question.kind not in ("lookup", "bridge")


def test_each_hop_names_the_page_of_the_next():
    book = small_encyclopedia(0)
    for question in make_questions(book.pages, 300, range(2, 4)):
        if question.kind in ("bridge", "count"):
            for (_, fact), (section, _) in itertools.pairwise(question.support):
                assert book.pages[section.partition(":")[0]].thing.title == fact
            first = book.pages[question.support[0][0].partition(":")[0]].thing
            assert first.title in question.text
            assert question.kind == "count" or question.answer not in question.text


def test_counts_match_the_pages_that_state_the_fact():
    book = small_encyclopedia(0)
    sources = {"books": "book", "inventions": "invention", "buildings": "building", "guilds": "guild"}
    stating = {"book": "author", "invention": "inventor", "building": "architect", "guild": "founder"}
    checked = 0
    for question in make_questions(book.pages, 1000):
        owner = book.pages[question.support[-1][0].partition(":")[0]]
        lists = [name for name in sources if owner.thing.facts.get(name)]
        if question.kind == "count" and len(lists) == 1:
            kind = sources[lists[0]]
            pages = [page for page in book.pages.values() if page.thing.kind == kind]
            texts = [page.texts[page.section_of[stating[kind]]] for page in pages]
            assert sum(bool(re.search(rf"\b{owner.thing.title}\b", text)) for text in texts) == int(question.answer)
            checked += 1
    assert checked > 20


def test_all_kinds_of_questions_occur_without_duplicates():
    questions = make_questions(small_encyclopedia(0).pages, 600)
    assert {question.kind for question in questions} == {"lookup", "bridge", "count", "comparison", "difference"}
    assert len({question.text for question in questions}) == 600
    hops = Counter(len(question.support) for question in questions)
    assert min(hops[1], hops[2], hops[3]) > 150


def test_training_and_evaluation_share_no_question_for_any_seed():
    pages = small_encyclopedia(0).pages
    train = {question.text for seed in "012" for question in make_questions(pages, 300, seed=seed)}
    evaluation = {
        question.text for seed in "012" for question in make_questions(pages, 300, evaluation=True, seed=seed)
    }
    assert not train & evaluation


@pytest.mark.slow
def test_questions_repeat_after_all_have_been_used():
    texts = [
        question.text for question in make_questions(small_encyclopedia(0).pages, 1500, range(1, 2), evaluation=True)
    ]
    assert len(set(texts)) < len(texts) == 1500


@pytest.mark.broad
def test_another_world_has_other_questions():
    first_questions, second_questions = (
        {example["prompt"][-1].content for example in vf.load_environment("wiki_search", **options).get_dataset()}
        for options in ({"num_articles": SMALL}, {"num_articles": SMALL, "world_seed": 1})
    )
    assert len(first_questions & second_questions) < 20


# Answers


@each_row(
    ("reply", "right"),
    [
        ("River Cael", "the River Cael"),
        ("cael", "the River Cael"),
        ("the second mirror", "“The Second Mirror”"),
        ('"The Second Mirror"', "“The Second Mirror”"),
        ("12437", "12,437"),
        ("12,437 inhabitants", "12,437"),
        ("in the year 873", "873"),
        ("873.", "873"),
        ("three", "3"),
        ("3 books", "3"),
        ("589 km", "589"),
        ("Bishops Mill", "the Bishop's Mill"),
        ("A hare", "hare"),
        ("in May", "May"),
        ("Town of Calmere", "Calmere"),
    ],
)
def test_equivalent_answers_are_accepted(reply, right):
    assert wiki.normal(reply) == wiki.normal(right)


@each_row(
    ("reply", "right"),
    [
        (None, "873"),
        ("", "873"),
        ("874", "873"),
        ("-873", "873"),
        ("873 or 874", "873"),
        ("Orla", "Orla Wood"),
        ("1 243", "12,437"),
        ("the", ""),
    ],
)
def test_other_answers_are_not_accepted(reply, right):
    assert wiki.normal(reply) != wiki.normal(right)


# Rollouts


def run_policy(policy: Any, count: int = 60, **options: Any) -> list[vf.RolloutRecord]:
    env = vf.load_environment("wiki_search", num_examples=count, num_articles=SMALL, **options)
    return generate_sync(env, scripted_client(env.policies[policy] if isinstance(policy, str) else policy))


@pytest.mark.broad
def test_the_solver_answers_every_question_with_the_tools():
    for record in run_policy("solver", 300):
        assert (record.reward, values(record)["support_found"]) == (1, 1), record.prompt
        assert values(record)["sections_read"] == len({section for section, _ in record.info["support"]})
        assert values(record)["search_pages_calls"] == values(record)["view_sections_calls"]


@pytest.mark.broad
def test_guesses_and_the_first_search_hit_get_low_rewards():
    means = {name: sum(record.reward for record in run_policy(name, 300)) / 300 for name in ("guesser", "first_hit")}
    assert means["guesser"] < 0.2
    assert means["guesser"] < means["first_hit"] < 0.3


def test_tools_report_unknown_pages_and_sections():
    def unknown_pages_policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        if state["trajectory"]:
            return "<answer>nowhere</answer>"
        calls = [("search_pages", "query", "xyzzy"), ("search_pages", "query", " ?! "), ("view_sections", "page_id", "xyzzy"),
                 ("read_section", "section_id", "xyzzy:plugh")]  # fmt: skip
        tool_calls = [wiki._call(tool, argument, value)["tool_calls"][0] for tool, argument, value in calls]
        return vf.AssistantMessage(None, tool_calls=tool_calls)

    [record] = run_policy(unknown_pages_policy, 1)
    results = [message["content"] for message in record.completion if message["role"] == "tool"]
    assert results[:2] == ["No page contains these words."] * 2
    assert results[2] == "there is no page 'xyzzy'; use a page_id from the result of search_pages"
    assert results[3] == "there is no section 'xyzzy:plugh'; use a section_id from the result of view_sections"
    assert (record.reward, values(record)["sections_read"]) == (0, 0)


def test_search_finds_pages_by_title_and_by_text():
    book = small_encyclopedia(0)
    for page in book.pages.values():
        assert page in book.search(page.thing.title), page.thing.title
    river = next(page for page in book.pages.values() if page.thing.kind == "river")
    text = river.texts[river.section_of["hills"]]
    assert river in book.search(f"{text} {river.thing.title}")
    assert len(book.search("the")) <= library.SHOWN


def test_a_judge_replaces_the_comparison():
    judge_prompts: list[str] = []

    def lenient_judge(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        judge_prompts.append(messages[-1]["content"])
        return "yes"

    records = run_policy(
        lambda messages, state, rng: "<answer>who knows</answer>", 5, judge=vf.ScriptedClient(lenient_judge)
    )
    assert [record.reward for record in records] == [1.0] * 5
    assert all(
        record.prompt[-1]["content"] in text and "who knows" in text for record, text in zip(records, judge_prompts)
    )
    assert "correct" not in values(records[0])


def test_a_judge_can_be_a_model_or_endpoint_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(vf.MissingKeyError, match="OPENAI_API_KEY"):
        vf.load_environment("wiki_search", judge="some-model")
    endpoint = 'endpoint_id = "strict"\nmodel = "some-model"\nurl = "http://127.0.0.1:9/v1"\nkey = "EMPTY"\n'
    Path("endpoints.toml").write_text(f"[[endpoint]]\n{endpoint}")
    env: Any = vf.load_environment("wiki_search", judge="strict")
    assert "verdict" in env.rubric.names
    assert "correct" not in env.rubric.names


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"min_hops": 0}, "need 1 <= min_hops <= max_hops <= 3"),
        ({"min_hops": 3, "max_hops": 2}, "need 1 <= min_hops <= max_hops <= 3"),
        ({"max_hops": 4}, "need 1 <= min_hops <= max_hops <= 3"),
        ({"num_articles": 10}, "num_articles is 10; expected 500 to 3600"),
        ({"articles": 10}, "did you mean 'num_articles'"),
    ],
)
def test_invalid_settings_are_rejected(options, complaint):
    with pytest.raises(vf.ConfigError, match=complaint):
        vf.load_environment("wiki_search", **options)
