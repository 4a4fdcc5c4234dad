"""The API of verifiers v0 (0.1.0 to 0.3.1): `import rove.compat.verifiers as vf`.

Environments, parsers and rubrics written for v0 give the same prompts, rewards and metrics. `docs/compat.md` lists the
differences, and the faults that `ROVE_COMPAT=fixed` fixes. `rove.compat.install()` makes this package importable as
`verifiers`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.3.1+rove"

_MODULES_OF_NAMES = {
    "clients": "AnthropicMessagesClient Client ClientConfig EndpointClientConfig EndpointConfig Endpoints EvalConfig "
    "EvalRunConfig NeMoRLChatCompletionsClient OpenAIChatCompletionsClient OpenAIChatCompletionsTokenClient "
    "OpenAICompletionsClient OpenAIResponsesClient RendererClient",
    "data": "extract_boxed_answer extract_hash_answer load_example_dataset",
    "decorators": "advantage cleanup metric reward setup stop teardown update",
    "environment": "Environment load_environment",
    "errors": "BrowserSandboxError EmptyModelResponseError Error InfraError InvalidModelResponseError MissingKeyError "
    "ModelError OverlongPromptError SandboxError ToolCallError ToolError ToolParseError TunnelError ensure_keys",
    "evaluation": "GenerateMetadata GenerateOutputs",
    "group": "EnvGroup",
    "integrations": "GymEnv OpenEnvEnv ReasoningGymEnv TextArenaEnv",
    "judge": "JudgeRubric",
    "logs": "log_level print_prompt_completions_sample quiet_verifiers setup_logging",
    "mcp": "MCPEnv",
    "multiturn": "MultiTurnEnv SingleTurnEnv",
    "parsers": "MaybeThinkParser Parser ThinkParser XMLParser",
    "rubrics": "MathRubric Rubric RubricGroup",
    "sandbox": "PythonEnv SandboxEnv",
    "tools": "StatefulToolEnv ToolEnv",
    "types": "AssistantMessage ClientType DatasetBuilder ErrorData GroupRewardFunc IndividualRewardFunc Info Message "
    "MessageType Messages Response ResponseMessage ResponseTokens RewardFunc RolloutInput RolloutOutput RolloutScore "
    "RolloutScores RolloutTiming SamplingArgs State SystemMessage TextMessage TimeSpan TimeSpans TokenUsage Tool ToolCall "
    "ToolMessage TrajectoryStep TrajectoryStepTokens Usage UserMessage VersionInfo TaskSplit",
}
_MODULES_OF_LEGACY_NAMES = {
    "legacy_environments": "CodeEnv CodeMathEnv CodeMathRubric DoubleCheckEnv MultiTurnCompletionEnv SmolaToolEnv "
    "SmolaToolRubric ToolRubric",
    "trainer": "GRPOConfig GRPOTrainer RLConfig RLTrainer get_model get_model_and_tokenizer get_tokenizer grpo_defaults "
    "lora_defaults",
    "types": "ChatCompletion ChatCompletionMessageToolCall ChatCompletionRole ChatCompletionToolParam ChatMessage "
    "ChatMessages Completion FunctionDefinition FunctionParameters JsonPrimitive ModelResponse",
}
"""Names that 0.3.1 no longer has; a star import does not import them."""

__all__ = sorted(" ".join(_MODULES_OF_NAMES.values()).split())  # pyright: ignore[reportUnsupportedDunderAll]

_MODULE_OF: dict[str, str] = {}
for _module, _names in [*_MODULES_OF_NAMES.items(), *_MODULES_OF_LEGACY_NAMES.items()]:
    _MODULE_OF.update(dict.fromkeys(_names.split(), _module))
_SUBMODULES = {"clients", "decorators", "errors", "parsers", "rubrics", "types"}
"""Modules of 0.3.1 that have the same name here: `vf.types.State`."""

_NEEDS_VENDOR_SANDBOXES = (
    "it runs in a vendor's sandboxes; use rove.AgentEnv(command=…) for a program that calls a model"
)
UNSUPPORTED = {
    "BrowserEnv": "it drives a browser in a vendor's cloud; give the model a browser's MCP server with vf.MCPEnv",
    "CliAgentEnv": _NEEDS_VENDOR_SANDBOXES,
    "RLMEnv": "0.1.15 removed it; use rove.RLMEnv",
    "HarborEnv": f"{_NEEDS_VENDOR_SANDBOXES}, or rove.TasksetEnv('harbor', …) for Harbor's tasks, with verifiers 0.4 installed",
    "VLLMClient": "rove's trainer samples by itself; serve a model with `rove serve`",
}
"""Names that rove does not provide → what to use instead."""


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        reason = f": {UNSUPPORTED[name]}" if name in UNSUPPORTED else ""
        raise AttributeError(f"rove.compat has no '{name}'{reason}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
