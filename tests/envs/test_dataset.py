"""Tests of dataset rows: sources, lazy reading, and the conversion of rows to examples."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, SystemMessage, UserMessage
from rove.envs.dataset import Rows, build_example, content_key, draw_rows, example_key

ROWS = [{"question": f"q{i}"} for i in range(5)]


def write_jsonl(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")  # a trailing blank line is not a row
    return path


def hugging_face_dataset(rows) -> Any:
    from datasets import Dataset

    return Dataset.from_list(rows)


SOURCES = {
    "list": lambda path: ROWS,
    "tuple": lambda path: tuple(ROWS),
    "jsonl path": lambda path: write_jsonl(path / "rows.jsonl", ROWS),
    "jsonl name": lambda path: str(write_jsonl(path / "rows.jsonl", ROWS)),
    "generator": lambda path: (row for row in ROWS),
    "builder of a list": lambda path: lambda: ROWS,
    "generator function": lambda path: lambda: (row for row in ROWS),
    "builder of a path": lambda path: lambda: write_jsonl(path / "rows.jsonl", ROWS),
    "Hugging Face": lambda path: hugging_face_dataset(ROWS),
    "Hugging Face, streamed": lambda path: hugging_face_dataset(ROWS).to_iterable_dataset(),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("n", [-1, 0, 2, 5, 99])
def test_every_source_gives_the_same_rows(kind, n, tmp_path):
    rows = Rows(SOURCES[kind](tmp_path))
    expected = ROWS if n < 0 else ROWS[:n]
    assert [dict(row) for row in rows.first(n)] == expected
    assert [dict(row) for row in rows.first(2)] == ROWS[:2]
    assert [dict(row) for row in rows.first()] == ROWS


@given(st.integers(0, 6), st.lists(st.integers(-1, 9), max_size=5))
def test_a_generator_is_pulled_only_as_far_as_needed(size, takes):
    pulled = []

    def numbered_rows():
        for i in range(size):
            pulled.append(i)
            yield {"question": str(i)}

    rows = Rows(numbered_rows())
    assert pulled == []
    furthest = 0
    for n in takes:
        expected = size if n < 0 else min(n, size)
        assert [row["question"] for row in rows.first(n)] == [str(i) for i in range(expected)]
        furthest = max(furthest, expected)
        assert pulled == list(range(furthest))


def test_an_infinite_generator_is_accepted():
    def endless():
        while True:
            yield {"question": "again"}

    assert len(list(Rows(endless()).first(3))) == 3


def test_a_builder_is_called_once_at_the_first_read():
    calls = []

    def build():
        calls.append("built")
        return ROWS

    rows = Rows(build)
    assert calls == []
    list(rows.first(1))
    list(rows.first())
    assert calls == ["built"]


def test_only_the_needed_rows_of_a_hugging_face_dataset_are_read():
    class Watched(type(hugging_face_dataset(ROWS))):
        read: ClassVar[list[int]] = []

        def __getitem__(self, position):
            self.read.append(position)
            return super().__getitem__(position)

    dataset = hugging_face_dataset(ROWS)
    dataset.__class__ = Watched
    list(Rows(dataset).first(2))
    assert Watched.read == [0, 1]


def test_two_iterators_over_one_file_are_independent(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"question": "q{i}"}}\n\n' for i in range(5)))
    rows = Rows(file)
    first_reader, second_reader = rows.first(), rows.first()
    assert [next(first_reader)["question"] for _ in range(3)] == ["q0", "q1", "q2"]
    assert next(second_reader)["question"] == "q0"
    assert [row["question"] for row in first_reader] == ["q3", "q4"]
    assert rows.count() == 5


def test_an_exception_of_a_generator_is_raised_at_every_read():
    def broken():
        yield {"question": "q"}
        raise ValueError("no more")

    rows = Rows(broken())
    for _ in range(2):
        with pytest.raises(ValueError, match="no more"):
            list(rows.first())
    assert len(list(rows.first(1))) == 1


@pytest.mark.parametrize(("n", "count"), [(-1, None), (2, 2), (9, 4)])
def test_count_of_all_rows_of_a_generator_is_none(n, count):
    assert Rows(iter(ROWS[:4])).count(n) == count
    assert Rows(ROWS[:4]).count(n) == (4 if n < 0 else count)


@pytest.mark.parametrize("source", [5, {"question": "q"}, lambda: None, lambda: {"train": ROWS}])
def test_an_unsupported_source_is_rejected(source):
    with pytest.raises(ConfigError, match=r"a dataset cannot be a \w+; give a list of dicts"):
        list(Rows(source).first())


def test_a_dataset_dict_is_rejected():
    from datasets import DatasetDict

    with pytest.raises(ConfigError, match="a dataset cannot be a DatasetDict"):
        list(Rows(DatasetDict({"train": hugging_face_dataset(ROWS)})).first())


@pytest.mark.parametrize("bad", ["q2", None, ["q2"]])
@pytest.mark.parametrize("source", [list, iter])
def test_a_row_that_is_not_a_dict_is_reported_with_its_number(bad, source):
    with pytest.raises(ConfigError, match=r"dataset row 2 is a (str|NoneType|list), expected a dict"):
        list(Rows(source([*ROWS[:2], bad, *ROWS[3:]])).first())


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.jsonl does not exist"):
        list(Rows(tmp_path / "nothing.jsonl").first())


@pytest.mark.parametrize("line", ['{"question": ', '["q"]'])
def test_an_invalid_line_of_a_file_is_reported_with_its_number(line, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "q0"}\n\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 3: "):
        list(Rows(file).first())


# Examples


def test_the_question_follows_the_system_prompt_and_the_few_shot_messages():
    shots = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    example = build_example({"question": "2 + 2?", "answer": 4, "level": 1}, 7, "Be brief.", shots)
    assert example == {
        "question": "2 + 2?",
        "prompt": [
            SystemMessage("Be brief."),
            UserMessage("1 + 1?"),
            AssistantMessage("2"),
            UserMessage("2 + 2?"),
        ],
        "answer": "4",
        "info": {},
        "level": 1,
        "example_id": 7,
    }


def test_a_prompt_overrides_the_question_and_gets_no_few_shot_messages():
    row = {"prompt": [{"role": "user", "content": "hi"}], "question": "unused"}
    example = build_example(row, 0, "Be brief.", [UserMessage("shot")])
    assert example["prompt"] == [SystemMessage("Be brief."), UserMessage("hi")]


def test_a_system_message_in_the_prompt_overrides_the_system_prompt():
    row = {"prompt": [{"role": "system", "content": "Mine."}, {"role": "user", "content": "hi"}]}
    assert build_example(row, 0, "Theirs.")["prompt"] == row["prompt"]


def test_a_prompt_can_be_a_string():
    assert build_example({"prompt": "hi"}, 0)["prompt"] == [UserMessage("hi")]


@pytest.mark.parametrize("name", ["prompt", "question"])
def test_in_completion_mode_the_prompt_is_a_string(name: str):
    example = build_example({name: "Once upon", "answer": 4}, 7, message_type="completion")
    assert example == {name: "Once upon", "prompt": "Once upon", "answer": "4", "info": {}, "example_id": 7}
    assert example_key(example) != example_key(build_example({name: "Once upon", "answer": 4}, 7))


@pytest.mark.parametrize("row", [{"prompt": [UserMessage("hi")]}, {"question": 7}])
def test_in_completion_mode_other_prompts_are_rejected(row: dict[str, Any]):
    kind = type(next(iter(row.values()))).__name__
    with pytest.raises(ConfigError, match=f"row 3: '{next(iter(row))}' is a {kind}; .*'completion' needs a text"):
        build_example(row, 3, message_type="completion")


def test_missing_columns_get_empty_values():
    example = build_example({"question": "q", "answer": None, "info": None}, 3)
    assert (example["answer"], example["info"], example["example_id"]) == ("", {}, 3)


@pytest.mark.parametrize(
    ("info", "expected"),
    [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), ("", {}), (MappingProxyType({"a": 1}), {"a": 1})],
)
def test_info_is_a_dict_or_a_json_string(info, expected):
    assert build_example({"question": "q", "info": info}, 0)["info"] == expected


@pytest.mark.parametrize("info", ["{", "[1]", 5, [1]])
def test_invalid_info_is_rejected(info):
    with pytest.raises(ConfigError, match="dataset row 3: 'info' is"):
        build_example({"question": "q", "info": info}, 3)


@pytest.mark.parametrize("row", [{}, {"answer": "4"}, {"question": None, "prompt": None}])
def test_a_row_without_prompt_and_question_is_rejected(row):
    with pytest.raises(ConfigError, match="dataset row 3 has neither 'prompt' nor 'question'; its columns are"):
        build_example(row, 3)


@pytest.mark.parametrize("prompt", [[{"role": "robot", "content": "hi"}], [{"content": "hi"}], 5])
def test_an_invalid_prompt_is_rejected(prompt):
    with pytest.raises(ConfigError, match=r"not (a )?chat message"):
        build_example({"prompt": prompt}, 3)


def test_build_example_does_not_modify_the_row():
    row = {"question": "q", "info": '{"a": 1}'}
    build_example(row, 0, "Be brief.")
    assert row == {"question": "q", "info": '{"a": 1}'}


@given(st.text(), st.text(), st.dictionaries(st.text(), st.integers()), st.integers(0, 99), st.integers(0, 99))
def test_the_example_key_does_not_depend_on_the_row_number_or_column_order(
    question, answer, info, first_index, second_index
):
    row = {"question": question, "answer": answer, "info": info}
    shuffled = {"info": dict(reversed(info.items())), "answer": answer, "question": question}
    assert example_key(build_example(row, first_index)) == example_key(build_example(shuffled, second_index))


def test_prompt_answer_and_info_are_part_of_the_example_key():
    row = {"question": "q", "answer": "a", "info": {"seed": 1}}
    keys = {
        example_key(build_example(row, 0)),
        example_key(build_example(row, 0, "Be brief.")),
        example_key(build_example({**row, "question": "Q"}, 0)),
        example_key(build_example({**row, "answer": "b"}, 0)),
        example_key(build_example({**row, "info": {"seed": 2}}, 0)),
    }
    assert len(keys) == 5


def number_row(rng):
    number = rng.randrange(300)
    return {"question": f"{number} + 1?", "answer": str(number + 1), "info": {"id": rng.random()}}


def board_row(rng):
    return {"question": "Your move.", "info": {"board": rng.randrange(300)}}


@given(st.sampled_from([number_row, board_row]), st.integers(0, 400), st.integers(0, 9), st.integers(0, 9))
def test_drawn_rows_differ_and_no_row_is_for_both_purposes(make_row, count, training_seed, evaluation_seed):
    training = [content_key(row) for row in draw_rows(make_row, count, training_seed, held_out=False)]
    held_out = [content_key(row) for row in draw_rows(make_row, count, evaluation_seed, held_out=True)]
    assert len(set(training)) == len(training) == min(count, 300 - len(draw_rows(make_row, 300, 0, held_out=True)))
    assert len(set(held_out)) == len(held_out)
    assert not set(training) & set(held_out)


def test_drawing_ends_if_no_row_belongs_to_the_purpose():
    def make_row(rng):
        return {"question": "always the same", "answer": "1"}

    counts = {len(draw_rows(make_row, 5, 0, held_out=held_out)) for held_out in (False, True)}
    assert counts == {0, 1}
    with pytest.raises(ConfigError, match="share is 1"):
        draw_rows(make_row, 5, 0, held_out=True, share=1)
    with pytest.raises(ConfigError, match="count is -1; expected 0 or more"):
        draw_rows(make_row, -1, 0, held_out=True)
