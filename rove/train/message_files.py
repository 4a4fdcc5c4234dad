"""Read files of messages for SFT, in the forms that TRL, prime-rl and Unsloth read.

A row has `messages` (OpenAI), `conversations` (ShareGPT, with `from` and `value`), or `prompt` and `completion`, which are both
messages or both texts. A text `system` becomes the first message, unless there is a system message. Assistant messages with
`"weight": 0` (OpenAI) are not trained on.

Every row is checked before training starts, because the file may come from an untrusted source.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from rove.core.errors import ConfigError, nearest, short_repr
from rove.core.messages import ROLES, text_of
from rove.core.plain import JsonMapping, JsonObject, MessageDict, is_mapping, is_sequence
from rove.core.protocols import checked_template_kwargs
from rove.envs.dataset import check_no_utf16, example_key, reject_bytes
from rove.envs.question_files import read_parquet
from rove.rendering.tool_calls import calls_of
from rove.train.conversations import Conversation

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
MAX_LINE_BYTES = 64 * 1024**2
"""Maximum size of a line: far more than any model's context, but small enough to read into memory."""
ROLE_OF_SENDER = {"human": "user", "gpt": "assistant", **{role: role for role in ROLES}}
"""Role of a ShareGPT message by its `from`."""
FORMS = "'messages', 'conversations', or 'prompt' and 'completion'"

Row = tuple[str, Any]
"""The row's position for error messages, such as "chats.jsonl, line 3", and the row's value."""


def is_message_file(path: str | Path) -> bool:
    """Return whether a path names a file of messages instead of a run folder."""
    return Path(path).suffix.lower() in SUFFIXES and not Path(path).is_dir()


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file."""
    if not path.is_file():
        raise ConfigError(f"no file '{path}'; --data takes a run folder or a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix.lower() == ".parquet":
        return ((f"{path}, row {number}", arrow_row(row)) for number, row in enumerate(read_parquet(path), start=1))
    if path.suffix.lower() == ".json" and _starts_with_bracket(path):
        return _json_array(path)
    return _json_lines(path)


def _starts_with_bracket(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


ARROW_COLUMNS = ("messages", "conversations", "prompt", "completion", "tools", "chat_template_kwargs")


def arrow_row(row: Mapping[str, Any]) -> JsonObject:
    """Return a row of a Parquet file or of a `datasets.Dataset` without null in its messages and tools.

    Arrow gives all objects of a column the same keys: a call of `search(query)` would get the arguments of every other tool.
    """
    return {name: _without_nulls(value) if name in ARROW_COLUMNS else value for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if is_mapping(value):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(item) for item in cast("Sequence[Any]", value)]
    return value


def _json_array(path: Path) -> Iterator[Row]:
    rows = _decoded(path, 1, path.read_bytes().removeprefix(codecs.BOM_UTF8))
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ConfigError(
                    f"{path}, line {number} is longer than {MAX_LINE_BYTES:,} bytes; expected one conversation per line"
                )
            if number == 1:
                check_no_utf16(path, line)
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield f"{path}, line {number}", _decoded(path, number, line)


def _decoded(path: Path, number: int, content: bytes) -> Any:
    try:
        return _load(content.decode())
    except UnicodeDecodeError as error:
        reject_bytes(path, number + content.count(b"\n", 0, error.start), error)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number} is not JSON: {error}; expected one conversation per line") from error


def _load(text: str) -> Any:
    """Return the value of a JSON text. Also raise ValueError for texts that Python's reader accepts: with repeated keys, NaN, or
    invalid Unicode."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_reject_constant)
        if "\\ud" in text.lower():  # half of a surrogate pair is valid JSON, but no tokenizer reads it
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text has half of a surrogate pair (\\ud800 to \\udfff)") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def _object(pairs: Sequence[tuple[str, Any]]) -> JsonObject:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{repeated}' is there twice")
    return values


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def conversation_from_row(source: str, row: Any) -> Conversation:
    """Return a row as a conversation.

    Args:
        source: Origin of the row, for error messages.
        row: A mapping in one of the forms, or a list of messages.
    """
    try:
        return _conversation(source, {"messages": row} if is_sequence(row) else row)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _conversation(source: str, row: Any) -> Conversation:
    if not is_mapping(row):
        raise ConfigError(f"the row is {short_repr(row)}; expected an object with {FORMS}")
    columns = {name: value for name, value in row.items() if value is not None}  # Parquet fills columns with null
    listed = [name for name in ("messages", "conversations") if name in columns]
    if len(listed) > 1 or (listed and "completion" in columns):
        raise ConfigError(f"the row has several of {FORMS}; expected one of them")
    if not listed and not {"prompt", "completion"} <= columns.keys():
        raise ConfigError(f"the row has neither {FORMS}; its columns are {sorted(map(str, row))}")
    options: JsonObject = {
        "tools": _tools(columns.get("tools")),
        "template_kwargs": _template_kwargs(columns.get("chat_template_kwargs")),
        "origin": source,
    }
    system = columns.get("system") or ""
    if not isinstance(system, str):
        raise ConfigError(f"'system' is {short_repr(system)}; expected a text")
    if listed:
        [name] = listed
        messages = _with_system(system, _messages(_from_json(columns[name], name), name))
        sampled = _take_weights(messages)
        first_response = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
        key = _key(columns, messages[:first_response])
        return Conversation(messages, sampled_messages=sampled, example_key=key, **options)
    prompt, completion = columns["prompt"], columns["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        if system:
            raise ConfigError(
                "the row has 'system', but 'prompt' and 'completion' are raw texts; write the system prompt into 'prompt', or "
                "give lists of messages"
            )
        messages: list[MessageDict] = [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": completion},
        ]
        return Conversation(messages, example_key=_key(columns, messages[:1]), prompt_length=1, is_text=True, **options)
    if isinstance(prompt, str) or isinstance(completion, str):
        raise ConfigError("'prompt' and 'completion' must both be texts, or both be lists of messages")
    prompt = _with_system(system, _messages(prompt, "prompt", needs_assistant=False))
    messages = [*prompt, *_messages(completion, "completion")]
    sampled = _take_weights(messages)
    key = _key(columns, prompt)
    return Conversation(messages, sampled_messages=sampled, example_key=key, prompt_length=len(prompt), **options)


def _with_system(system: str, messages: list[JsonObject]) -> list[JsonObject]:
    if not system or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]


def _take_weights(messages: Sequence[JsonObject]) -> frozenset[int] | None:
    """Remove OpenAI's weights from messages; return the indices of the assistant messages with weight 1, None if it is all.

    Raises:
        ConfigError: A weight is neither 0 nor 1, or all weights are 0.
    """
    weights = [message.pop("weight", 1) for message in messages]
    roles = [message["role"] for message in messages]
    for index, weight in enumerate(weights):
        if roles[index] == "assistant" and weight not in (0, 1):
            raise ConfigError(
                f"message {index + 1} has the weight {short_repr(weight)}; expected 0 or 1, as in OpenAI's API"
            )
    trained = frozenset(index for index, weight in enumerate(weights) if roles[index] == "assistant" and weight == 1)
    if not trained:
        raise ConfigError("all assistant messages have the weight 0; expected one to train on")
    return None if len(trained) == roles.count("assistant") else trained


def _key(columns: JsonMapping, prompt: Sequence[JsonMapping]) -> str:
    """Return the key by which rows are split: the prompt, and other columns of `rove export` that identify an example."""
    # Only rows of `rove export` have this column; in other files, `info` and `answer` may be anything.
    is_exported = "rollout_index" in columns
    no_info: JsonObject = {}
    info = columns.get("info", no_info) if is_exported else no_info
    answer = columns.get("answer", "") if is_exported else ""
    return example_key({"prompt": prompt, "answer": answer, "info": _from_json(info, "info")})


def _from_json(value: Any, name: str) -> Any:
    """Return a value; if it is a JSON text, return the text's value: columns whose rows differ in structure are often stored as
    text.
    """
    if not isinstance(value, str):
        return value
    try:
        return _load(value)
    except ValueError as error:
        raise ConfigError(
            f"'{name}' is the text {short_repr(value)}; expected a list or an object, or its JSON: {error}"
        ) from error


def _tools(value: Any) -> list[JsonObject] | None:
    tools = _from_json(value, "tools")
    if not tools:
        return None
    if not is_sequence(tools) or not all(is_mapping(tool) for tool in tools):
        raise ConfigError(f"'tools' is {short_repr(tools)}; expected a list of tools in OpenAI's form, or its JSON")
    return [dict(tool) for tool in tools]


def _template_kwargs(value: Any) -> JsonObject | None:
    variables = _from_json(value, "chat_template_kwargs")
    if variables is not None and not is_mapping(variables):
        raise ConfigError(f"'chat_template_kwargs' is {short_repr(variables)}; expected an object")
    return checked_template_kwargs(dict(variables or {}))


def _messages(values: Any, name: str, needs_assistant: bool = True) -> list[JsonObject]:
    if not is_sequence(values) or not values:
        raise ConfigError(f"'{name}' is {short_repr(values)}; expected a list of at least one message")
    messages: list[JsonObject] = []
    for number, value in enumerate(values, start=1):
        try:
            messages.append(_message(value))
        except ConfigError as error:
            raise ConfigError(f"message {number} of '{name}' {error}") from error
    if needs_assistant and not any(message["role"] == "assistant" for message in messages):
        raise ConfigError(f"'{name}' has no assistant message to train on")
    return messages


def _message(value: Any) -> JsonObject:
    """Return a checked message with a text as its content; errors complete the sentence "message 3 …"."""
    if not is_mapping(value):
        raise ConfigError(f"is {short_repr(value)}; expected an object with 'role' and 'content'")
    message = {str(name): field for name, field in value.items() if field is not None}
    if "from" in message and "role" not in message:
        sender = message.pop("from")
        message = {"role": ROLE_OF_SENDER.get(sender) if isinstance(sender, str) else None, **message}
        # ShareGPT calls the content "value".
        message["content"] = message.pop("value", message.get("content"))
        _check_role(message["role"], sender, ROLE_OF_SENDER)
    _check_role(message.get("role"), message.get("role"), ROLES)
    role, content = message["role"], message.get("content")
    if content is None and role != "assistant":
        raise ConfigError(f"({role}) has no content")
    message["content"] = None if content is None else _text(content)
    if role == "assistant":
        _check_response(message)
    return message


def _check_role(role: Any, written: Any, names: Iterable[str]) -> None:
    if not isinstance(role, str) or role not in ROLES:
        advice = nearest(written, names) if isinstance(written, str) else f"expected one of {', '.join(sorted(names))}"
        raise ConfigError(f"has the role {short_repr(written)}; {advice}")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not is_sequence(content):
        raise ConfigError(f"has the content {short_repr(content)}; expected a text or a list of text parts")
    for part in content:
        if isinstance(part, str):
            continue
        is_text_part = is_mapping(part) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
        if not is_text_part:
            raise ConfigError(
                f"has the part {short_repr(part)}; expected {{'type': 'text', 'text': …}}: rove trains on text only"
            )
    return text_of({"content": content})


def _check_response(message: JsonObject) -> None:
    """Check an assistant message's reasoning and tool calls, and convert the calls to OpenAI's form."""
    if "function_call" in message:
        raise ConfigError("has 'function_call', which OpenAI replaced; expected 'tool_calls'")
    reasoning = message.get("reasoning_content", "")
    if not isinstance(reasoning, str):
        raise ConfigError(f"has the reasoning_content {short_repr(reasoning)}; expected a text")
    calls = message.pop("tool_calls", None)
    if not calls:
        return
    if not is_sequence(calls) or not all(is_mapping(call) for call in calls):
        raise ConfigError(f"has the tool_calls {short_repr(calls)}; expected a list of objects")
    message["tool_calls"] = [
        dict(call) if "function" in call else {"type": "function", "function": dict(call)} for call in calls
    ]
    parsed = calls_of(message)
    names = None if parsed is None else [call.name for call in parsed]
    # The name comes from a file, so it may be anything.
    if names is None or not all(isinstance(name, str) for name in names):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"has the tool_calls {short_repr(calls)}; expected a 'name' and 'arguments' that are an object or its JSON"
        )
