"""Run cases on a version of `verifiers`, one JSON line per case and result: `python compat_worker.py real` or `rove`.

tests/compat/test_fuzz.py compares the results of both on the same cases.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import warnings
from typing import Any

Case = dict[str, Any]


def plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def parser_of(case: Case, vf: Any) -> Any:
    options = {"extract_fn": str.upper} if case.get("extract") else {}
    if case["parser"] == "XMLParser":
        fields = [tuple(field) if isinstance(field, list) else field for field in case["fields"]]
        return vf.XMLParser(fields, answer_field=case["answer_field"])
    return getattr(vf, case["parser"])(**options)


def parsers(case: Case, vf: Any) -> Any:
    parser = parser_of(case, vf)
    text, completion = case["text"], case["completion"]
    results: Case = {
        "answer": parser.parse_answer(completion),
        "answer_of_text": parser.parse_answer(text),
        "format": parser.get_format_reward_func()(completion=completion),
    }
    if case["parser"] == "XMLParser":
        for strip in (True, False):
            for last in (True, False):
                results[f"parse {strip} {last}"] = vars(parser.parse(text, strip=strip, last=last))
        results |= {"fields": parser.get_fields(), "shown": parser.get_format_str()}
        try:
            results["written"] = parser.format(**case["values"])
        except ValueError as error:
            results["written"] = f"ValueError: {error}"
    else:
        results["parse"] = parser.parse(text)
    return results


def texts(case: Case, vf: Any) -> Any:
    return [
        vf.extract_boxed_answer(case["text"]),
        vf.extract_boxed_answer(case["text"], strict=True),
        vf.extract_hash_answer(case["text"]),
    ]


def make_functions(functions: list[Case]) -> list[Any]:
    """Return reward functions from descriptions of their parameters and their results."""
    funcs = []
    for function in functions:
        scope: Case = {}
        args = ", ".join([*function["takes"], *(["**kwargs"] if function["takes_all"] else [])])
        returns = f" -> {function['returns']}" if function["returns"] else ""
        body = {
            "length": "len(str([" + ", ".join(t for t in function["takes"] if t in STABLE) + "])) / 10",
            "raise": "1 / 0",
            "constant": repr(function["value"]),
            "names": "float(len(set(kwargs) & set(KNOWN)))" if function["takes_all"] else "1",
            "text": "'2.5'",
            "none": "None",
        }[function["does"]]
        if function["group"]:
            count = f"len({function['takes'][0]})"
            body = f"[({body}) * (i + 1) for i in range({count})]"
        kind = "async def" if function["is_async"] else "def"
        exec(f"{kind} {function['name']}({args}){returns}:\n    return {body}", {"KNOWN": KNOWN}, scope)
        funcs.append(scope[function["name"]])
    return funcs


STABLE = ("answer", "info", "colour", "answers", "infos", "prompts", "completions")
KNOWN = ("prompt", "completion", "answer", "state", "info", "task", "parser", "colour", "prompts", "states", "tasks")


def rubrics(case: Case, vf: Any) -> Any:
    async def score() -> Any:
        from verifiers.types import RolloutTiming, State

        states = []
        for row in case["rows"]:
            state = State(input={**row, "prompt": "p", "example_id": 0})
            state["completion"] = [{"role": "assistant", "content": row["answer"]}]
            state["trajectory"] = [
                {"reward": reward, "advantage": None, "prompt": [], "completion": []} for reward in row["step_rewards"]
            ]
            state["timing"] = RolloutTiming()
            states.append(state)
        members = []
        for description in case["rubrics"]:
            rubric = vf.Rubric(funcs=make_functions(description["functions"]), weights=description["weights"])
            for func in make_functions(description["metrics"]):
                rubric.add_metric(func)
            members.append(rubric)
        rubric = vf.RubricGroup(rubrics=members) if len(members) > 1 else members[0]
        results: Case = {
            "group": rubric.has_group_rewards,
            "names": rubric._get_reward_func_names(),
            "weights": rubric._get_reward_weights(),
        }
        try:
            if case["alone"]:
                for state in states:
                    await rubric.score_rollout(state)
            else:
                await rubric.score_group(states)
        except AssertionError:
            return {**results, "refused": True}
        except Exception as error:
            return {**results, "failed": type(error).__name__}
        keys = ("reward", "metrics", "advantage")
        steps = [[(step["reward"], step["advantage"]) for step in state["trajectory"]] for state in states]
        return {**results, "scores": [[state.get(key) for key in keys] for state in states], "steps": steps}

    return asyncio.run(score())


def prompts(case: Case, vf: Any) -> Any:
    from datasets import Dataset

    env = vf.SingleTurnEnv(
        dataset=Dataset.from_list(case["rows"]),
        system_prompt=case["system_prompt"],
        few_shot=case["few_shot"],
        rubric=vf.Rubric(),
    )

    async def states() -> Any:
        rows = []
        for row in env.get_dataset().to_list():
            state = await env.init_state(row, make_client(vf)(None), "m", None)
            rows.append({key: plain(state.get(key)) for key in ("prompt", "answer", "info", "example_id", "task")})
        return rows

    return {"rows": asyncio.run(states()), "columns": sorted(env.get_dataset().column_names)}


def groups(case: Case, vf: Any) -> Any:
    """Return the rows of a group of environments."""
    from datasets import Dataset

    def env(member: Case) -> Any:
        return vf.SingleTurnEnv(
            dataset=Dataset.from_list(member["rows"]),
            system_prompt=member["system_prompt"],
            few_shot=member["few_shot"],
            rubric=vf.Rubric(),
        )

    members = [env(member) for member in case["members"]]
    try:
        if case["nested"]:
            members = [vf.EnvGroup(members, env_names=["x", "y"]), members[0]]
        group = vf.EnvGroup(members, env_names=case["names"], system_prompt=case["system_prompt"])
    except Exception:
        return {"refused": True}
    rows = [plain(row) for row in group.get_dataset().to_list()]
    return {"rows": rows, "columns": sorted(group.get_dataset().column_names), "names": group.env_names}


def make_client(vf: Any) -> Any:
    """Return a client class whose replies are given in order."""

    class Scripted(vf.Client):
        def __init__(self, replies: Any):
            super().__init__(None)
            self.replies = list(replies or [])

        def setup_client(self, config: Any) -> Any: ...
        async def to_native_tool(self, tool: Any) -> Any: ...
        async def to_native_prompt(self, messages: Any) -> Any:
            return messages, {}

        async def get_native_response(
            self, prompt: Any, model: Any, sampling_args: Any, tools: Any = None, **kw: Any
        ) -> Any:
            if not self.replies:
                raise RuntimeError("nothing left to say")
            return self.replies.pop(0)

        async def raise_from_native_response(self, response: Any) -> None: ...
        async def close(self) -> None: ...
        async def from_native_response(self, response: Any) -> Any:
            from verifiers.types import Response, ResponseMessage, Usage

            usage = Usage(
                prompt_tokens=2, reasoning_tokens=0, completion_tokens=len(response), total_tokens=2 + len(response)
            )
            message = ResponseMessage(content=response, finish_reason="stop", is_truncated=response.endswith("…"))
            return Response(id="1", created=1, model="m", usage=usage, message=message)

    return Scripted


def stops(case: Case, vf: Any) -> Any:
    """Run a rollout with the described stop conditions and cleanups; return the order of their calls."""
    events: list[str] = []

    def stop_method(stop: Case) -> Any:
        async def check(self: Any, state: Any) -> bool:
            events.append(stop["name"])
            return len(state["trajectory"]) >= stop["after"]

        check.__name__ = stop["name"]
        return vf.stop(check) if stop["priority"] is None else vf.stop(priority=stop["priority"])(check)

    def cleanup_method(cleanup: Case) -> Any:
        async def close(self: Any, state: Any) -> None:
            events.append(f"close {cleanup['name']} {len(state['completion'] or [])}")

        close.__name__ = cleanup["name"]
        return vf.cleanup(priority=cleanup["priority"] or 0)(close)

    async def env_response(self: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
        turn = len(state["trajectory"])
        events.append(f"answer {turn}")
        if turn == case["final_after"]:
            state["final_env_response"] = [{"role": "user", "content": "over"}]
        if turn == case["fails_after"]:
            raise vf.ToolError("broken")
        return f"text {turn}" if case["text"] else [{"role": "user", "content": f"turn {turn}"}]

    body = {stop["name"]: stop_method(stop) for stop in case["stops"]} | {"env_response": env_response}
    body |= {cleanup["name"]: cleanup_method(cleanup) for cleanup in case["cleanups"]}
    env = type("Env", (vf.MultiTurnEnv,), body)(
        dataset=lambda: None, max_turns=case["max_turns"], rubric=vf.Rubric(), system_prompt=None
    )
    env.set_max_total_completion_tokens(case["max_tokens"])
    row = {"prompt": [{"role": "user", "content": "go"}], "example_id": 0}
    state = asyncio.run(env.rollout(row, make_client(vf)(case["said"]), "m", {}))
    keys = ("stop_condition", "is_completed", "is_truncated", "completion", "final_env_response")
    error = type(state["error"]).__name__ if state["error"] is not None else None
    return {
        **{key: plain(state.get(key)) for key in keys},
        "asked": events,
        "error": error,
        "usage": plain(env.get_state_usage(state)),
    }


def tools(case: Case, vf: Any) -> Any:
    from verifiers.utils.tool_utils import convert_func_to_tool_def

    scope: Case = {}
    exec("import typing, enum, dataclasses\nfrom typing import *\n" + case["source"], scope)
    try:
        return plain(convert_func_to_tool_def(scope["tool"]))
    except Exception:
        return {"refused": True}


def messages(case: Case, vf: Any) -> Any:
    from verifiers.utils.message_utils import normalize_messages

    try:
        normalized = normalize_messages(case["messages"])
    except (ValueError, TypeError) as error:
        return {"refused": isinstance(error, (ValueError, TypeError))}
    first = normalized[0] if normalized else None
    return {
        "plain": plain(normalized),
        "full": [message.model_dump() for message in normalized],
        "words": [str(message) for message in normalized] + [repr(normalized)],
        "reads": None if first is None else [first["role"], first.role, first.get("nothing", 7), "content" in first],
        "equal": [message == message.model_dump() for message in normalized],
    }


def answers(case: Case, vf: Any) -> Any:
    """Return the message and the usage that are read from a chat completion."""
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", **case}

    async def read() -> Any:
        try:
            if vf.__version__.endswith("rove"):
                from rove.clients.openai import OpenAIClient
                from rove.wire.chat import read_response

                client, native = vf.OpenAIChatCompletionsClient(OpenAIClient("http://localhost")), read_response(body)
                await client.raise_from_native_response(native)
                return await client.from_native_response(native)
            from openai import AsyncOpenAI
            from openai.types.chat import ChatCompletion

            client = vf.OpenAIChatCompletionsClient(AsyncOpenAI(api_key="x", base_url="http://localhost"))
            native = ChatCompletion.model_validate(body)
            await client.raise_from_native_response(native)
            return await client.from_native_response(native)
        except vf.Error as error:
            return {"refused": type(error).__name__}

    result = asyncio.run(read())
    return result if "refused" in result else {"message": plain(result.message), "usage": plain(result.usage)}


KINDS = {f.__name__: f for f in (parsers, texts, rubrics, prompts, stops, tools, messages, answers, groups)}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.environ.update(HF_DATASETS_DISABLE_PROGRESS_BARS="1", HF_HUB_OFFLINE="1")
    if sys.argv[1] == "rove":
        import rove.compat

        rove.compat.install()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import verifiers as vf

    for line in sys.stdin:
        kind, case = json.loads(line)
        out.write(json.dumps(KINDS[kind](case, vf)) + "\n")
        out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
