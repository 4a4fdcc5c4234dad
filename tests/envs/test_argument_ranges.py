"""Numbers that constructors take: each has a range, and a wrong one is refused by name before any work begins."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tiers import each_row

import rove
from rove.clients.anthropic import AnthropicClient
from rove.clients.openai import OpenAIClient
from rove.core.errors import ConfigError
from rove.envs.agent import AgentEnv
from rove.envs.multi_turn import MultiTurnEnv
from rove.envs.sandbox import SandboxEnv
from rove.rubrics.judge import JudgeCache
from rove.rubrics.math import MathRubric
from rove.rubrics.scorers import RegexRubric


class Turns(MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        return "go on"


ROWS = [{"question": "2 + 2?", "answer": "4"}]
CONSTRUCTORS: dict[str, tuple[type, Callable[..., Any]]] = {
    "OpenAIClient": (OpenAIClient, lambda **kw: OpenAIClient("http://localhost:1/v1", "key", **kw)),
    "AnthropicClient": (AnthropicClient, lambda **kw: AnthropicClient("http://localhost:1", "key", **kw)),
    "ScriptedClient": (rove.ScriptedClient, lambda **kw: rove.ScriptedClient(lambda *_: "4", **kw)),
    "MultiTurnEnv": (MultiTurnEnv, lambda **kw: Turns(dataset=ROWS, **kw)),
    "ToolEnv": (rove.ToolEnv, lambda **kw: rove.ToolEnv(dataset=ROWS, **kw)),
    "AgentEnv": (AgentEnv, lambda **kw: AgentEnv(command="true", dataset=ROWS, **kw)),
    "SandboxEnv": (SandboxEnv, lambda **kw: SandboxEnv(dataset=ROWS, unsafe=True, **kw)),
    "MathRubric": (MathRubric, MathRubric),
    "RegexRubric": (RegexRubric, RegexRubric),
    "JudgeCache": (JudgeCache, JudgeCache),
}


def arguments(kind: type) -> Iterator[str]:
    """Names of the arguments that are numbers."""
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if "int" in str(parameter.annotation).split(" | ") or "float" in str(parameter.annotation).split(" | "):
            yield name


CASES = [(name, argument) for name, (kind, _) in CONSTRUCTORS.items() for argument in arguments(kind)]


@each_row(("name", "argument"), CASES)
def test_a_wrong_number_is_refused_by_name(name: str, argument: str):
    make = CONSTRUCTORS[name][1]
    for value in (math.nan, math.inf, -math.inf, -7, "many", True):
        with pytest.raises(ConfigError, match=f"{value!r}"):
            make(**{argument: value})


def test_every_constructor_has_numbers():
    assert {name for name, _ in CASES} == set(CONSTRUCTORS)


@pytest.mark.parametrize("turns", [0, -2])
def test_zero_turns_are_refused_and_minus_one_means_no_limit(turns: int):
    assert Turns(dataset=ROWS, max_turns=-1).max_turns == -1
    with pytest.raises(ConfigError, match=f"max_turns is {turns}; expected an integer, 1 or more, or -1 for no limit"):
        Turns(dataset=ROWS, max_turns=turns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollouts_per_example": -1}, "rollouts_per_example is -1; expected an integer, 1 or more"),
        ({"num_examples": -7}, "num_examples is -7; expected an integer, 1 or more, or -1 for all"),
        ({"budget": math.nan}, "budget is nan; expected a finite number, more than 0"),
        ({"max_errors": math.inf}, "max_errors is inf; expected a finite number, more than 0"),
        ({"limits": {"timeout_seconds": 0}}, "limits.timeout_seconds is 0; expected a number, more than 0"),
        ({"sampling_args": {"temperature": math.nan}}, "temperature is nan; expected a finite number, 0 or more"),
        ({"temperature": math.nan}, "'temperature'; it is a sampling parameter: sampling_args={'temperature': nan}"),
    ],
)
async def test_evaluate_checks_its_options_before_any_rollout(options: dict[str, Any], message: str):
    requests: list[Any] = []
    client = rove.ScriptedClient(lambda *_: requests.append(1) or "4")
    with pytest.raises(ConfigError) as caught:
        await rove.evaluate(rove.SingleTurnEnv(dataset=ROWS), client, **options)
    assert message in str(caught.value)
    assert not requests
