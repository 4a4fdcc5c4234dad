"""rove: environments for language models. Evaluate, generate data, warm up with SFT, train with RL."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rove.clients.scripted import ScriptedClient
from rove.envs import Environment, MultiTurnEnv, SingleTurnEnv, cleanup, stop, teardown
from rove.envs.loading import load_environment
from rove.errors import (
    ConfigError,
    EmptyModelResponseError,
    Error,
    InfraError,
    InvalidModelResponseError,
    MissingKeyError,
    ModelError,
    OverlongPromptError,
    RunError,
)
from rove.evaluate import evaluate, generate, make_dataset
from rove.messages import AssistantMessage, Message, Messages, SystemMessage, ToolMessage, UserMessage
from rove.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser
from rove.protocols import Client, InferenceEngine, Request, Response, Sampling
from rove.records import RolloutRecord, Scores, StepTokens, TrajectoryStep, Usage
from rove.rubrics import Rubric, RubricGroup, group_reward
from rove.state import State

if TYPE_CHECKING:
    from rove.clients.openai import OpenAIClient, as_client
    from rove.engine.client import EngineClient
    from rove.models.load import load_model

__version__ = "0.1.0"

_LAZY = {
    "EngineClient": "rove.engine.client",
    "OpenAIClient": "rove.clients.openai",
    "as_client": "rove.clients.openai",
    "load_model": "rove.models.load",
}
"""Names that cost an import most users of the core do not need."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rove' has no attribute '{name}'")


__all__ = [
    "AssistantMessage",
    "Client",
    "ConfigError",
    "EmptyModelResponseError",
    "EngineClient",
    "Environment",
    "Error",
    "InferenceEngine",
    "InfraError",
    "InvalidModelResponseError",
    "MaybeThinkParser",
    "Message",
    "Messages",
    "MissingKeyError",
    "ModelError",
    "MultiTurnEnv",
    "OpenAIClient",
    "OverlongPromptError",
    "Parser",
    "Request",
    "Response",
    "RolloutRecord",
    "Rubric",
    "RubricGroup",
    "RunError",
    "Sampling",
    "Scores",
    "ScriptedClient",
    "SingleTurnEnv",
    "State",
    "StepTokens",
    "SystemMessage",
    "ThinkParser",
    "ToolMessage",
    "TrajectoryStep",
    "Usage",
    "UserMessage",
    "XMLParser",
    "as_client",
    "cleanup",
    "evaluate",
    "generate",
    "group_reward",
    "load_environment",
    "load_model",
    "make_dataset",
    "stop",
    "teardown",
]
