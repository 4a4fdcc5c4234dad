"""First inputs for the targets of messages: whole messages with most fields that rove reads, which tests write in parts."""

from __future__ import annotations

import json
from typing import Any

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "input_tokens": 9, "output_tokens": 3}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "Find.", "parameters": PARAMETERS}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}, IMAGE]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Look it up."},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
]
SAMPLING = {
    "model": "m",
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 9,
    "seed": 1,
    "stop": ["x"],
    "n": 2,
    "stream": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": PARAMETERS}}
ANSWER = {"role": "assistant", "content": "It rains.", "tool_calls": [CALL], "reasoning": "…", "refusal": None}
OUTPUT = [
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "…"}], "encrypted_content": "abc"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "It rains."}],
        "phase": "final",
    },
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
]
BLOCKS = [
    {"type": "thinking", "thinking": "…", "signature": "abc"},
    {"type": "redacted_thinking", "data": "abc"},
    {"type": "text", "text": "It rains."},
    {"type": "tool_use", "id": "call_1", "name": "f", "input": {"city": "Oslo"}},
]
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
OBSERVATION = {"type": "observation", "data": {"observation": {"text": "A board."}, "reward": 0.5, "done": False}}
ACTION_SCHEMA = {"type": "object", "properties": {"move": {"type": "string"}, "metadata": {}}, "required": ["move"]}
FILE = {"filename": "my_sums-1.0-py3-none-any.whl", "sha256": "0" * 64, "size": 100}
ENTRY = {"owner": "a", "name": "my-sums", "version": "1.0", "tags": ["math"], "downloads": 3}

MESSAGE_SEEDS: dict[str, list[Any]] = {
    "chat_response": [
        {"choices": [{"message": ANSWER, "finish_reason": "tool_calls"}], "usage": USAGE},
        {"choices": [{"message": {"content": [{"type": "text", "text": "4"}]}, "finish_reason": "abort"}]},
        {"choices": [{"message": {"content": "", "function_call": {"name": "f", "arguments": "{}"}}}]},
    ],
    "completions_response": [{"choices": [{"text": "4", "finish_reason": "length"}], "usage": USAGE}],
    "anthropic_response": [
        {"content": BLOCKS, "stop_reason": "tool_use", "usage": USAGE},
        {"content": BLOCKS[2:3], "stop_reason": "refusal", "stop_details": {"explanation": "No."}},
    ],
    "responses_response": [
        {
            "output": OUTPUT,
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "usage": USAGE,
        },
        {"output": [], "status": "failed", "error": {"message": "overloaded"}},
    ],
    "chat_request": [
        {
            "messages": MESSAGES,
            "tools": [TOOL],
            "tool_choice": "required",
            "logprobs": True,
            "top_logprobs": 2,
            **SAMPLING,
        },
        {"messages": MESSAGES[:1], "response_format": FORMAT, "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": MESSAGES[:1], "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
    "completions_request": [
        {"prompt": ["2+2=", "3+3="], "echo": True, "logprobs": 1, "best_of": 2, **SAMPLING},
        {"prompt": [[1, 2], [3]], "prompt_logprobs": 1, "return_token_ids": True},
    ],
    "anthropic_request": [
        {
            **{
                "model": "m",
                "max_tokens": 9,
                "system": [{"type": "text", "text": "Be brief."}],
                "stop_sequences": ["x"],
            },
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Weather?"}, PICTURE]},
                {"role": "assistant", "content": BLOCKS},
                {"role": "user", "content": [RESULT]},
            ],
            "tools": [{"name": "f", "input_schema": PARAMETERS}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        }
    ],
    "responses_request": [
        {
            **{"model": "m", "instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0.5},
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                *OUTPUT,
                {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}},
        }
    ],
    "tokens_request": [{"prompt_ids": [1, 2, 3], "logprobs": 2, "prompt_logprobs": 1, **SAMPLING}],
    "open_env_request": [{"action": {"message": "x", "tool_calls": [CALL], "metadata": {}}}, {"message": "x"}],
    "hub_messages": [
        {"schema": 1, "hub": "a hub", "environments": [ENTRY], "search": "/api/search", "total": 1},
        {"schema": 1, "versions": [{"version": "1.0", "manifest": "0" * 64, "files": [FILE], "yanked": None}]},
        {"model": "m", "summary": {"reward": {"mean": 0.5}}, "runs": [{"model": "m"}], "visibility": "public"},
        {"error": "no such package"},
    ],
    "arguments": [{"a": 1, "city": "Oslo", "x": 0.5, "items": [True]}, '{"a": 1}'],
    "grammar": [FORMAT, {"type": "json_object"}, {"regex": "a+"}, {"choice": ["a", "b"]}, {"grammar": 'start: "a"'}],
    "adapter": [
        {
            **{"peft_type": "LORA", "base_model_name_or_path": "base", "r": 8, "lora_alpha": 16, "bias": "none"},
            **{"target_modules": ["q_proj"], "rank_pattern": {"q": 4}, "alpha_pattern": {}, "use_rslora": False},
        }
    ],
}


def _bytes(*values: Any) -> bytes:
    return b"\n----\n".join(
        value.encode() if isinstance(value, str) else json.dumps(value).encode() for value in values
    )


def message_seeds() -> dict[str, list[bytes]]:
    """Return first inputs by the name of their target."""
    seeds = {
        name: [_bytes(value if not isinstance(value, str) else json.dumps(value)) for value in values]
        for name, values in MESSAGE_SEEDS.items()
    }
    contents = [
        {"type": "text", "text": "rain"},
        {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="},
        {"type": "audio", "mimeType": "audio/mpeg", "data": "AAAA"},
        {"type": "resource_link", "name": "a", "uri": "file:///a"},
        {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "rain"}},
        {"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}},
    ]
    tools = {
        "tools": [{"name": "f", "title": "F", "description": "Find.", "inputSchema": PARAMETERS}],
        "nextCursor": "2",
    }
    seeds["mcp"] = [_bytes({"content": contents, "structuredContent": {"a": 1}, "isError": False}, tools)]
    error = {
        "type": "error",
        "data": {"message": "no such move", "code": "VALIDATION_ERROR", "errors": [{"loc": ["move"]}]},
    }
    schema = {"action": ACTION_SCHEMA, "description": "A game."}
    two_fields = {"action": {**ACTION_SCHEMA, "required": [], "$defs": {"a": {}}, "description": "Move."}}
    done = json.dumps(OBSERVATION).replace("false", "true")
    seeds["open_env"] = [
        _bytes(schema, f"{json.dumps(OBSERVATION)}\n{done}", "e2e4"),
        _bytes(two_fields, f"{json.dumps(OBSERVATION)}\n{json.dumps(error)}", '```json\n{"move": "e2e4"}\n```'),
        _bytes(two_fields, json.dumps(error), "{}"),
    ]
    questions = [
        {"question": "2+2?", "answer": "4", "choices": ["3", "4"], "info": {"level": 1}},
        {"prompt": MESSAGES[:2], "answer": ["4", 4], "choices": '["3", "4"]', "info": '{"level": 1}'},
        {"question": "1 = 1?", "answer": True, "choices": ["true", "false"]},
    ]
    chats = [
        {"messages": MESSAGES[:3], "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": "2+2?", "completion": "4", "tools": json.dumps([TOOL])},
        {"prompt": MESSAGES[:1], "completion": [{"role": "assistant", "content": [{"type": "text", "text": "4"}]}]},
    ]
    rows, chat_rows = ["\n".join(map(json.dumps, values)).encode() for values in (questions, chats)]
    seeds["questions_jsonl"] = [rows, *(json.dumps(row).encode() for row in questions)]
    seeds["questions_csv"] = [
        b'\xef\xbb\xbfquestion,answer,choices\n"2+2, or?",4,"[""3"", ""4""]"\n3+3?,6,\n',
        b"a;b\n1;2\n",
    ]
    seeds["messages_jsonl"] = [chat_rows, *(json.dumps(row).encode() for row in chats)]
    seeds["messages_json"] = [json.dumps(chats).encode()]
    endpoint = '[[endpoint]]\nendpoint_id = "a"\nmodel = "m"\nurl = "http://localhost:8000/v1"\nprice = {input = 1, output = 2}\n'
    locked = (
        f'[[environment]]\nowner = "a"\nname = "b"\nversion = "1.0"\nhub = "h"\nmanifest = "{"0" * 64}"\nfiles = []\n'
    )
    accepted = '[[accept]]\ncheck = "hedging"\nreason = "intended"\nseverity = "high"\n'
    seeds["other_toml"] = [endpoint.encode(), f"schema = 1\n{locked}".encode(), accepted.encode()]
    seeds["settings"] = [
        b'env = "tictactoe"\nmodel = "m"\nsteps = 3\n[loss]\nkind = "grpo"\n[lora]\nrank = 8\n[[evaluation]]\nevery = 5\n'
    ]
    finding = {"id": "hedging", "text": "x", "severity": "high"}
    seeds["json_files"] = [
        json.dumps({"findings": [finding], "checks": ["hedging"], "env": "a", "rewards": {}}).encode()
    ]
    return seeds
