"""v0's records of a rollout: state, steps, answers, tools, timing, scores."""

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
    SystemMessage,
    TextContentPart,
    TextMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from rove.compat.verifiers.models import Model

__all__ = [
    "TASK_INPUT_FIELDS",
    "AssistantMessage",
    "BaseRolloutInput",
    "ClientType",
    "ContentPart",
    "CustomBaseModel",
    "DatasetBuilder",
    "ErrorData",
    "GenerateInputs",
    "GenericContentPart",
    "GroupRewardFunc",
    "ImageUrlContentPart",
    "ImageUrlSource",
    "IndividualRewardFunc",
    "Info",
    "InputAudioContentPart",
    "InputAudioSource",
    "Message",
    "MessageType",
    "Messages",
    "ProcessedOutputs",
    "Response",
    "ResponseMessage",
    "ResponseTokens",
    "RewardFunc",
    "RolloutInput",
    "RolloutOutput",
    "RolloutScore",
    "RolloutScores",
    "RolloutTiming",
    "SamplingArgs",
    "State",
    "SystemMessage",
    "TextContentPart",
    "TextMessage",
    "TimeSpan",
    "TimeSpans",
    "TokenUsage",
    "Tool",
    "ToolCall",
    "ToolMessage",
    "TrajectoryStep",
    "TrajectoryStepTokens",
    "Usage",
    "UserMessage",
    "VersionInfo",
]

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
"""What a state reads from its input."""
TASK_INPUT_FIELDS = set(INPUT_FIELDS)


class Tool(Model):
    """A tool as a model is told of it; `parameters` is a JSON schema."""

    required = ("name", "description", "parameters")
    defaults: ClassVar = {"strict": None}

    def __init__(self, **values: Any):
        values.setdefault("description", "")
        super().__init__(**values)


class Usage(Model):
    """Tokens of one answer."""

    defaults: ClassVar = {"prompt_tokens": 0, "reasoning_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class ResponseTokens(Model):
    """Exact tokens of one answer."""

    required = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "completion_logprobs")
    defaults: ClassVar = {"routed_experts": None, "multi_modal_data": None, "prompt_attribution": None}


class ResponseMessage(AssistantMessage):
    """What the model says in one answer."""

    defaults: ClassVar = {**AssistantMessage.defaults, "finish_reason": None, "is_truncated": None, "tokens": None}


class Choice(Model):
    """A choice of an answer in OpenAI's form; `text` is that of a completion endpoint."""

    defaults: ClassVar = {"index": 0, "message": None, "text": None, "finish_reason": None}


class Response(Model):
    """One answer of a model."""

    defaults: ClassVar = {"id": "", "created": 0, "model": "", "usage": None, "message": None}

    @property
    def choices(self) -> list[Choice]:
        """The answer as OpenAI's only choice, as packages for 0.1.2 to 0.1.10 read it."""
        message = self["message"]
        return [Choice(message=message, text=message.get("content"), finish_reason=message.get("finish_reason"))]


class TrajectoryStep(dict[str, Any]):
    """One model turn: prompt, completion, response, tokens, reward, advantage, is_truncated, trajectory_id, extras."""


class TrajectoryStepTokens(dict[str, Any]):
    """Exact tokens of one turn, cut at the longest sequence that is trained on."""


class TokenUsage(dict[str, float]):
    """input_tokens and output_tokens of a rollout."""


class VersionInfo(dict[str, Any]):
    """Versions an evaluation ran with."""


class RolloutInput(dict[str, Any]):
    """A dataset row: prompt, example_id, and mostly answer and info."""


BaseRolloutInput = RolloutInput


class RolloutScore(Model):
    """reward and metrics of one rollout."""

    required = ("reward",)
    defaults: ClassVar = {"metrics": dict}


class RolloutScores(Model):
    """reward and metrics of several rollouts, as lists."""

    required = ("reward",)
    defaults: ClassVar = {"metrics": dict}


class ErrorData(dict[str, str]):
    """An error as it lies in an output."""


class RolloutOutput(dict[str, Any]):
    """What an evaluation keeps of a rollout: standard fields, metrics by name, and columns of the state."""


class TimeSpan(Model):
    """From when to when, in seconds since 1970."""

    defaults: ClassVar = {"start": 0.0, "end": 0.0}

    @property
    def duration(self) -> float:
        """Seconds; 0 while it lasts."""
        return self["end"] - self["start"] if self["end"] > 0 else 0.0

    def model_dump(self, exclude_none: bool = False, **ignored: Any) -> dict[str, Any]:
        """The fields and the duration."""
        return {**super().model_dump(exclude_none), "duration": self.duration}


class TimeSpans(Model):
    """Several spans."""

    defaults: ClassVar = {"spans": list}

    @property
    def duration(self) -> float:
        """Seconds of all of them."""
        return sum(span.duration for span in self["spans"])

    def model_dump(self, exclude_none: bool = False, **ignored: Any) -> dict[str, Any]:
        """The spans and their duration."""
        return {**super().model_dump(exclude_none), "duration": self.duration}


class RolloutTiming(Model):
    """When the parts of a rollout began and ended."""

    defaults: ClassVar = {
        "start_time": time.time,
        "setup": TimeSpan,
        "generation": TimeSpan,
        "scoring": TimeSpan,
        "model": TimeSpans,
        "env": TimeSpans,
    }

    @property
    def total(self) -> float:
        """Seconds from the first turn to the end of scoring; 0 before it."""
        return self["scoring"]["end"] - self["generation"]["start"] if self["scoring"]["end"] > 0 else 0.0

    @property
    def overhead(self) -> float:
        """Seconds of the total that no part accounts for."""
        return self.total - sum(self[part].duration for part in ("setup", "model", "env", "scoring"))

    def model_dump(self, exclude_none: bool = False, **ignored: Any) -> dict[str, Any]:
        """The fields, the total and the overhead."""
        return {**super().model_dump(exclude_none), "total": self.total, "overhead": self.overhead}


class State(dict[str, Any]):
    """Memory of one rollout. Reads and writes of prompt, answer, info and example_id go to `state["input"]` where it has them.

    Environments add any key. Of G1 `state["turn"]` and `state["responses"]` are understood: turns so far, and their answers.
    """

    INPUT_FIELDS: ClassVar = list(INPUT_FIELDS)

    def __getitem__(self, key: str) -> Any:
        row = self._row(key)
        return super().__getitem__(key) if row is None else row[key]

    def __missing__(self, key: str) -> Any:
        if key in ("turn", "responses") and "trajectory" in self:
            steps = super().__getitem__("trajectory")
            return len(steps) if key == "turn" else [step["response"] for step in steps]
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        row = self._row(key)
        if row is None:
            super().__setitem__(key, value)
        else:
            row[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def assert_serializable(self) -> None:
        """Check that the state can be written as JSON.

        Raises:
            TypeError: something in it cannot; the error names the key.
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
        """Add to what the last turn earned."""
        if reward is not None:
            step = self["trajectory"][-1]
            step["reward"] = float(step.get("reward") or 0.0) + float(reward)

    def total_step_reward(self) -> float:
        """What all turns earned."""
        return sum(float(step.get("reward") or 0.0) for step in self.get("trajectory") or [])


def flatten_task_input(row: Mapping[str, Any]) -> Any:
    """What reward functions get as `task`: that of the row's info, its column of this name, else the row itself.

    Texts that are no JSON, as in the column `task` of G1, stay what they are.
    """
    info = row.get("info")
    info = json.loads(info) if isinstance(info, str) and info else info
    task = info.get("task") if isinstance(info, Mapping) else None
    task = row.get("task") if task is None else task
    if isinstance(task, str):
        try:
            task = json.loads(task)
        except ValueError:
            return task
    return dict(row) if task is None else task


TaskSplit = Literal["train", "eval"]
