"""Files of questions: what is read out of each form, and what is refused with its line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rove as vf
from rove.core.errors import ConfigError
from rove.envs.dataset import JsonLines
from rove.envs.question_files import read_rows
from rove.envs.questions import QuestionsEnv
from tests.fuzz.corpora import kept_inputs

USER = {"role": "user", "content": "2+2?"}
FOUR_OPTIONS = ["red", "blue", "green", "black"]


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def content_of(file: Path, scorer: str = "exact") -> list[tuple[str, str]]:
    """Return the last message of every prompt, and the right answer."""
    examples = QuestionsEnv(file, scorer).get_eval_dataset()
    return [(example["prompt"][-1]["content"], example["answer"]) for example in examples]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("Q UP.JSONL", lines({"question": "2+2?", "answer": "4"}), [("2+2?", "4")]),
        ("q.ndjson", lines({"question": "2+2?", "answer": 4}), [("2+2?", "4")]),
        ("q.jsonl", "\ufeff" + 2 * lines({"question": "2+2?", "answer": "4"}), 2 * [("2+2?", "4")]),
        ("q.jsonl", "\ufeff\n\n" + lines({"question": "2+2?", "answer": "4"}), [("2+2?", "4")]),
        ("q.jsonl", "\n" + lines({"question": "2+2?", "answer": "4"}) + "\n   \n", [("2+2?", "4")]),
        ("q.jsonl", lines({"question": "2+2?", "answer": "4"}).rstrip(), [("2+2?", "4")]),
        ("q.jsonl", lines({"question": "2+2?", "answer": "4"}).replace("\n", "\r\n"), [("2+2?", "4")]),
        ("q.jsonl", lines({"question": "a\u2028b\x85c", "answer": "d\u2028e"}), [("a\u2028b\x85c", "d\u2028e")]),
        ("q.jsonl", lines({"question": "2+2?", "prompt": "IGNORED?", "answer": "4"}), [("2+2?", "4")]),
        ("q.jsonl", lines({"question": "Is 1 > 2?", "answer": False}), [("Is 1 > 2?", "false")]),
        ("q.jsonl", lines({"question": "1-1?", "answer": 0}), [("1-1?", "0")]),
        ("q.jsonl", lines({"question": "<b>x</b>", "answer": "</answer>"}), [("<b>x</b>", "</answer>")]),
        ("q.jsonl", lines({"prompt": [USER, {"role": "assistant", "content": "Hm:"}], "answer": "4"}), [("Hm:", "4")]),
        ("q.jsonl", lines({"question": "Capital?", "answer": ["Amsterdam"]}), [("Capital?", "Amsterdam")]),
        ("q.csv", 'question,answer\n2+2?,4\n\n3+3?,6\n', [("2+2?", "4"), ("3+3?", "6")]),
        ("q.csv", '\ufeff"question","answer"\r\n2+2?,4\r\n', [("2+2?", "4")]),
        ("q.csv", '\nquestion,answer\n2+2?,4\n', [("2+2?", "4")]),
        ("q.csv", 'question, answer\n2+2?, 4\n"a, b", "c, d"\n', [("2+2?", "4"), ("a, b", "c, d")]),
        ("q.csv", "question,answer,\n2+2?,4,\n3+3?,6,\n", [("2+2?", "4"), ("3+3?", "6")]),
        ("q.csv", "question,answer\n=1+1,2\n", [("=1+1", "2")]),
        ("q.csv", "question,answer\n2+2\0?,4\n", [("2+2\0?", "4")]),
        ("q.csv", 'question,answer\n"two\nlines",4\n', [("two\nlines", "4")]),
        ("q.csv", 'question,answer\nx,"[1, 2]"\n', [("x", "[1, 2]")]),
        ("q.csv", f"question,answer\n{'x' * 200_000},4\n", [("x" * 200_000, "4")]),
    ],
)  # fmt: skip
def test_the_rows_of_a_file_are_read_as_they_are(tmp_path: Path, name: str, content: str, rows: list[tuple[str, str]]):
    (tmp_path / name).write_bytes(content.encode())
    assert content_of(tmp_path / name) == rows


@pytest.mark.parametrize(
    ("choices", "answer", "letter"),
    [
        (FOUR_OPTIONS, 1, "B"),
        (FOUR_OPTIONS, "2", "C"),
        (FOUR_OPTIONS, "green", "C"),
        (FOUR_OPTIONS, "D", "D"),
        (FOUR_OPTIONS, ["blue"], "B"),
        (["1", "2", "3", "4"], "3", "C"),
        ([1, 2, 3, 4], "3", "C"),
        ([0, 1, 2, 3], 3, "D"),
        ([1.5, 2.5], "2.5", "B"),
        ([True, False], False, "B"),
        (["no", "yes"], "yes", "B"),
        (["a", "A"], "b", "B"),
    ],
)
def test_the_right_option_is_read_from_letter_text_or_position(tmp_path: Path, choices: Any, answer: Any, letter: str):
    (tmp_path / "q.jsonl").write_text(lines({"question": "Which?", "choices": choices, "answer": answer}))
    [(question, right)] = content_of(tmp_path / "q.jsonl", "choice")
    assert right == letter
    text = str(choices[ord(letter) - ord("A")])
    assert f"{letter}) {text.lower() if isinstance(choices[0], bool) else text}" in question.splitlines()


FIRST_LINES = lines({"question": "a", "answer": 1}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.jsonl", FIRST_LINES.encode() + b'{"question": "x \xff?", "answer": "1"}\n', "line 3: the byte 0xff is not UTF-8"),
        ("q.jsonl", FIRST_LINES + '{"question": "x \\ud83d?", "answer": "1"}\n', r"q.jsonl, line 3: "),
        ("q.jsonl", FIRST_LINES + '{"question": "a\tb", "answer": "1"}\n', r"q.jsonl, line 3: "),
        ("q.jsonl", FIRST_LINES + '{"question": "a", "answer": NaN}\n', r"q.jsonl, line 3: "),
        ("q.jsonl", FIRST_LINES + '{"question": "a", "answer": "b\0"}\n', r"q.jsonl, line 3: "),
        ("q.jsonl", lines({"question": "a", "answer": 1}).encode("utf-16"), "is in UTF-16; expected UTF-8"),
        ("q.csv", "question,answer\na,1\n".encode("utf-16"), "is in UTF-16; expected UTF-8"),
        ("q.csv", "question,answer\na,1\nCafé?,4\n".encode("cp1252"), "line 3: the byte 0xe9 is not UTF-8; save"),
        ("q.csv", "question;answer\na;1\n", r"the header 'question;answer' has no comma; separate .* instead of ';'"),
        ("q.csv", "question\tanswer\na\t1\n", r"separate the columns by commas instead of '\\t'"),
        ("q.csv", "question,answer,answer\na,4,5\n", r"line 1: the column 'answer' is there twice"),
        ("q.csv", "question,answer, answer \na,4,5\n", r"line 1: the column 'answer' is there twice"),
        ("q.csv", "question,answer\na,1\n\nb,\n", r"row 2 .line 4. has no value in .* 'answer'; fill it in, or remove the row$"),
        ("q.csv", "question,answer\na,1\nb\n", r"row 2 \(line 3\) has no value in the column 'answer'"),
        ("q.csv", "question,answer\n,\n", r"row 1 \(line 2\) has no value in the column 'question'"),
        ("q.csv", "question,answer,\na,1,2\n", r"row 1 \(line 2\): column 3 has a value but no name"),
        ("q.csv", 'question,answer,meta\na,4,{"a":1,"b":2}\n', r"q.csv, line 2: this is not a CSV file"),
        ("q.csv", "question,answer\na,1,234\n", r"row 1 \(line 2\) has 3 fields, more fields than the header"),
        ("q.csv", 'question,answer\n"a" b,1\n', r"line 2: this is not a CSV file"),
        ("q.jsonl", FIRST_LINES + lines({"question": "a", "answer": "  "}), r"row 2 \(line 3\) has no value in .* 'answer'"),
        ("q.jsonl", FIRST_LINES + lines({"question": " \t", "answer": "b"}), r"row 2 \(line 3\) has no value in .* 'question'"),
        ("q.jsonl", lines({"question": "a", "answer": []}), "row 1 .line 1. has no value in the column 'answer'"),
        ("q.jsonl", lines({"question": "a", "answer": ["b", ""]}), "the answers are .*; expected no empty answer"),
        ("q.jsonl", lines({"question": "a", "answer": ["b", ["c"]]}), "'answer' is a list: .*; expected a text, a number, or"),
        ("q.jsonl", lines({"question": "a", "answer": {"value": "4", "alias": ["IV"]}}), "'answer' is a dict: .'value': '4'"),
        ("q.jsonl", lines({"question": {"text": "a"}, "answer": "b"}), "the column 'question' is a dict"),
        ("q.jsonl", lines({"question": ["a", 7], "answer": "b"}), "the column 'question' is not a list of messages"),
        ("q.jsonl", lines({"prompt": [{"content": "a"}], "answer": "b"}), "the column 'prompt' is not a list of messages"),
        ("q.jsonl", lines({"prompt": [{"role": "user"}], "answer": "b"}), "role 'user' and the content None; expected a text"),
        ("q.jsonl", lines({"prompt": [{"role": "user", "content": 5}], "answer": "b"}), "the content 5; expected a text or a"),
        ("q.jsonl", FIRST_LINES + f'{{"question": "a", "answer": "b", "c": {"[" * 50_000}{"]" * 50_000}}}', "q.jsonl, line 3: "),
        ("q.jsonl", lines({"input": "a", "target": "b"}), "its columns: 'input', 'target'"),
        ("q.jsonl", lines({"messages": [{"role": "user", "content": "a"}], "answer": "b"}), "its columns: 'messages', 'answer'"),
        ("q.json", "[]", "is a .json file; a file of questions is one of .jsonl, .ndjson, .csv, .parquet: write one"),
        ("q.tsv", "question\tanswer\n", "is a .tsv file; .* separate the columns by commas"),
        ("q.jsonl.gz", "", "is a .gz file; .* unpack it"),
        ("q.XLSX", "", "is a .XLSX file; .* save the sheet as CSV"),
    ],
)  # fmt: skip
def test_unreadable_rows_are_refused_with_file_and_line(tmp_path: Path, name: str, content: Any, message: str):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message):
        vf.load_environment(str(tmp_path / name))


@pytest.mark.parametrize("answer", ["1 234", "1 234.5", "Total: 1 234 567", "3*4\n#### 12 000", ["7", "1 000"]])
def test_a_right_number_with_spaces_is_refused_because_it_may_be_several(tmp_path: Path, answer: Any):
    (tmp_path / "q.jsonl").write_text(lines({"question": "a", "answer": 1}, {"question": "b", "answer": answer}))
    with pytest.raises(
        ConfigError, match=r"row 2 \(line 2\): the answer .* may be one number or several; write \d+ if"
    ):
        QuestionsEnv(tmp_path / "q.jsonl", "numeric")


@pytest.mark.parametrize("answer", ["1,234", "1\u202f234", "5 km", "a 3 by 4 grid\n#### 12", -5, 1e3])
def test_a_right_number_without_plain_spaces_is_read(tmp_path: Path, answer: Any):
    (tmp_path / "q.jsonl").write_text(lines({"question": "a", "answer": answer}))
    assert QuestionsEnv(tmp_path / "q.jsonl", "numeric").count_examples() == 1


@pytest.mark.parametrize(
    ("choices", "answer", "message"),
    [
        ("red|blue", "B", "the choices are 'red|blue'; expected a list"),
        (["red"], "A", "expected a list of 2 to 26 options"),
        ([str(n) for n in range(27)], "A", "expected a list of 2 to 26 options"),
        (["red", None], "A", "expected a list of 2 to 26 options"),
        (["red", " "], "A", "expected a list of 2 to 26 options"),
        ([{"text": "red"}, {"text": "blue"}], "A", "the column 'choices' is a dict"),
        ({"A": "red", "B": "blue"}, "A", "expected a list of 2 to 26 options"),
        (["red", "blue", "red "], "B", "the choices contain 'red' twice"),
        (["caf\u00e9", "cafe\u0301"], "A", "the choices contain .* twice"),
        (FOUR_OPTIONS, ["red", "blue"], "the scorer 'choice' expects one right option"),
        (FOUR_OPTIONS, "purple", "the answer 'purple' is none of the choices"),
        (FOUR_OPTIONS, 4, "the answer 4 is none of the choices"),
        ([1, 2, 3, 4], 3, "the answer 3 is the text of one option and the position of another"),
        (["no", "yes"], True, "the answer 'true' is none of the choices"),
    ],
)
def test_ambiguous_options_are_refused_with_the_row(tmp_path: Path, choices: Any, answer: Any, message: str):
    (tmp_path / "q.jsonl").write_text("\n" + lines({"question": "Which?", "choices": choices, "answer": answer}))
    with pytest.raises(ConfigError, match=r"row 1 \(line 2\): .*" + message.replace("|", r"\|")):
        QuestionsEnv(tmp_path / "q.jsonl", "choice")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (-2, r"it states 2 rows, and its parts have 12,861,765,246$"),  # pyarrow would reserve 34 GB for 672 bytes
        (-1, "is not a Parquet file: Integers with less than 8 bits not implemented"),
    ],
)
def test_damaged_parquet_files_that_fuzzing_found_are_refused(tmp_path: Path, number: int, message: str):
    pytest.importorskip("pyarrow.parquet")
    (tmp_path / "q.parquet").write_bytes(kept_inputs("questions_parquet")[number])
    with pytest.raises(ConfigError, match=message):
        QuestionsEnv(tmp_path / "q.parquet")


def test_parquet_columns_of_one_name_and_missing_answers_are_refused(tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["question", "answer", "answer"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(
        ConfigError, match=r"the column 'answer' is there twice|twice.parquet is not a Parquet file.*answer"
    ):
        QuestionsEnv(tmp_path / "twice.parquet")
    parquet.write_table(pa.table({"question": ["a"], "answer": [float("nan")]}), tmp_path / "nan.parquet")
    with pytest.raises(ConfigError, match="row 1 has no value in the column 'answer'"):
        QuestionsEnv(tmp_path / "nan.parquet")
    parquet.write_table(pa.table({"question": ["a"], "answer": [["b", "c"]]}), tmp_path / "list.parquet")
    assert content_of(tmp_path / "list.parquet") == [("a", "b")]


def test_the_limit_of_the_csv_module_is_restored(tmp_path: Path):
    first_limit = csv.field_size_limit()
    (tmp_path / "q.csv").write_text('question,answer\n"a,1\n')
    with pytest.raises(ConfigError, match="not a CSV file"):
        read_rows(tmp_path / "q.csv")
    assert csv.field_size_limit() == first_limit


@given(
    st.lists(
        st.tuples(st.text(min_size=1), st.text(min_size=1)).filter(lambda row: all(part.strip() for part in row)),
        min_size=1,
        max_size=5,
    )
)
def test_every_text_survives_jsonl(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]):
    file = tmp_path_factory.mktemp("any") / "q.jsonl"
    file.write_text(lines(*({"question": question, "answer": answer} for question, answer in rows)), encoding="utf-8")
    assert content_of(file) == rows


def test_a_dataset_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    (tmp_path / "d.jsonl").write_text("\ufeff" + lines({"question": "a"}, {"question": "b"}), encoding="utf-8")
    rows = JsonLines(tmp_path / "d.jsonl")
    assert [rows[0], rows[1], rows.line_number(1)] == [{"question": "a"}, {"question": "b"}, 2]
