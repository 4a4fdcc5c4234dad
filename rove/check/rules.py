"""Rules that derive a package's API generation, and the rows of docs/compat.md that apply to it, from what its code uses.

Each rule holds the two cells of a row in docs/compat.md and the features of the code (see `source_reader`) to which it applies.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from packaging.version import Version

from rove.compat.verifiers.release import RELEASES
from rove.core.findings import Finding

G0, G1, G2, G3 = "G0", "G1", "G2", "G3"
V1, ROVE, NEITHER = "verifiers v1", "rove", "neither"
SUPPORTED_VERSIONS = "0.1.0 to 0.3.1"
"""The versions of `verifiers` whose API rove provides."""
OTHER_API = f"it is written for {V1}, which has another API; rove provides the API of {SUPPORTED_VERSIONS}"
"""Reason shown for packages written for verifiers v1."""
GENERATIONS = {
    G0: "verifiers 0.1.0 to 0.1.2",
    G1: "verifiers 0.1.3 to 0.1.7",
    G2: "verifiers 0.1.8 to 0.1.10",
    G3: "verifiers 0.1.11 to 0.3.1",
    V1: "verifiers 0.4 and later",
    ROVE: "rove's API",
    NEITHER: "imports neither",
}

BEFORE = {G0: Version("0.1.3"), G1: Version("0.1.8"), G2: Version("0.1.11")}
"""Generation → first release of the next generation."""


class Rule(NamedTuple):
    """A row of docs/compat.md, and the features of the code to which it applies; one of them suffices."""

    difference: str
    """Text of the row's first cell, in the column "what"."""
    behavior: str
    """Text of the row's second cell, in the column "here" (for older packages: "today")."""
    features: tuple[str, ...]
    until: str = ""
    """Last generation that supports this usage; "" if it is still supported."""


_LEGACY_METHODS = (
    "an `is_completed(messages, state)`, `rollout(client, model, prompt, …)`, `get_model_response(client, model, prompt, …)`, "
    "`init_state(prompt, completion, …)`, `get_context_messages`, `init_completion`"
)

RULES = (
    # differences in every generation
    Rule(
        "the question in the prompt of `JudgeRubric`", "the content of the prompt's last message", ("name:JudgeRubric",)
    ),
    Rule(
        "an exception in environment code that is not a `vf.Error`",
        "fails only that rollout",
        ("rollout:own error",),
    ),
    Rule(
        "rollouts with an error",
        "the same in `env.evaluate`; with rove's commands and functions, they fail and are left out of means",
        ("rollout:error",),
    ),
    Rule(
        "`partial`s and objects as reward functions",
        "named after the wrapped function or their class",
        ("function:partial",),
    ),
    Rule(
        'rewards of turns (`state["trajectory"][-1]["reward"]`)',
        "the same; `rove rl` trains only on the rollout's reward",
        ("assigned:reward of a step", "name:GymEnv", "name:EpisodicSumRubric"),
    ),
    Rule(
        "model calls made by the environment (`get_model_response`)",
        'stored in the record under the role "environment", never trained on',
        ("attribute:get_model_response",),
    ),
    Rule(
        "prompts that are strings",
        'the same in `env.evaluate`; in rove\'s runs, `message_type="completion"` selects a completion endpoint',
        ("message_type:completion",),
    ),
    Rule(
        "tools with `dict` arguments, `**kwargs`, or (before Python 3.12) a `typing.TypedDict`",
        "an object without a schema; `**kwargs` is left out",
        ("tool:dict",),
    ),
    Rule("a column `task` of strings", "passed to reward functions unchanged", ("column:task",), G2),
    Rule(
        "`vf.OverlongPromptError`, `vf.MissingKeyError`",
        "the first is also a `vf.ModelError`, the second also a `vf.Error`",
        ("name:OverlongPromptError", "name:MissingKeyError"),
    ),
    Rule(
        "`SandboxEnv`, `PythonEnv`",
        "[rove's sandboxes](sandbox.md), on this machine, opened by the first call",
        ("name:SandboxEnv", "name:PythonEnv"),
    ),
    Rule("`MCPEnv`", "a server that ends is restarted, at most 3 times", ("name:MCPEnv",)),
    Rule(
        'clients "renderer" and "openai_chat_completions_token"',
        "messages; exact tokens are recorded if rove samples itself",
        (
            *("name:RendererClient", "name:OpenAIChatCompletionsTokenClient"),
            *("client_type:renderer", "client_type:openai_chat_completions_token"),
        ),
    ),
    Rule(
        "`extra_headers_from_state` of a `ClientConfig`",
        "passed to clients that packages define",
        ("keyword:extra_headers_from_state", "key:extra_headers_from_state"),
    ),
    Rule("`client.client`", "a rove client", ("chain:client.client",)),
    Rule(
        "sampling arguments `n: 1` and `max_tokens`",
        "`n: 1` is not sent; `max_tokens` is sent unchanged, except to OpenAI",
        ("sampling:n", "sampling:max_tokens"),
    ),
    Rule(
        "`start_server`, `vf-tui`, GEPA",
        "not available; use `rove eval`",
        ("attribute:start_server", "attribute:stop_server", "module:verifiers.gepa", "module:verifiers.scripts"),
    ),
    # older packages
    Rule(_LEGACY_METHODS, "a method decorated with `@vf.stop`", ("sync:is_completed",), G0),
    Rule(_LEGACY_METHODS, "a method decorated with `@vf.stop`", ("async:is_completed",), G1),
    Rule(
        "a `judge(…)` without `await`, a synchronous `judge_client`",
        "`await judge(…)` in an async function, `openai.AsyncOpenAI`",
        ("sync:judge",),
        G0,
    ),
    Rule(
        "`rubric.reward_funcs`, `rubric.reward_weights`; `score_rollout(prompt, completion, …)`",
        "`rubric.funcs`, `rubric.weights`; `score_rollout(state)`",
        ("attribute:reward_funcs", "attribute:reward_weights", "scoring:score_rollout", "scoring:score_rollouts"),
        G1,
    ),
    Rule(
        '`call.function.name`, `"tool_calls" in message`',
        "`call.name`, `message.tool_calls`",
        ("chain:function.name", "chain:function.arguments", "tested:tool_calls"),
        G2,
    ),
    Rule(
        "`update_tool_args(tool_args, messages, state)`",
        "`tool_name` is the first argument",
        ("unnamed:update_tool_args",),
        G1,
    ),
    Rule("`verifiers.utils.tools`", "the package's own tools", ("module:verifiers.utils.tools",), G1),
    Rule(
        "`env_response` that returns `(messages, state)`",
        "return only the messages, and change the state in place",
        ("pair:env_response",),
        G1,
    ),
    Rule(
        "`env_response` that returns `(messages, state)`",
        "return only the messages, and change the state in place",
        ("pair:one message",),
        G0,
    ),
    Rule(
        '`oai_tools=`, `env.oai_tools`, `info["oai_tools"]`, tools in OpenAI\'s form',
        "`tool_defs`",
        ("keyword:oai_tools", "attribute:oai_tools", "key:oai_tools"),
        G2,
    ),
    Rule('`state["turn"]`, `state["responses"]`', '`state["trajectory"]`', ("state:turn", "state:responses"), G1),
    Rule(
        '`results["reward"]`, `results.reward`',
        '`results["outputs"]`',
        ("results:reward", "results:completion", "results:prompt"),
        G2,
    ),
    Rule(
        "`ToolRubric`, `DoubleCheckEnv`, `MultiTurnCompletionEnv`",
        '`Rubric`; a `MultiTurnEnv`; `message_type="completion"`',
        ("name:ToolRubric",),
        G1,
    ),
    Rule(
        "`ToolRubric`, `DoubleCheckEnv`, `MultiTurnCompletionEnv`",
        '`Rubric`; a `MultiTurnEnv`; `message_type="completion"`',
        ("name:DoubleCheckEnv", "name:MultiTurnCompletionEnv"),
        G0,
    ),
    Rule(
        "`Rubric(func, func)`, `SingleTurnEnv(dataset, parser, rubric)`",
        "pass keyword arguments",
        ("positional:rubric", "positional:environment"),
        G0,
    ),
    Rule(
        "`SingleTurnEnv(client=…, model=…)`, `evaluate(num_samples=…)`",
        "`evaluate(client, model, num_examples=…)`",
        ("environment:client", "environment:model", "keyword:num_samples"),
        G0,
    ),
    Rule(
        "`GRPOTrainer`, `RLTrainer`, `GRPOConfig`, `grpo_defaults`, `lora_defaults`, `get_model_and_tokenizer`",
        "`rove rl` (these names run it); `vf-vllm` is not needed",
        (
            *("name:GRPOTrainer", "name:RLTrainer", "name:GRPOConfig", "name:RLConfig"),
            *("name:grpo_defaults", "name:lora_defaults"),
            *("name:get_model_and_tokenizer", "name:get_model", "name:get_tokenizer"),
        ),
        G2,
    ),
)
GONE = {
    "name:CodeMathEnv": G0,
    "name:CodeMathRubric": G0,
    "name:SmolaToolEnv": G0,
    "name:SmolaToolRubric": G0,
    "name:VLLMClient": G0,
}
"""Names of the first releases that no rule mentions → the last generation that had them."""


def generation(names: Collection[str], newest: Version = RELEASES[-1]) -> str:
    """Return the newest API generation that is consistent with a package's features."""
    modules = [name.removeprefix("module:") for name in names if name.startswith("module:")]
    if "name:v1" in names or _imports(modules, "verifiers.v1"):
        return V1
    if not _imports(modules, "verifiers") and not _imports(modules, "rove.compat.verifiers"):
        return ROVE if modules else NEITHER
    # Each of these is the last generation that allows something the package uses; the oldest one allows all of it.
    last_generations = [rule.until for rule in _matching_rules(names) if rule.until]
    last_generations += [until for name, until in GONE.items() if name in names]
    last_generations += [until for until, next_release in BEFORE.items() if newest < next_release]
    return min(last_generations, default=G3)


def _imports(modules: Collection[str], package: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for module in modules)


def _matching_rules(names: Collection[str]) -> list[Rule]:
    return [rule for rule in RULES if not set(rule.features).isdisjoint(names)]


def deviations(names: Collection[str]) -> list[Finding]:
    """Return the rows of docs/compat.md that apply to a package, in the order of the page."""
    findings = (Finding("api_difference", rule.difference, remedy=rule.behavior) for rule in _matching_rules(names))
    return list(dict.fromkeys(findings))  # several rules may stand for one row
