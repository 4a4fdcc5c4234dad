"""rove: environments for language models. Evaluate, generate data, warm up with SFT, train with RL."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rove.clients.scripted import ScriptedClient
from rove.core.errors import (
    AgentError,
    ConfigError,
    EmptyModelResponseError,
    Error,
    InfraError,
    InvalidModelResponseError,
    LimitReachedError,
    MCPServerError,
    MissingKeyError,
    ModelError,
    OverlongPromptError,
    PackageError,
    RemoteError,
    RunError,
    SandboxError,
    SandboxFileError,
    StructuredOutputError,
    ToolCallError,
    ToolError,
    ToolParseError,
    TooManyErrorsError,
    WorkerError,
)
from rove.core.messages import AssistantMessage, Message, Messages, SystemMessage, ToolMessage, UserMessage, tool_call
from rove.core.model_roles import query
from rove.core.protocols import Client, InferenceEngine, Limits, Request, Response, SamplingParams
from rove.core.records import Outcome, RolloutRecord, Scores, StepTokens, TrajectoryStep, Usage
from rove.core.renderings import Rendering
from rove.core.state import State
from rove.envs import (
    EnvGroup,
    Environment,
    MCPEnv,
    MultiTurnCompletionEnv,
    MultiTurnEnv,
    SingleTurnEnv,
    StatefulToolEnv,
    ToolEnv,
    cleanup,
    stop,
    teardown,
)
from rove.envs.dataset import draw_rows
from rove.envs.loading import ExternalEnvironment, external_finders, load_environment
from rove.rollouts.evaluate import evaluate, generate, make_dataset
from rove.rollouts.rescore import rescore
from rove.rollouts.run_rollouts import run_rollouts, run_rollouts_sync
from rove.rubrics import JudgeRubric, MathRubric, Rubric, RubricGroup, group_reward, judge_agreement
from rove.rubrics.parser import (
    MaybeThinkParser,
    Parser,
    ThinkParser,
    XMLParser,
    extract_boxed_answer,
    extract_hash_answer,
)
from rove.runs.run import Run
from rove.statistics import Comparison, EvaluationResult, Price, compare

if TYPE_CHECKING:
    from rove.clients.anthropic import AnthropicClient
    from rove.clients.openai import OpenAIClient, ResponsesClient, as_client
    from rove.engine.client import EngineClient
    from rove.envs.agent import AgentEnv
    from rove.envs.rlm import RLMEnv
    from rove.envs.sandbox import CodeMathEnv, PythonEnv, SandboxEnv
    from rove.envs.smolagents import SmolaAgentEnv, SmolaToolEnv
    from rove.integrations.environments.gym import GymEnv
    from rove.integrations.environments.open_env import OpenEnvEnv
    from rove.integrations.environments.reasoning import ReasoningGymEnv
    from rove.integrations.environments.taskset import TasksetEnv
    from rove.integrations.environments.text_arena import TextArenaEnv
    from rove.models.load import load_model
    from rove.remote import IsolatedEnv
    from rove.stages.auditing import audit_environment
    from rove.stages.clients import make_client
    from rove.stages.evaluation import evaluate_model
    from rove.stages.models import NewModel, new_model
    from rove.stages.reporter import ConsoleReporter, JsonLinesReporter, Reporter, SilentReporter
    from rove.stages.results import TrainingResult
    from rove.stages.rl import rl
    from rove.stages.sft import sft
    from rove.stages.train_model import PipelineResult, train_model
    from rove.train.sequences import TrainingSequence, sequences_from_record

__version__ = "0.1.0"

_LAZY = {
    "AgentEnv": "rove.envs.agent",
    "AnthropicClient": "rove.clients.anthropic",
    "CodeMathEnv": "rove.envs.sandbox",
    "EngineClient": "rove.engine.client",
    "GymEnv": "rove.integrations.environments.gym",
    "IsolatedEnv": "rove.remote",
    "OpenAIClient": "rove.clients.openai",
    "OpenEnvEnv": "rove.integrations.environments.open_env",
    "PythonEnv": "rove.envs.sandbox",
    "RLMEnv": "rove.envs.rlm",
    "ReasoningGymEnv": "rove.integrations.environments.reasoning",
    "ResponsesClient": "rove.clients.openai",
    "SandboxEnv": "rove.envs.sandbox",
    "SmolaAgentEnv": "rove.envs.smolagents",
    "SmolaToolEnv": "rove.envs.smolagents",
    "TasksetEnv": "rove.integrations.environments.taskset",
    "TextArenaEnv": "rove.integrations.environments.text_arena",
    "ConsoleReporter": "rove.stages.reporter",
    "JsonLinesReporter": "rove.stages.reporter",
    "NewModel": "rove.stages.models",
    "PipelineResult": "rove.stages.train_model",
    "Reporter": "rove.stages.reporter",
    "SilentReporter": "rove.stages.reporter",
    "TrainingResult": "rove.stages.results",
    "TrainingSequence": "rove.train.sequences",
    "as_client": "rove.clients.openai",
    "audit_environment": "rove.stages.auditing",
    "evaluate_model": "rove.stages.evaluation",
    "load_model": "rove.models.load",
    "make_client": "rove.stages.clients",
    "new_model": "rove.stages.models",
    "rl": "rove.stages.rl",
    "sequences_from_record": "rove.train.sequences",
    "sft": "rove.stages.sft",
    "train_model": "rove.stages.train_model",
}
"""Names whose modules are imported on first use, to keep `import rove` fast."""


def _installed_from_hub(env_id: str) -> ExternalEnvironment | None:
    """Find environments with names like OWNER/NAME that were installed from a hub."""
    from rove.hub.client.installed import finder

    return finder(env_id)


external_finders.append(_installed_from_hub)


if not TYPE_CHECKING:  # otherwise, every misspelled name would have a type

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        raise AttributeError(f"module 'rove' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "AgentEnv",
    "AgentError",
    "AnthropicClient",
    "AssistantMessage",
    "Client",
    "CodeMathEnv",
    "Comparison",
    "ConfigError",
    "ConsoleReporter",
    "EmptyModelResponseError",
    "EngineClient",
    "EnvGroup",
    "Environment",
    "Error",
    "EvaluationResult",
    "GymEnv",
    "InferenceEngine",
    "InfraError",
    "InvalidModelResponseError",
    "IsolatedEnv",
    "JsonLinesReporter",
    "JudgeRubric",
    "LimitReachedError",
    "Limits",
    "MCPEnv",
    "MCPServerError",
    "MathRubric",
    "MaybeThinkParser",
    "Message",
    "Messages",
    "MissingKeyError",
    "ModelError",
    "MultiTurnCompletionEnv",
    "MultiTurnEnv",
    "NewModel",
    "OpenAIClient",
    "OpenEnvEnv",
    "Outcome",
    "OverlongPromptError",
    "PackageError",
    "Parser",
    "PipelineResult",
    "Price",
    "PythonEnv",
    "RLMEnv",
    "ReasoningGymEnv",
    "RemoteError",
    "Rendering",
    "Reporter",
    "Request",
    "Response",
    "ResponsesClient",
    "RolloutRecord",
    "Rubric",
    "RubricGroup",
    "Run",
    "RunError",
    "SamplingParams",
    "SandboxEnv",
    "SandboxError",
    "SandboxFileError",
    "Scores",
    "ScriptedClient",
    "SilentReporter",
    "SingleTurnEnv",
    "SmolaAgentEnv",
    "SmolaToolEnv",
    "State",
    "StatefulToolEnv",
    "StepTokens",
    "StructuredOutputError",
    "SystemMessage",
    "TasksetEnv",
    "TextArenaEnv",
    "ThinkParser",
    "TooManyErrorsError",
    "ToolCallError",
    "ToolEnv",
    "ToolError",
    "ToolMessage",
    "ToolParseError",
    "TrainingResult",
    "TrainingSequence",
    "TrajectoryStep",
    "Usage",
    "UserMessage",
    "WorkerError",
    "XMLParser",
    "as_client",
    "audit_environment",
    "cleanup",
    "compare",
    "draw_rows",
    "evaluate",
    "evaluate_model",
    "extract_boxed_answer",
    "extract_hash_answer",
    "generate",
    "group_reward",
    "judge_agreement",
    "load_environment",
    "load_model",
    "make_client",
    "make_dataset",
    "new_model",
    "query",
    "rescore",
    "rl",
    "run_rollouts",
    "run_rollouts_sync",
    "sequences_from_record",
    "sft",
    "stop",
    "teardown",
    "tool_call",
    "train_model",
]
