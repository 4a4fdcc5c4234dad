from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from tiers import each_row

from rove.core.errors import ConfigError
from rove.train import message_files
from rove.train.conversations import Conversation
from rove.train.message_files import arrow_row, conversation_from_row, is_message_file, read_rows

USER_MESSAGE = {"role": "user", "content": "2 + 3"}
ASSISTANT_MESSAGE = {"role": "assistant", "content": "5"}
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}


def read(path: Path) -> list[Conversation]:
    return [conversation_from_row(location, row) for location, row in read_rows(path)]


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


FORMS = [
    {"messages": [USER_MESSAGE, ASSISTANT_MESSAGE]},
    {"conversations": [{"from": "human", "value": "2 + 3"}, {"from": "gpt", "value": "5"}]},
    {"conversations": [USER_MESSAGE, ASSISTANT_MESSAGE]},
    {"prompt": [USER_MESSAGE], "completion": [ASSISTANT_MESSAGE]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "2 "}, {"type": "text", "text": "+ 3"}]},
            ASSISTANT_MESSAGE,
        ]
    },
    {"messages": json.dumps([USER_MESSAGE, ASSISTANT_MESSAGE]), "tools": None},
    [USER_MESSAGE, ASSISTANT_MESSAGE],
]


@each_row("form", FORMS)
def test_all_forms_of_a_conversation_are_equal(form: Any):
    conversation = conversation_from_row("row 1", form)
    assert conversation.messages == [USER_MESSAGE, ASSISTANT_MESSAGE]
    assert conversation.example_key == conversation_from_row("row 2", FORMS[0]).example_key
    assert (conversation.origin, conversation.tools, conversation.is_text) == ("row 1", None, False)


def test_tools_calls_reasoning_and_variables_are_kept():
    call = {"role": "assistant", "content": None, "reasoning_content": "Add.", "tool_calls": [CALL], "refusal": None}
    bare = {**call, "tool_calls": [{"name": "add", "arguments": {"a": 2}}]}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "title": None}}}
    result = {"role": "tool", "content": "5", "tool_call_id": "x"}
    row = {"messages": [USER_MESSAGE, call, result, bare], "chat_template_kwargs": {"enable_thinking": False}}
    conversation = conversation_from_row("row 1", {**row, "tools": json.dumps([tool])})
    assert conversation.messages[1] == {key: value for key, value in call.items() if key != "refusal"}
    assert conversation.messages[2] == result
    assert conversation.messages[3]["tool_calls"] == [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    ]
    assert conversation.tools == conversation_from_row("row 1", {**row, "tools": [tool]}).tools == [tool]
    assert conversation.template_kwargs == {"enable_thinking": False}


def test_prompt_and_completion_may_be_texts():
    conversation = conversation_from_row("row 1", {"prompt": "2 + 3 =", "completion": " 5"})
    assert conversation.is_text
    assert [message["content"] for message in conversation.messages] == ["2 + 3 =", " 5"]


def test_the_place_of_the_completion_is_known_only_with_prompt_and_completion():
    conversation = conversation_from_row(
        "row 1",
        {
            "prompt": [USER_MESSAGE, ASSISTANT_MESSAGE, USER_MESSAGE],
            "completion": [ASSISTANT_MESSAGE, USER_MESSAGE, ASSISTANT_MESSAGE],
        },
    )
    trained = {loss_on: conversation.trained_messages(loss_on) for loss_on in ("all", "last", "completion")}
    assert trained == {"all": None, "last": [5], "completion": [3, 5]}
    with pytest.raises(
        ConfigError, match="row 1: loss_on is 'completion', but the row has no 'prompt' and 'completion'"
    ):
        conversation_from_row("row 1", [USER_MESSAGE, ASSISTANT_MESSAGE]).trained_messages("completion")


def test_messages_with_weight_0_are_not_trained_on():
    with_weight_0, with_weight_1 = {**ASSISTANT_MESSAGE, "weight": 0}, {**ASSISTANT_MESSAGE, "weight": 1}
    for row in (
        {"messages": [USER_MESSAGE, with_weight_0, USER_MESSAGE, with_weight_1]},
        {"prompt": [USER_MESSAGE, with_weight_0, USER_MESSAGE], "completion": [ASSISTANT_MESSAGE]},
    ):
        conversation = conversation_from_row("row 1", row)
        assert conversation.messages == [USER_MESSAGE, ASSISTANT_MESSAGE, USER_MESSAGE, ASSISTANT_MESSAGE]
        assert conversation.trained_messages("all") == {3}
    assert conversation_from_row("row 1", {"messages": [USER_MESSAGE, with_weight_1]}).sampled_messages is None


def test_the_column_system_is_the_first_message():
    system = {"role": "system", "content": "Add."}
    for row in FORMS[:4]:
        conversation = conversation_from_row("row 1", {**row, "system": "Add."})
        assert conversation.messages == [system, USER_MESSAGE, ASSISTANT_MESSAGE]
        assert conversation.prompt_length in (None, 2)
        assert conversation_from_row("row 1", {**row, "system": ""}).messages == [USER_MESSAGE, ASSISTANT_MESSAGE]
    with_system = {"messages": [{**system, "content": "Own."}, USER_MESSAGE, ASSISTANT_MESSAGE], "system": "Add."}
    assert conversation_from_row("row 1", with_system).messages[0]["content"] == "Own."


WRONG_ROWS = [
    ({"messages": [USER_MESSAGE, {**ASSISTANT_MESSAGE, "weight": 0}]}, "all assistant messages have the weight 0"),
    (
        {"messages": [USER_MESSAGE, {**ASSISTANT_MESSAGE, "weight": 0.5}]},
        "message 2 has the weight 0.5; expected 0 or 1",
    ),
    ({"messages": [USER_MESSAGE, ASSISTANT_MESSAGE], "system": ["Add."]}, "'system' is .*; expected a text"),
    ({"prompt": "a", "completion": "b", "system": "Add."}, "the row has 'system', but .* are raw texts"),
    (7, "the row is 7; expected an object with 'messages', 'conversations', or 'prompt' and 'completion'"),
    ({"text": "a"}, r"the row has neither .*; its columns are \['text'\]"),
    ({"prompt": "a"}, "the row has neither"),
    ({"messages": [ASSISTANT_MESSAGE], "completion": [ASSISTANT_MESSAGE]}, "the row has several of"),
    ({"messages": [ASSISTANT_MESSAGE], "conversations": [ASSISTANT_MESSAGE]}, "the row has several of"),
    ({"prompt": "a", "completion": [ASSISTANT_MESSAGE]}, "must both be texts, or both be lists of messages"),
    ({"messages": []}, r"'messages' is \[\]; expected a list of at least one message"),
    ({"messages": {"role": "user"}}, "'messages' is .*; expected a list"),
    ({"messages": "hello"}, "'messages' is the text 'hello'; expected a list"),
    ({"messages": [USER_MESSAGE]}, "'messages' has no assistant message to train on"),
    ({"prompt": [USER_MESSAGE], "completion": [USER_MESSAGE]}, "'completion' has no assistant message to train on"),
    ({"messages": [USER_MESSAGE, "5"]}, "message 2 of 'messages' is '5'; expected an object with 'role' and 'content'"),
    ({"messages": [{"role": "asistant", "content": "5"}]}, "has the role 'asistant'; did you mean 'assistant'?"),
    ({"messages": [{"content": "5"}]}, "has the role None; expected one of"),
    ({"conversations": [{"from": "bing", "value": "5"}]}, "message 1 of 'conversations' has the role 'bing'; known: "),
    ({"messages": [{"role": "user"}, ASSISTANT_MESSAGE]}, r"message 1 of 'messages' \(user\) has no content"),
    (
        {"messages": [{"role": "user", "content": 7}, ASSISTANT_MESSAGE]},
        "has the content 7; expected a text or a list of text parts",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ASSISTANT_MESSAGE]},
        "rove trains on text only",
    ),
    (
        {"messages": [USER_MESSAGE, {**ASSISTANT_MESSAGE, "reasoning_content": 7}]},
        "has the reasoning_content 7; expected a text",
    ),
    (
        {"messages": [USER_MESSAGE, {**ASSISTANT_MESSAGE, "function_call": {"name": "f"}}]},
        "has 'function_call', which OpenAI replaced",
    ),
    (
        {"messages": [USER_MESSAGE, {**ASSISTANT_MESSAGE, "tool_calls": {"a": 1}}]},
        "has the tool_calls .*; expected a list of objects",
    ),
    (
        {
            "messages": [
                USER_MESSAGE,
                {**ASSISTANT_MESSAGE, "tool_calls": [{"function": {"name": "f", "arguments": "no"}}]},
            ]
        },
        "expected a 'name'",
    ),
    (
        {"messages": [USER_MESSAGE, {**ASSISTANT_MESSAGE, "tool_calls": [{"function": {"arguments": "{}"}}]}]},
        "expected a 'name'",
    ),
    (
        {"messages": [USER_MESSAGE, ASSISTANT_MESSAGE], "tools": {"name": "f"}},
        "'tools' is .*; expected a list of tools",
    ),
    ({"messages": [USER_MESSAGE, ASSISTANT_MESSAGE], "tools": "[{}, {]"}, "'tools' is the text .* expected a list"),
    ({"messages": [USER_MESSAGE, ASSISTANT_MESSAGE], "chat_template_kwargs": [1]}, "expected an object"),
    (
        {"messages": [USER_MESSAGE, ASSISTANT_MESSAGE], "chat_template_kwargs": {"chat_template": "x"}},
        "chat_template_kwargs has 'chat_template'",
    ),
]


@each_row(("row", "message"), WRONG_ROWS)
def test_a_wrong_row_is_reported_with_its_place(row: Any, message: str):
    with pytest.raises(ConfigError, match=f"chats.jsonl, line 3: .*{message}"):
        conversation_from_row("chats.jsonl, line 3", row)


def test_files_of_all_types_hold_equal_rows(tmp_path: Path):
    rows = [
        {"messages": [USER_MESSAGE, ASSISTANT_MESSAGE], "tools": None},
        {"messages": [USER_MESSAGE, USER_MESSAGE, ASSISTANT_MESSAGE], "tools": json.dumps([CALL])},
    ]
    expected = lines(tmp_path / "a.jsonl", *rows)
    lines(tmp_path / "a.ndjson", rows[0], "", "  ", rows[1])
    lines(tmp_path / "b.json", *rows)
    (tmp_path / "c.JSON").write_text("\ufeff \n" + json.dumps(rows, indent=2))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    names = ["a.ndjson", "b.json", "c.JSON", "a.parquet"]
    for name in names:
        assert is_message_file(tmp_path / name)
        read_again = [conversation._replace(origin="") for conversation in read(tmp_path / name)]
        assert read_again == [conversation._replace(origin="") for conversation in read(expected)]
    locations = {
        name: [conversation.origin.removeprefix(f"{tmp_path}/") for conversation in read(tmp_path / name)]
        for name in names
    }
    assert locations == {
        "a.ndjson": ["a.ndjson, line 1", "a.ndjson, line 4"],
        "b.json": ["b.json, line 1", "b.json, line 2"],
        "c.JSON": ["c.JSON, row 1", "c.JSON, row 2"],
        "a.parquet": ["a.parquet, row 1", "a.parquet, row 2"],
    }


def test_the_keys_that_parquet_adds_to_messages_are_left_out(tmp_path: Path):
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    rows = [
        {"messages": [USER_MESSAGE, call, {"role": "tool", "content": "5", "tool_call_id": "x"}, ASSISTANT_MESSAGE]}
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    [conversation] = read(tmp_path / "a.parquet")
    assert conversation.messages == rows[0]["messages"]


WRONG_LINES = [
    (b'{"messages": [}', "a.jsonl, line 2 is not JSON: Expecting value"),
    (b'{"messages": 1, "messages": 2}', "line 2 is not JSON: the key 'messages' is there twice"),
    (b'{"messages": NaN}', "line 2 is not JSON: NaN is not a JSON number"),
    (b'{"messages": "caf\xe9"}', "line 2: the byte 0xe9 is not UTF-8"),
    (b'{"messages": "\\ud800"}', "line 2 is not JSON: a text has half of a surrogate pair"),
    (b"[" * 100_000, "line 2 is not JSON: it is nested too deeply"),
    (b'{"a": ' + b"1" * 5000 + b"}", "line 2 is not JSON: Exceeds the limit"),
    (b"x" * 2000, "line 2 is longer than 1,000 bytes; expected one conversation per line"),
]


@pytest.mark.parametrize(("line", "message"), WRONG_LINES, ids=[message[:40] for _, message in WRONG_LINES])
def test_a_line_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, message: str
):
    if "longer" in message:
        monkeypatch.setattr(message_files, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(FORMS[0]).encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_other_files_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no file .*; --data takes a run folder or a file that ends in .jsonl"):
        read(tmp_path / "missing.jsonl")
    (tmp_path / "a.jsonl").write_bytes("{}".encode("utf-16"))
    with pytest.raises(ConfigError, match="UTF-16"):
        read(tmp_path / "a.jsonl")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="is not a Parquet file"):
        read(tmp_path / "a.parquet")
    (tmp_path / "folder.jsonl").mkdir()
    assert not is_message_file(tmp_path / "folder.jsonl")


def test_half_of_a_surrogate_pair_in_json_text_is_refused():
    with pytest.raises(ConfigError, match="half of a surrogate pair"):
        conversation_from_row(
            "row 1", {"messages": json.dumps([USER_MESSAGE, {**ASSISTANT_MESSAGE, "content": "\ud800"}])}
        )


def test_keys_that_arrow_adds_to_calls_and_tools_are_left_out():
    """All objects of an Arrow column have the same keys; what a row lacks is null."""
    call = {"function": {"name": "search", "arguments": {"query": "cats", "city": None}}}
    schema = {"type": "object", "properties": {"query": {"type": "string"}, "city": None}}
    row = {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "search", "parameters": schema}}],
        "chat_template_kwargs": {"enable_thinking": None},
        "info": {"kept": None},
    }
    conversation = conversation_from_row("row 1", arrow_row(row))
    assert "city" not in str(conversation.messages) + str(conversation.tools)
    assert not conversation.template_kwargs
    assert arrow_row(row)["info"] == {"kept": None}
