"""Parsers: answers extracted from completions, and format rewards."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from rove.rubrics.parser import (
    MaybeThinkParser,
    Parser,
    ThinkParser,
    XMLParser,
    extract_boxed_answer,
    extract_hash_answer,
    visible_response,
)

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "<answer>5</answer>"},
    {"role": "tool", "content": "4", "tool_call_id": "a"},
    {"role": "assistant", "content": "<answer>4</answer>"},
    {"role": "user", "content": "Thanks."},
]

tagless = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"])).filter(
    lambda text: "[THINK]" not in text
)
texts_with_tags = st.lists(
    st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "<tool>", "</tool>", "\n", " ", "x"])
).map("".join)


# Parser


def test_parser_takes_the_last_assistant_message_from_dicts_messages_and_text():
    assert Parser().parse_answer(CONVERSATION) == "<answer>4</answer>"
    assert Parser().parse_answer([UserMessage("hi"), AssistantMessage("one"), AssistantMessage("two")]) == "two"
    assert Parser().parse_answer("a completion") == "a completion"
    assert Parser().parse_answer([{"role": "user", "content": "hi"}]) is None
    assert Parser().parse_answer([]) is None


def test_parser_reads_content_parts_and_missing_content():
    parts = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    assert Parser().parse_answer([{"role": "assistant", "content": parts}]) == "42"
    assert Parser().parse_answer([{"role": "assistant", "content": None, "tool_calls": []}]) == ""


def test_extract_fn_is_applied():
    assert Parser(lambda text: text[-1]).parse_answer("abc") == "c"
    assert Parser(extract_fn=int).parse("12") == 12


def test_message_getters():
    parser = Parser()
    assert [m.content for m in parser.get_assistant_messages(CONVERSATION)] == [
        "<answer>5</answer>",
        "<answer>4</answer>",
    ]
    assert parser.get_system_messages(CONVERSATION) == [SystemMessage("Be brief.")]
    assert [m["content"] for m in parser.get_user_messages(CONVERSATION)] == ["2 + 2?", "Thanks."]
    assert parser.get_tool_messages(CONVERSATION) == [ToolMessage("4", tool_call_id="a")]
    assert parser.get_assistant_messages("said") == [AssistantMessage("said")]
    assert parser.get_user_messages("said") == []


def test_a_dict_without_a_role_is_rejected():
    with pytest.raises(ConfigError, match="not a chat message"):
        Parser().parse_answer([{"content": "x"}])


def test_subclasses_can_override_parse_or_format_score():
    class Last(Parser):
        def __init__(self):
            super().__init__()

        def parse(self, text):
            return text.split()[-1]

        def format_score(self, text):
            return 0.5

    assert Last().parse_answer([{"role": "assistant", "content": "it is 7"}]) == "7"
    assert Last().get_format_reward_func()("x") == 0.5


def test_a_parser_without_a_format_rewards_any_text():
    for parser in (Parser(), MaybeThinkParser()):
        reward = parser.get_format_reward_func()
        assert reward.__name__ == "format_reward"
        assert reward(completion=CONVERSATION) == 1.0


# ThinkParser, MaybeThinkParser


@each_row(
    ("text", "think", "maybe"),
    [
        ("<think>a</think> 4 ", "4", "4"),
        ("a</think>4", "4", "4"),
        ("<think>a</think>b</think>4", "4", "4"),
        ("<think>never done", "", ""),
        ("<think>a</think>b<think>4", "", ""),
        ("<THINKING>a</Thinking>4", "4", "4"),
        ("[THINK]a[/THINK]4", "4", "4"),
        (" 4 ", "", "4"),
        ("", "", ""),
    ],
)
def test_think_parsers_return_the_text_after_the_last_think_tag(text, think, maybe):
    assert ThinkParser().parse_answer(text) == think
    assert MaybeThinkParser().parse_answer(text) == maybe
    assert ThinkParser(lambda t: t + "!").parse(text) == think + "!"


UNFINISHED = [
    "<think>It could be <answer>4</answer> or \\boxed{4} but let me",
    "<Think >4 \\boxed{4}<answer>4</answer>",
    "<reasoning>a <answer>4</answer> \\boxed{4}",
    "<think>a</think>b<think><answer>4</answer> \\boxed{4}",
    "<think>a<reasoning>b</reasoning><answer>4</answer> \\boxed{4}",
]


@each_row("text", UNFINISHED)
def test_no_parser_reads_an_answer_out_of_unfinished_reasoning(text: str):
    assert visible_response(text) == ""
    assert XMLParser(["think", "answer"]).parse_answer(text) is None
    assert (
        Parser().parse_answer(text) == MaybeThinkParser().parse_answer(text) == ThinkParser().parse_answer(text) == ""
    )
    assert Parser(lambda reply: extract_boxed_answer(reply, strict=True)).parse_answer(text) == ""


def test_an_answer_within_finished_reasoning_does_not_count():
    text = "<think>It could be <answer>4</answer></think>I give up"
    assert XMLParser(["think", "answer"]).parse_answer(text) is None
    assert visible_response(text) == "I give up"
    assert Parser().parse_answer(text) == text


def test_an_answer_may_be_before_reasoning_if_the_fields_have_this_order():
    parser = XMLParser(["answer", "reasoning"])
    assert parser.parse_answer(parser.format(answer="42", reasoning="not <answer>3</answer>")) == "42"
    assert parser.parse_answer("<answer>42</answer><reasoning>cut off") == "42"
    assert parser.parse_answer("<reasoning>a</reasoning><answer>42</answer>") == "42"
    assert parser.parse_answer("draft <answer>3</answer></reasoning>") is None
    assert parser.parse_answer("<think>draft <answer>3</answer><reasoning>") is None
    assert XMLParser(["reasoning", "answer"]).parse_answer("<answer>3</answer><reasoning>a</reasoning>") is None


@pytest.mark.parametrize("code", ["print('<think>')", "print('<think></think>')"])
def test_an_answer_may_contain_tags_of_reasoning(code: str):
    parser = XMLParser(["think", "code"], answer_field="code")
    for reasoning in ("", "<think>a</think>"):
        assert parser.parse_answer(f"{reasoning}<code>{code}</code>") == code
    assert parser.parse_answer(f"<think><code>{code}</code>") is None
    assert parser.parse_answer(f"<code>{code}</code></think>") is None
    assert parser.parse_answer("<code>a</think>b</code>") is None


def test_the_reasoning_itself_can_be_the_answer_field():
    parser = XMLParser(["reasoning", "answer"], answer_field="reasoning")
    assert parser.parse_answer("<reasoning>a</reasoning><answer>4</answer>") == "a"


@given(st.text(st.characters(exclude_characters="<>[]", exclude_categories=["Cs"])))
def test_a_reply_without_reasoning_tags_is_its_own_response(text: str):
    assert visible_response(text) == text.strip()
    assert visible_response(f"<think>{text}</think>{text}") == text.strip()
    assert visible_response(f"{text}<think>{text}") == ""


@each_row(
    ("text", "score"),
    [
        ("<think>a</think>4", 1.0),
        ("\n<think>\na\n</think>\n\n4", 1.0),
        ("<think></think>4", 1.0),
        ("<think>a</think>", 0.0),
        ("<think>a</think>\n ", 0.0),
        ("a</think>4", 0.0),
        ("<think>a 4", 0.0),
        ("</think>a<think>4", 0.0),
        ("<think>a</think>4<think>b</think>5", 0.0),
        ("<think>a<think>b</think>4", 0.0),
        ("<think>a</think>b</think>4", 0.0),
        ("Well, <think>a</think>4", 0.0),
        ("4", 0.0),
        ("", 0.0),
    ],
)
def test_think_format_reward_requires_one_think_block_and_an_answer(text, score):
    assert ThinkParser().get_format_reward_func()(text) == score


def test_format_reward_is_the_mean_over_assistant_messages():
    reward = ThinkParser().get_format_reward_func()
    good, bad = AssistantMessage("<think>a</think>4"), AssistantMessage("4")
    assert reward([good, UserMessage("no format here"), bad]) == 0.5
    assert reward([UserMessage("hi")]) == 0.0


# XMLParser: fields


def test_xml_parse_returns_every_field_name_and_alias():
    parsed = XMLParser(["think", ("tool", "answer")]).parse("<think> hm </think><answer>4</answer>")
    assert parsed == SimpleNamespace(think="hm", tool=None, answer="4")


def test_xml_parse_strip_and_last():
    parser = XMLParser(["answer"])
    text = "<answer>\n1 </answer><answer> 2\n</answer>"
    assert parser.parse(text).answer == "1"
    assert parser.parse(text, last=True).answer == "2"
    assert parser.parse(text, strip=False).answer == "\n1 "
    assert parser.parse(text, False, True).answer == " 2\n"
    assert parser.parse("<answer></answer>").answer == ""
    assert parser.parse("<answer> \n </answer>").answer == ""


@each_row(
    ("text", "first", "last"),
    [
        ("<a>1</a> or <a>2</a>", "1", "2"),
        ("<a>1</a> or <a>2", "1", "1"),
        ("<a>1</a></a>", "1", "1"),
        ("</a><a>1</a>", "1", "1"),
        ("<a>cut <a>1</a>", "1", "1"),
        ("<a>cut <a>1</a><a>cut <a>2</a>", "1", "2"),
        ("<a>1<b>2</b></a>", "1<b>2</b>", "1<b>2</b>"),
        ("<a>1\n2</a>", "1\n2", "1\n2"),
        ("<a>1", None, None),
        ("1</a>", None, None),
        ("</a>1<a>", None, None),
        ("<A>1</A>", None, None),
        ("", None, None),
    ],
)
def test_xml_parse_reads_only_complete_tag_pairs(text, first, last):
    parser = XMLParser(["a", "b"], answer_field="a")
    assert parser.parse(text).a == first
    assert parser.parse(text, last=True).a == last
    assert parser.parse_answer(text) == last


def test_xml_answer_is_the_last_in_the_last_assistant_message():
    parser = XMLParser(["answer"])
    assert parser.parse_answer(CONVERSATION) == "4"
    drafts = AssistantMessage("<answer>draft</answer> no, <answer>final</answer>")
    assert parser.parse_answer([AssistantMessage("<answer>old</answer>"), drafts]) == "final"
    assert parser.parse_answer([drafts, AssistantMessage("I give up")]) is None
    assert parser.parse_answer([UserMessage("<answer>not the model's</answer>")]) is None


def test_xml_answer_field_and_extract_fn():
    assert XMLParser(["think", "move"], answer_field="move", extract_fn=int).parse_answer("<move> 3 </move>") == 3
    assert XMLParser([("tool", "answer")]).parse_answer("<answer>4</answer>") == "4"
    assert XMLParser([("tool", "answer")]).parse_answer("<tool>4</tool>") is None


def test_xml_unknown_answer_field_raises_an_error():
    parser = XMLParser(["think", "answers"])
    assert parser.parse("<answers>4</answers>").answers == "4"
    with pytest.raises(ConfigError, match="did you mean 'answers'"):
        parser.parse_answer("<answers>4</answers>")


def test_xml_fields_may_have_the_names_of_method_parameters():
    parser = XMLParser(["self", "text"], answer_field="text")
    assert parser.parse(parser.format(self="a", text="b")) == SimpleNamespace(self="a", text="b")


@each_row(
    ("fields", "match"),
    [
        ([], "expected a list"),
        ("answer", "expected a list"),
        (["think", "think"], "given twice"),
        (["think", ("tool", "think")], "given twice"),
        ([()], "at least one"),
        (["a b"], "cannot be a tag"),
        (["<a>"], "cannot be a tag"),
        ([""], "cannot be a tag"),
        ([("a", 3)], "cannot be a tag"),
    ],
)
def test_xml_invalid_fields_are_rejected(fields, match):
    with pytest.raises(ConfigError, match=match):
        XMLParser(fields)


def test_xml_format_instructions_and_formatted_texts():
    parser = XMLParser(["think", ("code", "answer")])
    assert parser.get_fields() == ["think", "code"]
    assert parser.get_format_str() == "<think>\n...\n</think>\n<[ code | answer ]>\n...\n</[ code | answer ]>"
    assert parser.format(think="hm", code=4) == "<think>\nhm\n</think>\n<code>\n4\n</code>"
    assert parser.format(answer=4, think="hm") == parser.format(think="hm", code=4)


def test_xml_format_rejects_missing_and_unknown_fields():
    parser = XMLParser(["think", ("code", "answer")])
    with pytest.raises(ConfigError, match="no value for the field 'code'; pass code or answer="):
        parser.format(think="x")
    with pytest.raises(ConfigError, match="did you mean 'answer'"):
        parser.format(think="x", code="y", anwser="z")


@given(tagless, tagless)
def test_xml_parse_inverts_format(think, answer):
    parser = XMLParser(["think", ("answer", "tool")])
    text = parser.format(think=think, answer=answer)
    for last in (False, True):
        assert parser.parse(text, last=last) == SimpleNamespace(think=think.strip(), answer=answer.strip(), tool=None)
    raw = parser.parse(text, strip=False)
    assert (raw.think, raw.answer) == (f"\n{think}\n", f"\n{answer}\n")
    assert parser.parse_answer([AssistantMessage(text)]) == answer.strip()


@given(tagless, tagless)
def test_xml_format_output_earns_the_full_format_reward(think, answer):
    parser = XMLParser(["think", "answer"])
    assert parser.format_score(parser.format(think=think.strip(), answer=answer.strip())) == 1.0


@given(st.lists(tagless, min_size=1))
def test_xml_parse_answer_returns_the_last_of_several_answers(answers):
    text = " then ".join(f"<answer>{answer}</answer>" for answer in answers)
    assert XMLParser(["answer"]).parse_answer(text + "<answer>cut off") == answers[-1].strip()
    assert XMLParser(["answer"]).parse(text).answer == answers[0].strip()


# XMLParser: format reward


@each_row(
    ("text", "score"),
    [
        ("<think>a</think><answer>4</answer>", 1.0),
        ("\n<think>\na\n</think>\n\n<answer>\n4\n</answer>\n", 1.0),
        ("<think></think><answer></answer>", 1.0),
        ("<think> a</think><answer>4</answer>", 0.8),
        ("<think>a</think><answer>\n\n4</answer>", 0.8),
        ("So <think>a</think><answer>4</answer>", 0.8),
        ("<think>a</think><answer>4</answer> done", 0.8),
        ("<think>a</think>", 0.6),
        ("<think>a</think><answer>4", 0.6),
        ("<answer>4</answer>", 0.6),
        ("<think>4", 0.2),
        ("<other>4</other>", 0.0),
        ("4", 0.0),
        ("", 0.0),
    ],
)
def test_xml_format_score(text, score):
    reward = XMLParser(["think", "answer"]).get_format_reward_func()
    assert reward.__name__ == "format_reward"
    assert reward(completion=[AssistantMessage(text)]) == pytest.approx(score)
    assert reward(text) == pytest.approx(score)


def test_xml_format_score_accepts_any_alias():
    parser = XMLParser(["think", ("tool", "answer")])
    for alias in ("tool", "answer"):
        assert parser.format_score(f"<think>a</think><{alias}>4</{alias}>") == 1.0


def test_xml_format_reward_is_the_mean_over_assistant_messages_or_0_without_any():
    reward = XMLParser(["answer"]).get_format_reward_func()
    assert reward([AssistantMessage("<answer>4</answer>"), UserMessage("hm"), AssistantMessage("4")]) == 0.5
    assert reward([UserMessage("<answer>4</answer>")]) == 0.0
    assert reward([]) == 0.0


@given(st.lists(st.text() | texts_with_tags))
def test_format_rewards_are_between_0_and_1(texts):
    completion = [AssistantMessage(text) for text in texts]
    for parser in (XMLParser(["think", ("tool", "answer")]), ThinkParser(), MaybeThinkParser(), Parser()):
        assert 0.0 <= parser.get_format_reward_func()(completion) <= 1.0


@given(texts_with_tags)
def test_xml_format_score_without_a_complete_field_is_low(text):
    parser = XMLParser(["think", "answer"])
    if all(value is None for value in vars(parser.parse(text)).values()):
        assert parser.format_score(text) <= 0.4


def test_hostile_text_takes_linear_time():
    parser = XMLParser(["think", "answer"])
    hostile = "<answer>" * 200_000 + "</think>" * 200_000
    start = time.process_time()
    assert parser.parse_answer(hostile) is None
    assert parser.parse(hostile).think is None
    assert parser.format_score(hostile) == 0.0
    assert time.process_time() - start < 1.0


@each_row(
    ("text", "inside"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{\frac{1}{2}} and no more }", r"\frac{1}{2}"),
        (r"first \boxed{1}, then \boxed {2}.", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"{ \boxed{\{1, 2\}} ", r"\{1, 2\}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{}", ""),
    ],
)
def test_boxed_answer_is_the_last_complete_box(text: str, inside: str) -> None:
    assert extract_boxed_answer(text) == extract_boxed_answer(text, strict=True) == inside


def test_boxed_answer_of_text_without_a_box() -> None:
    assert extract_boxed_answer("just 4") == "just 4"
    assert extract_boxed_answer("just 4", strict=True) == ""
    assert extract_boxed_answer(r"\boxed{" * 200_000, strict=True) == ""


@given(st.text("ab{}\\ ", max_size=30))
def test_boxed_answers_have_balanced_braces(text: str) -> None:
    inside = extract_boxed_answer(rf"{text} \boxed{{4}}", strict=True)
    bare = re.sub(r"\\[\\{}]", "", inside)
    assert bare.count("{") == bare.count("}")


def test_hash_answer_is_the_text_after_the_last_hashes() -> None:
    assert extract_hash_answer("2 + 2 = 4\n#### 4 ") == "4"
    assert extract_hash_answer("#### 3, no: #### 4") == "4"
    assert extract_hash_answer("4") == "4"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("so</think>42", 1.0),
        ("<think>so</think>42", 0.0),
        ("so 42", 0.0),
        ("so</think>", 0.0),
        ("so</think>4</think>2", 0.0),
    ],
)
def test_the_format_of_reasoning_that_the_prompt_opened_counts_its_tag(text: str, score: float):
    reply = AssistantMessage(text, opened_reasoning="<think>\n")
    parser = ThinkParser()
    assert parser.get_format_reward_func()([reply]) == score
    assert parser.parse_answer([reply]) == parser.parse_answer([AssistantMessage(text)])
    assert reply == AssistantMessage(text, opened_reasoning="<think>\n")


def test_unfinished_reasoning_that_the_prompt_opened_has_no_answer():
    reply = AssistantMessage("I guess 42", opened_reasoning="<think>\n")
    assert (Parser().parse_answer([reply]), MaybeThinkParser().parse_answer([reply])) == ("", "")
