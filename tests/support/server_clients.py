"""Third-party clients of `rove serve`, one function each: `python server_clients.py NAME BASE_URL MODEL_FOLDER`.

This file does not import rove: it runs in an environment with the clients' packages (`make test-clients`). The model has
random weights, so every function constrains the output to the one that it checks.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.request import Request, urlopen

KEY = "none"
QUESTION = "Where shall we go?"
TRIP: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "book", "description": "Book a trip.", "parameters": TRIP},
}
OTHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "wait", "description": "Wait.", "parameters": TRIP},
}
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


def check_trip(trip: dict[str, Any]) -> None:
    assert trip.keys() == {"city", "days"}, trip
    assert trip["city"] in ("Rome", "Oslo") and trip["days"] in range(1, 8), trip


def with_openai(url: str, folder: str) -> None:
    import openai

    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    named: Any = {"type": "function", "function": {"name": "book"}}
    for choice in (named, "required"):
        request: Any = {"model": "tiny", "messages": MESSAGES, "tools": [TOOL, OTHER_TOOL], "tool_choice": choice}
        result = client.chat.completions.create(**request, parallel_tool_calls=False)
        (call,) = result.choices[0].message.tool_calls or []
        assert result.choices[0].finish_reason == "tool_calls"
        check_trip(json.loads(call.function.arguments))
        with client.chat.completions.stream(**request, parallel_tool_calls=False) as stream:
            final = stream.get_final_completion()
        check_trip(json.loads(final.choices[0].message.tool_calls[0].function.arguments))
    text = client.completions.create(model="tiny", prompt="0 1 2", echo=True, logprobs=1, max_tokens=0)
    assert text.choices[0].text == "0 1 2" and text.choices[0].logprobs.token_logprobs[0] is None
    extra = {"prompt_logprobs": 1, "return_token_ids": True, "add_generation_prompt": False}
    chat = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2, extra_body=extra)
    assert len(chat.prompt_logprobs) == len(chat.prompt_token_ids) and chat.choices[0].token_ids
    response = client.responses.create(
        model="tiny", input=QUESTION, max_output_tokens=4, include=["message.output_text.logprobs"], top_logprobs=2
    )
    logprobs = response.output[0].content[0].logprobs
    assert logprobs and all(len(logprob.top_logprobs) == 2 for logprob in logprobs)
    function: Any = {"type": "function", "name": "book", "parameters": TRIP, "strict": False}
    response = client.responses.create(
        model="tiny", input=QUESTION, tools=[function], tool_choice="required", parallel_tool_calls=False
    )
    check_trip(json.loads(response.output[0].arguments))


def with_anthropic(url: str, folder: str) -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=KEY, max_retries=0)
    tool: Any = {"name": "book", "description": "Book a trip.", "input_schema": TRIP}
    request: Any = {"model": "tiny", "messages": MESSAGES, "tools": [tool]}
    counted = client.messages.count_tokens(**request)
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "book"}):
        result = client.messages.create(**request, tool_choice=choice, max_tokens=200)
        (block,) = result.content
        assert (result.stop_reason, result.usage.input_tokens) == ("tool_use", counted.input_tokens)
        check_trip(block.input)
        with client.messages.stream(**request, tool_choice=choice, max_tokens=200) as stream:
            check_trip(stream.get_final_message().content[0].input)


def with_litellm(url: str, folder: str) -> None:
    import litellm

    for choice in ("required", {"type": "function", "function": {"name": "book"}}):
        result: Any = litellm.completion(
            model="openai/tiny",
            api_base=url,
            api_key=KEY,
            messages=MESSAGES,
            tools=[TOOL],
            tool_choice=choice,
            parallel_tool_calls=False,
        )
        check_trip(json.loads(result.choices[0].message.tool_calls[0].function.arguments))
    result = litellm.completion(
        model="hosted_vllm/tiny", api_base=url, messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=2
    )
    assert result.choices[0].logprobs["content"]


def with_langchain(url: str, folder: str) -> None:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel, Field

    @tool
    def book(city: Literal["Rome", "Oslo"], days: Literal[1, 2, 3]) -> str:
        """Book a trip."""
        return f"{days} days in {city}"

    class Trip(BaseModel):
        """A trip."""

        city: Literal["Rome", "Oslo"]
        days: int = Field(ge=1, le=7)

    model = ChatOpenAI(base_url=url, api_key=KEY, model="tiny", max_retries=0, use_responses_api=False)
    result = model.bind_tools([book], tool_choice="any").invoke(QUESTION)
    assert result.tool_calls and result.tool_calls[0]["name"] == "book", result
    assert " days in " in book.invoke(result.tool_calls[0]["args"])
    trip = model.with_structured_output(Trip, method="function_calling").invoke(QUESTION)
    assert isinstance(trip, Trip), trip
    responses = ChatOpenAI(base_url=url, api_key=KEY, model="tiny", max_retries=0, use_responses_api=True)
    result = responses.bind_tools([book], tool_choice="any").invoke(QUESTION)
    check_trip(result.tool_calls[0]["args"])


def with_pydantic_ai(url: str, folder: str) -> None:
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Trip(BaseModel):
        city: Literal["Rome", "Oslo"]
        days: int = Field(ge=1, le=7)

    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=url, api_key=KEY))
    result = Agent(model, output_type=Trip, retries=0).run_sync(QUESTION)
    assert isinstance(result.output, Trip), result
    assert result.usage.requests == 1, result.usage


def with_instructor(url: str, folder: str) -> None:
    import instructor
    import openai
    from pydantic import BaseModel, Field

    class Trip(BaseModel):
        city: Literal["Rome", "Oslo"]
        days: int = Field(ge=1, le=7)

    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key=KEY, max_retries=0), mode=instructor.Mode.TOOLS)
    trip = client.chat.completions.create(model="tiny", messages=MESSAGES, response_model=Trip, max_retries=0)
    assert isinstance(trip, Trip), trip


def with_smolagents(url: str, folder: str) -> None:
    from smolagents import OpenAIServerModel, Tool, ToolCallingAgent
    from smolagents.memory import ActionStep

    class Book(Tool):
        name = "book"
        description = "Book a trip of some days."
        inputs: ClassVar[Any] = {"hotel": {"type": "boolean", "description": "Whether to book a hotel as well."}}
        output_type = "string"

        def forward(self, hotel: bool) -> str:
            return f"Booked with a hotel: {hotel}"

    model = OpenAIServerModel(model_id="tiny", api_base=url, api_key=KEY, max_tokens=3000)
    agent = ToolCallingAgent(tools=[Book()], model=model, max_steps=3, verbosity_level=0)
    agent.run(QUESTION)
    steps = [step for step in agent.memory.steps if isinstance(step, ActionStep) and step.tool_calls]
    assert steps, [step.error for step in agent.memory.steps if isinstance(step, ActionStep)]
    assert {call.name for step in steps for call in step.tool_calls} <= {"book", "final_answer"}


def with_inspect(url: str, folder: str) -> None:
    os.environ |= {"ROVE_BASE_URL": url, "ROVE_API_KEY": KEY}
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    @tool
    def book():
        async def execute(city: Literal["Rome", "Oslo"], hotel: bool):
            """Book a trip.

            Args:
                city: Where to go.
                hotel: Whether to book a hotel as well.
            """
            return f"Booked {city}"

        return execute

    solver = [use_tools(book(), tool_choice="any"), generate(tool_calls="single")]
    task = Task(dataset=[Sample(input=QUESTION, target="x")], solver=solver, scorer=includes(), message_limit=6)
    with tempfile.TemporaryDirectory() as logs:
        (log,) = eval(task, model="openai-api/rove/tiny", display="plain", log_dir=logs, max_tokens=600)
        assert log.status == "success", log.error
        results = [message.text for message in log.samples[0].messages if message.role == "tool"]  # read from the log
    assert results and all(result.startswith("Booked ") for result in results), results


def with_lm_eval(url: str, folder: str) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask

    rows = [{"question": f"{n} comes after", "choices": [str(n - 1), str(n + 1)], "answer": 0} for n in range(1, 5)]
    with tempfile.TemporaryDirectory() as data:
        path = Path(data) / "rows.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        config: dict[str, Any] = {
            "task": "counting",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": data},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        }
        results = simple_evaluate(
            model="local-completions",
            model_args={
                "model": "tiny",
                "base_url": f"{url}/completions",
                "tokenizer": folder,
                "tokenizer_backend": "huggingface",
                "num_concurrent": 1,
                "max_length": 1024,
            },
            tasks=[ConfigurableTask(config=config)],
            log_samples=True,
            bootstrap_iters=0,
        )
    assert 0 <= results["results"]["counting"]["acc,none"] <= 1, results["results"]
    samples = results["samples"]["counting"]
    assert len(samples) == len(rows)
    for sample in samples:
        for choice, resps in zip(sample["doc"]["choices"], sample["filtered_resps"], strict=True):
            expected = continuation_logprob(url, sample["doc"]["question"], f" {choice}")
            assert math.isclose(float(resps[0]), expected, abs_tol=1e-3), (resps, expected)


def continuation_logprob(url: str, context: str, continuation: str) -> float:
    """Return the log-probability of a continuation, from rove's own API for token ids."""

    def post(path: str, body: dict[str, Any]) -> Any:
        request = Request(
            url.removesuffix("/v1") + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    token_count = len(post("/tokenize", {"prompt": context})["tokens"])
    ids = post("/tokenize", {"prompt": context + continuation})["tokens"]
    response = post("/generate", {"prompt_ids": ids, "max_tokens": 0, "prompt_logprobs": 0})
    return sum(response["choices"][0]["prompt_logprobs"][token_count - 1 :])


def with_openai_agents(url: str, folder: str) -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def book(city: Literal["Rome", "Oslo"], hotel: bool) -> str:
        """Book a trip."""
        return f"Booked {city}"

    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        client = openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0)  # of one event loop
        agent = agents.Agent(
            name="travel",
            instructions="Book trips.",
            model=kind(model="tiny", openai_client=client),
            tools=[book],
            model_settings=agents.ModelSettings(tool_choice="required", parallel_tool_calls=False),
            tool_use_behavior="stop_on_first_tool",
        )
        result = asyncio.run(agents.Runner.run(agent, QUESTION, max_turns=2))
        assert result.final_output in ("Booked Rome", "Booked Oslo"), result.final_output


def with_langgraph(url: str, folder: str) -> None:
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    @tool
    def book(city: Literal["Rome", "Oslo"], hotel: bool) -> str:
        """Book a trip."""
        return f"Booked {city}"

    model = ChatOpenAI(base_url=url, api_key=KEY, model="tiny", max_retries=0).bind_tools([book], tool_choice="book")
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([book]))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    result = graph.compile().invoke({"messages": [HumanMessage(QUESTION)]})
    assert result["messages"][-1].content in ("Booked Rome", "Booked Oslo"), result


CLIENTS = {
    "openai": ("openai", with_openai),
    "anthropic": ("anthropic", with_anthropic),
    "litellm": ("litellm", with_litellm),
    "langchain": ("langchain_openai", with_langchain),
    "pydantic-ai": ("pydantic_ai", with_pydantic_ai),
    "instructor": ("instructor", with_instructor),
    "smolagents": ("smolagents", with_smolagents),
    "inspect-ai": ("inspect_ai", with_inspect),
    "lm-eval": ("lm_eval", with_lm_eval),
    "openai-agents": ("agents", with_openai_agents),
    "langgraph": ("langgraph", with_langgraph),
}
"""Name → the module that must be installed, and the function to run."""

if __name__ == "__main__":
    CLIENTS[sys.argv[1]][1](*sys.argv[2:4])
