"""A scripted OpenAI-compatible server for the packages of `compat_packages`, with the same replies for rove and the real library.

It needs only aiohttp, so that it runs in the virtual environments of both. The name of the model is that of the package and of
the function here that replies; a reply depends on the conversation and on the number of earlier equal requests.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from typing import Any

from aiohttp import web

Message = dict[str, Any]


def text_of(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text") or "" for part in content)


def calls(*functions: tuple[str, Any]) -> Message:
    tool_calls = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
        }
        for i, (name, args) in enumerate(functions)
    ]
    return {"content": None, "tool_calls": tool_calls}


def boxed_math(last: str, turn: int, repeats: int) -> Any:
    answers = {
        "1/2": "<think>sum</think>It is \\boxed{0.75}",
        "2^5": "\\boxed{\\frac{64}{2}}",
        "Solve": "x is 2, no box" if repeats else "\\boxed{x=2}",
        "7 * 6": "\\boxed{41} or \\boxed{42" if repeats else "\\boxed{41}, no, \\boxed{42}",
    }
    return next(reply for key, reply in answers.items() if key in last)


def judge(last: str, turn: int, repeats: int) -> Any:
    if last.startswith("Polite?"):
        return "yes" if "please" in last else "no"
    truth = last.split("Ground truth answer:\n```\n")[1].split("\n```")[0]
    response = last.split("Response:\n```\n")[1].split("\n```")[0]
    return "Yes." if truth.lower() in response.lower() else "no"


def judge_qa(last: str, turn: int, repeats: int) -> Any:
    replies = {"Faust": "Johann Wolfgang von Goethe, please", "France": "Lyon", "planet": "It is Jupiter"}
    return "I do not know" if repeats else next(words for key, words in replies.items() if key in last)


def guess_number(last: str, turn: int, repeats: int) -> Any:
    if "game 3" in last:
        return "I give up"
    if repeats and turn == 0:
        return "no number" if "game 1" in last else "<guess>\n 2 \n</guess>"
    low_high = {"higher": "7", "lower": "2"}
    word = next((word for word in low_high if word in last), None)
    return f"<guess>{low_high[word]}</guess>" if word else "So: <guess>5</guess>"


def calculator_tools(last: str, turn: int, repeats: int) -> Any:
    if "2 times" in last:
        return calls(("calculate", {"a": 2, "b": 21, "operation": "multiply"}))
    if "is pi" in last:
        return calls(("look_up", {"names": ["pi"]}), ("look_up", {"names": ["tau"], "limit": 1}))
    if "Divide" in last:
        return calls(("calculate", {"a": 1, "b": 0, "operation": "divide"}))
    if "not there" in last:
        return calls(("nothing", {}), ("calculate", '{"a": 1,'), ("calculate", {"a": 1, "c": 2}), ("look_up", "[1]"))
    if "talk" in last:
        return "hello there"
    if "Never" in last or "e'" in last:
        return calls(("look_up", {"names": ["e"]}))
    return f"I was told: {last}"


def notes_store(last: str, turn: int, repeats: int) -> Any:
    if "Write milk" in last:
        return calls(("write", {"key": "milk", "text": "two bottles"}), ("read", {"key": "milk"}))
    if "not there" in last:
        return calls(("read", {"key": "eggs"}))
    if "list" in last:
        return calls(("write", "[1, 2]"), ("read", {"key": "x", "wrong": 1}))
    return f"It says: {last}"


def mcp_sums(last: str, turn: int, repeats: int) -> Any:
    if last == "Add 2 and 3.":
        return calls(("add", {"a": 2, "b": 3}))
    return calls(("fail", {}), ("nothing", {})) if last == "Fail." else f"Told {last}."


def gym_walk(last: str, turn: int, repeats: int) -> Any:
    return "far away" if repeats and turn == 1 else " 2 " if "at 3" not in last else "1"


def mixed_group(last: str, turn: int, repeats: int) -> Any:
    return {"1 + 2?": "3", "3 + 4?": "8", "Ask for salt.": "Salt, please"}.get(last, "Tea!")


def image_count(last: str, turn: int, repeats: int) -> Any:
    return "1"


def debate_g1(last: str, turn: int, repeats: int) -> Any:
    return "Agreed, dogs it is" if "dogs" in last else f"Point {turn} about tea and more"


def group_rank(last: str, turn: int, repeats: int) -> Any:
    return "la" if last == "Sing." else "word " * (repeats + 1)


def xml_fields(last: str, turn: int, repeats: int) -> Any:
    replies = {
        "2+2?": "<reasoning>\nsum\n</reasoning>\n<answer>\n4\n</answer>",
        "Draft?": "<reasoning>a</reasoning><answer>6</answer> no <answer>7</answer>",
        "Code?": "<code>x</code> and <answer> x",
        "Plain?": "p",
    }
    return replies.get(last, "<answer>4</answer>")


def think_info(last: str, turn: int, repeats: int) -> Any:
    replies = {"Even?": "<think>two</think>It is 2.", "Odd?": "<think>hm It is 5.", "None?": "<think></think>"}
    return "<think>a</think><think>b</think> 3" if repeats else replies[last]


def user_simulator(last: str, turn: int, repeats: int) -> Any:
    if "bike" in last:
        return "A fine bike"
    if "fine" in last:
        return "Thanks, I buy it"
    return f"Reply {turn}.{len(last) % 7}"


def columns_classes(last: str, turn: int, repeats: int) -> Any:
    return f"Here!\nl{last[10]}" if "0" in last or repeats else f"l{last[10]}!\nno"


def window_chat(last: str, turn: int, repeats: int) -> Any:
    return f"({turn}) {last}"


def failure_modes(last: str, turn: int, repeats: int) -> Any:
    if "Check" in last:
        return calls(("check", {"value": -1 if "-1" in last else 1}))
    return {"Too long.": 400, "Cut off.": ("I was going to", "length")}.get(last, "ok")


def tictactoe_course(last: str, turn: int, repeats: int) -> Any:
    free = [c for c in last.split("\n", 1)[-1] if c.isdigit()]
    if repeats and turn == 1:
        return "<move>9</move>"
    return f"<think>{turn}</think><move>{free[0] if free else 0}</move>"


# Replies to the packages of `compat_packages_012`


def capital_judge(last: str, turn: int, repeats: int) -> Any:
    replies = {"France": "<think>easy</think><answer>Paris, please</answer>", "Peru": "<answer>Quito</answer> please"}
    return next((words for key, words in replies.items() if key in last and not repeats), "no tags, please")


def grade(last: str, turn: int, repeats: int) -> Any:
    return f"  {min(10, len(last) // 9)}/10\n" if "x x" in last else "no grade "


def graded_judge(last: str, turn: int, repeats: int) -> Any:
    return "x " * int(last.split()[1])


def order_tools(last: str, turn: int, repeats: int) -> Any:
    if "apples" in last:
        return calls(("add_item", {"name": "apple", "count": 2}), ("check_out", {"address": "Main Street"}))
    if "pear" in last:
        return calls(("add_item", {"name": "pear"}))
    if "pear added" in last or "1 x" in last:
        return calls(("check_out", {"address": ""}), ("nothing", {}))
    return "hello" if turn == 0 else f"Done: {last}"


def reward_lists(last: str, turn: int, repeats: int) -> Any:
    return last.split()[1] if not repeats else f"i say {last}"


def think_math(last: str, turn: int, repeats: int) -> Any:
    answers = {
        "1/2": "<think>sum</think>It is \\boxed{0.75}" if not repeats else "It is \\boxed{0.75}",
        "2^5": "<think>a</think>\\boxed{\\frac{64}{2}}" if not repeats else "so <think>a</think>\\boxed{32}",
        "Solve": "<think>b</think>x=2" if not repeats else "<think>b</think>x is 2, no box",
        "7 * 6": "<think>c</think>\\boxed{41}, no, \\boxed{42}" if not repeats else "<think>c</think>",
    }
    return next(reply for key, reply in answers.items() if key in last)


def counted_tools(last: str, turn: int, repeats: int) -> Any:
    if last.startswith("Double 4"):
        return calls(("double", {"number": 4}), ("double", {"number": 8})) if not repeats else "It is 8."
    if last.startswith("Halve"):
        return calls(("halve", {"number": 9}))
    if last.startswith("Double x") or "number" in last:
        return calls(("double", {"numbers": "x"}))
    return f"It is {last}."


def shipped_tools(last: str, turn: int, repeats: int) -> Any:
    if last.startswith("Calculate"):
        return calls(("calculator", {"expression": last.removeprefix("Calculate ").removesuffix(".")}))
    if last.startswith("Run"):
        return (
            calls(("python", {"code": "a, b = 3, 4\na, b"}))
            if not repeats
            else calls(("python", {"code": "print(3)\n"}))
        )
    return "done"


def twenty_questions(last: str, turn: int, repeats: int) -> Any:
    if "pet" in last:
        return "Is it a cat?"
    if turn == 2 and "Hint 2" in last:
        return "An oak?" if not repeats else "I give up"
    return f"Is it number {turn}?"


def account_tools(last: str, turn: int, repeats: int) -> Any:
    if last == "Put 5 in.":
        return calls(("deposit", {"amount": 5}))
    if "twice" in last:
        return calls(("deposit", {"amount": 7}), ("deposit", {"amount": 7, "account": "other"}))
    return "ok"


def task_group(last: str, turn: int, repeats: int) -> Any:
    return {"1 + 2?": "3", "3 + 4?": "8"}.get(last, "two words" if not repeats else "one")


def dialogue(last: str, turn: int, repeats: int) -> Any:
    return f"move {turn}"


class ScriptedServer:
    """A server on loopback in a separate thread; `asked` records every request."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self._request_counts: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self.port = 0

    def __enter__(self) -> ScriptedServer:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._started.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    def _count_repeats(self, body: Any) -> int:
        key = json.dumps([body["model"], body.get("messages") or body.get("prompt")], sort_keys=True)
        self._request_counts[key] += 1
        return self._request_counts[key] - 1

    async def _chat(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        messages = [{k: v for k, v in message.items() if v is not None} for message in body["messages"]]
        body["messages"] = messages
        repeats = self._count_repeats(body)
        recorded = {name: body.get(name) for name in ("model", "messages", "tools")}
        recorded["sampling"] = {name: value for name, value in body.items() if name not in recorded and name != "n"}
        self.asked.append(recorded)
        turn = sum(message["role"] == "assistant" for message in messages)
        reply = globals()[body["model"]](text_of(messages[-1]), turn, repeats)
        if reply == 400:
            error = {"message": "This model's maximum context length is 8 tokens.", "code": "context_length_exceeded"}
            return web.json_response({"error": error}, status=400)
        reply, finish = reply if isinstance(reply, tuple) else (reply, "stop")
        message = reply if isinstance(reply, dict) else {"content": reply}
        words = len(text_of(message).split())
        choice = {
            "index": 0,
            "message": {"role": "assistant", **message},
            "finish_reason": "tool_calls" if "tool_calls" in message else finish,
        }
        return web.json_response(self._answer("chat.completion", body["model"], choice, len(messages), words))

    async def _complete(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        repeats = self._count_repeats(body)
        self.asked.append({"model": body["model"], "prompt": body["prompt"]})
        text = f" the {len(body['prompt'])}th time{' again' * repeats}."
        choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
        return web.json_response(self._answer("text_completion", body["model"], choice, 1, len(text.split())))

    @staticmethod
    def _answer(kind: str, model: str, choice: Any, prompt: int, words: int) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}
        return {"id": "1", "object": kind, "created": 1, "model": model, "choices": [choice], "usage": usage}
