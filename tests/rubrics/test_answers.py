"""Where the final answer of a reply is, and which texts are equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.messages import AssistantMessage
from rove.rubrics.answers import normalized, read_answer, tagged_answer, unwrapped


@each_row(
    ("text", "answer"),
    [
        ("<answer> 1 </answer> or <answer>\n2\n</answer>", "2"),
        (r"So \boxed{3} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{3} <answer>4</answer>", "4"),
        ("First I add.\n\nAnswer: 5\n\n", "5"),
        ("the final answer", "the final answer"),
        ("<think><answer>6</answer></think>7", "7"),
        ("<answer></answer>", ""),
        ("", ""),
        ("<Answer>a</ANSWER>", "a"),
        ('<answer type="text">a</answer >', "a"),
        ("<answer>draft <answer>a</answer>", "a"),
        (r"<answer>It is \boxed{a}</answer>", "a"),
        (r"<answer>**a**</answer>", "a"),
        (r"\boxed{\text{a b}}", "a b"),
        ("<answer>Answer: a</answer>", "a"),
        ("< answer ><b>a</b></ answer >", "a"),
        ("**Answer: a**", "a"),
        ("**Answer:** a", "a"),
        ("**Answer:** `a`", "a"),
        ("**Answer**: **a**", "a"),
        ("_Final answer_: _a_", "a"),
        ("### Final answer:\n\n**a**", "a"),
        ("Answer: a\n\nIt is the first letter.", "a"),
        ("Answer: a\nor maybe not", "or maybe not"),
        ("Answer: a\n\nWait, no. It is\nb", "b"),
        ("Answer: what is asked?\nANSWER: a", "a"),
        ("The sum is\n$$\na\n$$", "a"),
        ("So\n```\na\n```", "a"),
        ("2 + 3 = 5\n#### 5", "5"),
        ("#### Step 1\na", "a"),
    ],
)
def test_the_answer_is_in_the_tag_else_in_the_box_else_after_the_label_else_in_the_last_line(text: str, answer: str):
    assert read_answer(text) == answer
    assert read_answer([AssistantMessage("<answer>no</answer>"), AssistantMessage(text)]) == answer


@each_row(
    "text",
    [
        "<think>maybe it is 42",
        "<think>It could be <answer>4</answer> but let me",
        "<THINK>\nSo \\boxed{4}.",
        "<thinking>4",
        "<reasoning>Answer: 4",
        "[THINK]4",
        "<think>a</think>b<think>4",
        "Well. <think>4",
        "<think>a<reasoning>b</reasoning>4",
    ],
)
def test_unfinished_reasoning_has_no_answer(text: str):
    assert read_answer(text) == ""


def test_an_unclosed_tag_has_no_content():
    assert [tagged_answer(text) for text in ("<answer>1", "1</answer>", "<answers>1</answers>", "")] == [None] * 4


@each_row(
    ("first", "second"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af"),
        ("\ufeffPa\u200bris\u2060", "Paris"),
        (" New\n York", "new york"),
        ("**Paris**", "Paris"),
        ("$\\text{Paris}$", "`Paris`"),
        ("Stra\u00dfe", "STRASSE"),
    ],
)
def test_texts_that_look_the_same_are_equal(first: str, second: str):
    assert normalized(first) == normalized(second)


@each_row(
    ("first", "second"), [("Paris.", "Paris"), ("5²", "52"), ("a*b*c", "abc"), ("x_1", "x1"), ("résumé", "resume")]
)
def test_other_texts_are_not_equal(first: str, second: str):
    assert normalized(first) != normalized(second)


def test_braces_inside_a_command_belong_to_its_content():
    assert unwrapped(r"\text{a{b}c}") == "a{b}c"
    assert unwrapped(r"\text{{a} \{ {b}}") == r"{a} \{ {b}"


def test_only_formatting_around_the_whole_text_is_removed():
    texts = ["**a** or **b**", "*", "**", "\\text{a} \\text{b}", "$5", "a_b_"]
    assert [unwrapped(text) for text in texts] == texts


@given(st.text(alphabet="*_`$\\({})[] ab", max_size=30))
def test_any_text_is_unwrapped_to_a_part_of_it(text: str):
    assert unwrapped(text) in text
