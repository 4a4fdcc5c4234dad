"""Tests of the smolagents environments: smolagents tools in SmolaToolEnv, and smolagents agents in SmolaAgentEnv."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import smolagents
from fakes import tiny_model

import rove as vf
from rove.engine.client import EngineClient
from rove.envs.smolagents import as_tool
from rove.train.sequences import sequences_from_record
from rove.wire.common import tool_call

ROWS = [{"question": "double 21", "answer": "42"}]


@smolagents.tool
def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: what to double
    """
    return 2 * n


class Search(smolagents.Tool):
    """Has every kind of input, and setup()."""

    name = "search"
    description = "Searches."
    inputs = {
        "query": {"type": "string", "description": "what for", "enum": ["cats", "dogs"]},
        "most": {"type": "integer", "description": "how many", "nullable": True},
        "filters": {"type": "object", "description": "which", "nullable": True},
        "anything": {"type": "any", "description": "what you like", "nullable": True},
    }
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()
        self.set_up = 0

    def setup(self) -> None:
        self.set_up += 1
        super().setup()

    def forward(self, query: str, most: int | None = 3, filters: dict | None = None, anything: Any = None) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return f"{most} {query}"


def right(completion: vf.Messages, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def calls(name: str, arguments: str, number: int = 1) -> vf.Message:
    return vf.AssistantMessage(None, tool_calls=[tool_call(f"c{number}", name, arguments)])


def test_tool_definitions_have_the_descriptions_of_the_tools():
    env = vf.SmolaToolEnv([double, Search()], dataset=ROWS)
    functions = {definition["function"]["name"]: definition["function"] for definition in env.tool_defs}
    assert functions["double"]["description"] == "Doubles a number."
    assert functions["double"]["parameters"]["properties"] == {
        "n": {"type": "integer", "description": "what to double"}
    }
    properties = functions["search"]["parameters"]["properties"]
    assert properties["query"] == {"type": "string", "description": "what for", "enum": ["cats", "dogs"]}
    assert properties["anything"] == {"description": "what you like"}
    assert functions["search"]["parameters"]["required"] == ["query"]


async def test_tools_are_called_in_threads_with_checked_arguments():
    search = Search()

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        turns = [
            calls("double", '{"n": "many"}'),
            calls("search", '{"query": "cats", "most": null, "filters": {"a": 1}}'),
            calls("search", "{}"),
            calls("halve", '{"n": 21}'),
            calls("double", '{"n": 21}'),
        ]
        turn = len(state["trajectory"])
        return turns[turn] if turn < len(turns) else messages[-1]["content"]

    def halve(n: float) -> float:
        """Halves."""
        return n / 2

    env = vf.SmolaToolEnv([double, search], dataset=ROWS * 2, rubric=vf.Rubric([right]))
    env.add_tool(halve)
    first, second = await env.generate(vf.ScriptedClient(policy))
    assert (first.reward, second.reward) == (1.0, 1.0), first.error
    results = [message["content"] for message in first.completion if message["role"] == "tool"]
    assert results == [
        "double: argument 'n': Expected `int`, got `str`",
        "None cats",
        "search needs the argument 'query'; expected at least query",
        "10.5",
        "42",
    ]
    assert search.set_up == 1
    assert first.scores is not None and first.scores.metrics["search_calls"] == 2


def test_the_code_of_a_tool_is_part_of_the_identity():
    class EditedSearch(Search):
        def forward(self, query: str, most: int | None = 3, filters: dict | None = None, anything: Any = None) -> str:
            return "nothing"

    first, same, changed = (
        vf.SmolaToolEnv([tool], dataset=ROWS).identity for tool in (Search(), Search(), EditedSearch())
    )
    assert first == same and first["tools"] != changed["tools"]


def test_an_unknown_input_type_is_rejected():
    search = Search()
    search.inputs = {"query": {"type": "poem", "description": "what for"}}
    with pytest.raises(vf.ConfigError, match="input 'query' of tool 'search' is of type 'poem'; expected string"):
        as_tool(search)


# Agents


def tool_calling(model: Any) -> smolagents.ToolCallingAgent:
    return smolagents.ToolCallingAgent(tools=[double], model=model, max_steps=3, verbosity_level=-1)  # pyright: ignore[reportArgumentType]


def coding(model: Any) -> smolagents.CodeAgent:
    return smolagents.CodeAgent(tools=[double], model=model, max_steps=3, verbosity_level=-1)  # pyright: ignore[reportArgumentType]


def caller(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
    turn = len(state["trajectory"])
    return calls("double", '{"n": 21}') if turn == 0 else calls("final_answer", '{"answer": "42"}', 2)


def coder(messages: vf.Messages, state: vf.State, rng: Any) -> str:
    turn = len(state["trajectory"])
    return "I double it.\n<code>\nx = double(n=21)\n" if turn == 0 else "<code>\nfinal_answer(str(x))\n"


@pytest.mark.parametrize(("make", "player"), [(tool_calling, caller), (coding, coder)])
async def test_an_agent_runs_as_a_rollout(make: Any, player: Any):
    requests: list[Any] = []

    def respond(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        requests.append(messages)
        return player(messages, state, rng)

    env = vf.SmolaAgentEnv(make, dataset=ROWS * 4, rubric=vf.Rubric([right]))
    records = await env.generate(vf.ScriptedClient(respond))
    assert [record.reward for record in records] == [1.0] * 4, records[0].error
    for record in records:
        assert (record.stop_condition, len(record.steps)) == ("agent_finished", 2)
        assert "double" in str(record.steps[0].prompt[0]["content"])
        assert "double 21" in str(record.steps[0].prompt[1]["content"])
        assert record.completion[-1] == vf.AssistantMessage("42")
    names = [tool["function"]["name"] for tool in records[0].tools or []]
    assert names == (["double", "final_answer"] if make is tool_calling else [])
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.broad
async def test_a_rollout_of_an_untrained_model_has_exact_tokens():
    client = EngineClient.from_model(tiny_model(context=16384))
    env = vf.SmolaAgentEnv(coding, dataset=ROWS, rubric=vf.Rubric([right]), sampling_args={"max_tokens": 8})
    [record] = await env.generate(client)
    assert record.error is None and record.reward == 0.0 and len(record.steps) == 4  # the last step is the final answer
    sequences = sequences_from_record(record, 1.0)
    trained = sum(sum(sequence.mask) for sequence in sequences)
    assert trained == sum(len(step.tokens.completion_ids) for step in record.steps if step.tokens)


@pytest.mark.parametrize("name", ["agent", "command"])
def test_other_agent_arguments_are_rejected(name: str):
    with pytest.raises(vf.ConfigError, match=f"no argument '{name}'"):
        vf.SmolaAgentEnv(coding, dataset=ROWS, **{name: "true"})


async def test_errors_of_the_agent_and_of_the_model_are_distinguished():
    def broken(model: Any) -> Any:
        raise KeyError("no such agent")

    [record] = await vf.SmolaAgentEnv(broken, dataset=ROWS).generate(vf.ScriptedClient(caller))
    assert record.error is not None and (record.error.phase, record.error.type) == ("agent", "AgentError")

    def gone(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        raise vf.InfraError("the endpoint is gone")

    [record] = await vf.SmolaAgentEnv(tool_calling, dataset=ROWS).generate(vf.ScriptedClient(gone))
    assert record.error is not None and (record.error.phase, record.error.type) == ("model", "InfraError")


async def test_an_agent_is_interrupted_when_the_rollout_ends():
    agents: list[Any] = []

    def make(model: Any) -> Any:
        agents.append(smolagents.ToolCallingAgent(tools=[double], model=model, max_steps=10**6, verbosity_level=-1))  # pyright: ignore[reportArgumentType]
        return agents[-1]

    def again(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        return calls("double", '{"n": 21}', len(state["trajectory"]))

    env = vf.SmolaAgentEnv(make, dataset=ROWS, rubric=vf.Rubric([right]), max_turns=3, grace_seconds=0.01)
    [record] = await env.generate(vf.ScriptedClient(again))
    assert (record.stop_condition, len(record.steps), record.error) == ("max_turns_reached", 3, None)
    assert agents[0].step_number < 10
