"""The library `verifiers` v0 (0.1.0 to 0.3.1) over rove: `import rove.compat.verifiers as vf`.

What environments, parsers and rubrics of packages written for it do, they do here, the prompts, rewards and metrics the same.
`docs/compat.md` lists what differs from real v0, and what `ROVE_COMPAT=fixed` fixes. Under its own name it answers after
`rove.compat.install()`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.3.1+rove"

_HOMES = {
    "clients": "AnthropicMessagesClient Client ClientConfig EndpointClientConfig EndpointConfig Endpoints EvalConfig "
    "EvalRunConfig NeMoRLChatCompletionsClient OpenAIChatCompletionsClient OpenAIChatCompletionsTokenClient "
    "OpenAICompletionsClient OpenAIResponsesClient RendererClient",
    "data": "extract_boxed_answer extract_hash_answer",
    "decorators": "advantage cleanup metric reward setup stop teardown update",
    "environment": "Environment",
    "errors": "BrowserSandboxError EmptyModelResponseError Error InfraError InvalidModelResponseError MissingKeyError "
    "ModelError OverlongPromptError SandboxError ToolCallError ToolError ToolParseError TunnelError ensure_keys",
    "examples": "load_example_dataset",
    "former_types": "ChatCompletion ChatCompletionMessageToolCall ChatCompletionRole ChatCompletionToolParam ChatMessage "
    "ChatMessages Completion FunctionDefinition FunctionParameters JsonPrimitive ModelResponse",
    "former": "CodeMathEnv CodeMathRubric DoubleCheckEnv MultiTurnCompletionEnv SmolaToolEnv SmolaToolRubric ToolRubric",
    "group": "EnvGroup",
    "gym": "GymEnv",
    "integrations": "OpenEnvEnv ReasoningGymEnv TextArenaEnv",
    "judge": "JudgeRubric",
    "loading": "load_environment",
    "logs": "log_level print_prompt_completions_sample quiet_verifiers setup_logging",
    "mathematics": "MathRubric",
    "mcp": "MCPEnv",
    "multiturn": "MultiTurnEnv SingleTurnEnv",
    "outputs": "GenerateMetadata GenerateOutputs",
    "parsers": "MaybeThinkParser Parser ThinkParser XMLParser",
    "rubrics": "Rubric RubricGroup",
    "sandbox": "PythonEnv SandboxEnv",
    "tools": "StatefulToolEnv ToolEnv",
    "trainer": "GRPOConfig GRPOTrainer RLConfig RLTrainer get_model get_model_and_tokenizer get_tokenizer grpo_defaults "
    "lora_defaults",
    "types": "AssistantMessage ClientType DatasetBuilder ErrorData GroupRewardFunc IndividualRewardFunc Info Message "
    "MessageType Messages Response ResponseMessage ResponseTokens RewardFunc RolloutInput RolloutOutput RolloutScore "
    "RolloutScores RolloutTiming SamplingArgs State SystemMessage TextMessage TimeSpan TimeSpans TokenUsage Tool ToolCall "
    "ToolMessage TrajectoryStep TrajectoryStepTokens Usage UserMessage VersionInfo TaskSplit",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

_IN_THEIR_CLOUD = "it runs in a vendor's sandboxes; use rove.AgentEnv(command=…) for a program that asks a model"
_NOT_HERE = {
    "BrowserEnv": "it drives a browser in a vendor's cloud; give the model a browser's MCP server with vf.MCPEnv",
    "CliAgentEnv": _IN_THEIR_CLOUD,
    "RLMEnv": "0.1.15 removed it; use rove.RLMEnv",
    "HarborEnv": f"{_IN_THEIR_CLOUD}, or rove.TasksetEnv('harbor', …) for Harbor's tasks, with verifiers 0.4 beside",
    "VLLMClient": "rove's trainer samples by itself; serve a model with `rove serve`",
}
"""Names that are not provided, and what to do instead."""
_FORMER = {"former", "former_types", "trainer"}
"""Homes of names that 0.3.1 has no more: a star import leaves them out."""

__all__ = sorted(name for name, home in _HOME.items() if home not in _FORMER)  # pyright: ignore[reportUnsupportedDunderAll]


_MODULES = {"clients", "decorators", "errors", "parsers", "rubrics", "types"}
"""Modules of 0.3.1's that have the same name here: `vf.types.State`."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        instead = _NOT_HERE.get(name)
        raise AttributeError(f"rove.compat has no '{name}'" + (f": {instead}" if instead else ""))
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
