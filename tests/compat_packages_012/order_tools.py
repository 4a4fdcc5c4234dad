"""Tools whose calls reward functions read as OpenAI's objects: `call.function.name`."""

import json

import verifiers as vf
from datasets import Dataset
from verifiers.types import ChatCompletionMessageToolCall, Messages


def add_item(name: str, count: int = 1) -> str:
    """Put an item into the order.

    Args:
        name: What to order.
        count: How many.
    """
    return f"{count} x {name} added"


def check_out(address: str) -> str:
    """Send the order.

    Args:
        address: Where to.
    """
    if not address:
        raise ValueError("no address")
    return f"sent to {address}"


def tool_calls(completion: Messages) -> list[ChatCompletionMessageToolCall]:
    return [
        call for message in completion if message["role"] == "assistant" for call in message.get("tool_calls") or []
    ]


def ordered(completion, info, **kwargs) -> float:
    calls = [call for call in tool_calls(completion) if call.function.name == "add_item"]
    return float(sum(json.loads(call.function.arguments).get("count", 1) for call in calls) == info["count"])


def checked_out(completion, **kwargs) -> float:
    return float(
        any(
            isinstance(c, ChatCompletionMessageToolCall) and c.function.name == "check_out"
            for c in tool_calls(completion)
        )
    )


def shape(completion, **kwargs) -> float:
    dumped = [call.model_dump() for call in tool_calls(completion)]
    return float(sum(one["type"] == "function" and one["function"]["name"].isidentifier() for one in dumped))


def turns_without_calls(completion, **kwargs) -> float:
    return float(sum(m["role"] == "assistant" and "tool_calls" not in m for m in completion))


def load_environment(**kwargs) -> vf.Environment:
    rows = [
        {"question": "Order two apples to Main Street.", "answer": "", "info": {"count": 2}},
        {"question": "Order a pear to nowhere.", "answer": "", "info": {"count": 1}},
        {"question": "Just say hello.", "answer": "", "info": {"count": 0}},
    ]
    rubric = vf.Rubric(funcs=[ordered, checked_out, shape, turns_without_calls], weights=[1.0, 0.5, 0.1, 0.01])
    return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[add_item, check_out], rubric=rubric, max_turns=4)
