"""v0's data types: state, steps, responses, tools, timing and scores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from rove.compat.verifiers.messages import (
    AssistantMessage,
    GenericContentPart,
    ImageUrlContentPart,
    ImageUrlSource,
    InputAudioContentPart,
    InputAudioSource,
    Message,
    Messages,
    Model,
    SystemMessage,
    TextContentPart,
    TextMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)

# fmt: off
__all__ = [
    "TASK_INPUT_FIELDS", "AssistantMessage", "BaseRolloutInput", "ClientType", "ContentPart", "CustomBaseModel",
    "DatasetBuilder", "ErrorData", "GenerateInputs", "GenericContentPart", "GroupRewardFunc", "ImageUrlContentPart",
    "ImageUrlSource", "IndividualRewardFunc", "Info", "InputAudioContentPart", "InputAudioSource", "Message", "MessageType",
    "Messages", "ProcessedOutputs", "Response", "ResponseMessage", "ResponseTokens", "RewardFunc", "RolloutInput",
    "RolloutOutput", "RolloutScore", "RolloutScores", "RolloutTiming", "SamplingArgs", "State", "SystemMessage",
    "TextContentPart", "TextMessage", "TimeSpan", "TimeSpans", "TokenUsage", "Tool", "ToolCall", "ToolMessage",
    "TrajectoryStep", "TrajectoryStepTokens", "Usage", "UserMessage", "VersionInfo",
]
# fmt: on

Info = dict[str, Any]
SamplingArgs = dict[str, Any]
IndividualRewardFunc = Callable[..., Any]
GroupRewardFunc = Callable[..., Any]
RewardFunc = Callable[..., Any]
DatasetBuilder = Callable[[], Any]
MessageType = Literal["chat", "completion"]
ClientType = Literal[
    "openai_completions",
    "openai_chat_completions",
    "openai_chat_completions_token",
    "openai_responses",
    "renderer",
    "anthropic_messages",
    "nemorl_chat_completions",
]
CustomBaseModel = Model
ContentPart = TextContentPart | ImageUrlContentPart | InputAudioContentPart | GenericContentPart | dict[str, Any]
ProcessedOutputs = GenerateInputs = dict[str, Any]
INPUT_FIELDS = ("prompt", "answer", "info", "example_id")
"""Keys that a state reads from its input."""
TASK_INPUT_FIELDS = set(INPUT_FIELDS)


class Tool(Model):
    """A tool definition; `parameters` is a JSON schema."""

    required = ("name", "description", "parameters")
    defaults: ClassVar = {"strict": None}

    def __init__(self, **values: Any):
        values.setdefault("description", "")
        super().__init__(**values)


def wire_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in the OpenAI wire form; a tool that has this form is returned as it is."""
    if "function" in tool:
        return dict(tool)
    function = {name: tool[name] for name in ("name", "description", "parameters")}
    strict = tool.get("strict")
    return {"type": "function", "function": function if strict is None else {**function, "strict": strict}}


def as_oai_tools(tools: list[Any]) -> list[Any]:
    """Convert a list of tools in place to the OpenAI wire form, and return it.

    Packages for 0.1.2 to 0.1.10 append to `env.oai_tools` and `state["oai_tools"]`, so these are the list itself.
    """
    tools[:] = [wire_tool(tool) for tool in tools]
    return tools


class Usage(Model):
    """Token counts of one response."""

    defaults: ClassVar = {"prompt_tokens": 0, "reasoning_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class ResponseTokens(Model):
    """Exact tokens of one response."""

    required = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "completion_logprobs")
    defaults: ClassVar = {"routed_experts": None, "multi_modal_data": None, "prompt_attribution": None}


class ResponseMessage(AssistantMessage):
    """The model's message in a response."""

    defaults: ClassVar = {**AssistantMessage.defaults, "finish_reason": None, "is_truncated": None, "tokens": None}


class Choice(Model):
    """A choice of a response in OpenAI's form; `text` is set by completion endpoints."""

    defaults: ClassVar = {"index": 0, "message": None, "text": None, "finish_reason": None}


class Response(Model):
    """A response of a model."""

    defaults: ClassVar = {"id": "", "created": 0, "model": "", "usage": None, "message": None}

    @property
    def choices(self) -> list[Choice]:
        """The response as OpenAI's only choice, which packages for 0.1.2 to 0.1.10 read."""
        # In those releases a response was the object of the package `openai`.
        message = self["message"]
        return [Choice(message=message, text=message.get("content"), finish_reason=message.get("finish_reason"))]


class TrajectoryStep(dict[str, Any]):
    """A model turn: prompt, completion, response, tokens, reward, advantage, is_truncated, trajectory_id, extras."""


class TrajectoryStepTokens(dict[str, Any]):
    """Exact tokens of a turn, truncated at the maximum sequence length for training."""


class TokenUsage(dict[str, float]):
    """input_tokens and output_tokens of a rollout."""


class VersionInfo(dict[str, Any]):
    """Versions that an evaluation used."""


class RolloutInput(dict[str, Any]):
    """A dataset row: prompt, example_id, and usually answer and info."""


BaseRolloutInput = RolloutInput


class RolloutScore(Model):
    """Reward and metrics of one rollout."""

    required = ("reward",)
    defaults: ClassVar = {"metrics": dict}


class RolloutScores(RolloutScore):
    """Rewards and metrics of several rollouts, as lists."""


class ErrorData(dict[str, str]):
    """An error in the form used in outputs."""


class RolloutOutput(dict[str, Any]):
    """Result of a rollout: standard fields, metrics by name, and columns of the state."""


class TimeSpan(Model):
    """Start and end of a period, in seconds since 1970."""

    defaults: ClassVar = {"start": 0.0, "end": 0.0}
    computed: ClassVar = ("duration",)

    @property
    def duration(self) -> float:
        """Seconds; 0 before the end."""
        return self["end"] - self["start"] if self["end"] > 0 else 0.0


class TimeSpans(Model):
    """Several periods."""

    defaults: ClassVar = {"spans": list}
    computed: ClassVar = ("duration",)

    @property
    def duration(self) -> float:
        """Total seconds."""
        return sum(span.duration for span in self["spans"])


class RolloutTiming(Model):
    """Start and end of the parts of a rollout.

    `generation_ms`, `scoring_ms` and `total_ms` of 0.1.0 to 0.1.10 can be read and set as well.
    """

    defaults: ClassVar = {
        "start_time": time.time,
        "setup": TimeSpan,
        "generation": TimeSpan,
        "scoring": TimeSpan,
        "model": TimeSpans,
        "env": TimeSpans,
    }
    computed: ClassVar = ("total", "overhead")

    def __missing__(self, key: str) -> float:
        # Only read, never stored: a package that sets one of the keys has the value that it set.
        if key == "generation_ms":
            return 1000 * self["generation"].duration
        if key == "scoring_ms":
            return 1000 * self["scoring"].duration
        if key == "total_ms":
            return self["generation_ms"] + self["scoring_ms"]
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    @property
    def total(self) -> float:
        """Seconds from the first turn to the end of scoring; 0 before it."""
        end = self["scoring"]["end"]
        return end - self["generation"]["start"] if end > 0 else 0.0

    @property
    def overhead(self) -> float:
        """Seconds of the total that belong to no part."""
        return self.total - sum(self[part].duration for part in ("setup", "model", "env", "scoring"))


class State(dict[str, Any]):
    """State of a rollout. `prompt`, `answer`, `info` and `example_id` are read from and written to `state["input"]` if
    it has them.

    Environments add any keys. `state["turn"]` (number of turns) and `state["responses"]` of 0.1.0 also work, and
    `state["oai_tools"]` of 0.1.8 to 0.1.10 is `state["tool_defs"]` in the OpenAI wire form.
    """

    INPUT_FIELDS: ClassVar = list(INPUT_FIELDS)

    def __getitem__(self, key: str) -> Any:
        row = self._row(key)
        return super().__getitem__(key) if row is None else row[key]

    def __missing__(self, key: str) -> Any:
        # Only read, never stored: a package that sets its own key "turn" has the value that it set.
        if key in ("turn", "responses") and "trajectory" in self:
            steps = super().__getitem__("trajectory")
            return len(steps) if key == "turn" else [step["response"] for step in steps]
        if key == "oai_tools" and self.get("tool_defs") is not None:
            return as_oai_tools(self["tool_defs"])
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "oai_tools":
            key = "tool_defs"
        row = self._row(key)
        if row is None:
            super().__setitem__(key, value)
        else:
            row[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def assert_serializable(self) -> None:
        """Check that JSON can represent the state.

        Raises:
            TypeError: JSON cannot represent the state; the error names the key.
        """
        for key, value in self.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise TypeError(f"state[{key!r}] cannot be written as JSON: {error}") from error

    def _row(self, key: str) -> dict[str, Any] | None:
        if key not in INPUT_FIELDS or "input" not in self:
            return None
        row = super().__getitem__("input")
        return row if key in row else None

    def stop(self, condition: str = "state_done") -> None:
        """End the rollout with this stop condition."""
        self.update(done=True, is_completed=True, stop_condition=condition)

    def add_step_reward(self, reward: float | None) -> None:
        """Add a value to the reward of the last turn."""
        if reward is not None:
            step = self["trajectory"][-1]
            step["reward"] = float(step.get("reward") or 0.0) + float(reward)

    def total_step_reward(self) -> float:
        """Return the sum of the rewards of all turns."""
        return sum(float(step.get("reward") or 0.0) for step in self.get("trajectory") or [])


def flatten_task_input(row: Mapping[str, Any]) -> Any:
    """Return the argument `task` of reward functions: the task in the row's info, its column `task`, or the row.

    Strings that are not JSON, as in rows of 0.1.0, are returned unchanged.
    """
    info = row.get("info")
    if isinstance(info, str) and info:
        info = json.loads(info)
    task = info.get("task") if isinstance(info, Mapping) else None
    if task is None:
        task = row.get("task")
    if isinstance(task, str):
        try:
            task = json.loads(task)
        except ValueError:
            return task
    return dict(row) if task is None else task


TaskSplit = Literal["train", "eval"]


ChatMessage = Message
ChatMessages = Messages
ChatCompletionMessageToolCall = ToolCall
ChatCompletion = Completion = ModelResponse = Response
ChatCompletionToolParam = FunctionDefinition = FunctionParameters = dict[str, Any]
ChatCompletionRole = Literal["developer", "system", "user", "assistant", "tool", "function"]
JsonPrimitive = Literal["string", "number", "integer", "boolean", "array", "object"]
