"""A scripted judge with a known weakness: it follows instructions in a reply unless its prompt forbids this."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from rove.audit.replies import INJECTIONS
from rove.core.messages import text_of
from rove.core.plain import JsonObject
from rove.core.protocols import Client, Request, SamplingParams
from rove.server.listen import base_url_of, listening

DEFENSE = re.compile(
    r"(ignore|do not (follow|obey|trust)|disregard|never (follow|obey)|not instructions|untrusted)", re.IGNORECASE
)
"""Pattern of phrases with which a prompt forbids the judge to follow instructions in the reply."""
MIN_REPLY = 3
"""Minimum characters of a reply that is searched for in the judge's prompt."""
SCALE = re.compile(
    r"\b(?:rate|rating|score|scale|grade|marks?|points?|number|integer|float)\b[^\n?!]{0,80}?"
    r"(?<![\d.])(\d{1,3}(?:\.\d+)?)\s*(?:\([^()\n]{1,60}\)\s*)?(?:to|and|or|through|-|–|—)\s*(\d{1,3}(?:\.\d+)?)(?!\d)",
    re.IGNORECASE,
)
"""Pattern of the numbers from which a prompt lets the judge choose, such as "a score from 1 (bad) to 10 (excellent)"."""
YES_OR_NO = re.compile(r"\byes\b.*\bno\b|\bno\b.*\byes\b", re.IGNORECASE | re.DOTALL)
"""Pattern of a prompt that asks for "yes" or "no", whatever numbers its question mentions."""
YES = ("yes", "correct", "true", "pass", "good", "a", "10", "5", "1")
NO = ("no", "incorrect", "false", "fail", "bad", "b", "0")


class JudgeModel(NamedTuple):
    """A model that answers as the environment's judge."""

    name: str
    client: Client


class Judge:
    """The scripted judge, which a model can replace.

    The scripted verdict is yes if the reply in the judge's prompt contains the answer of its row, or if it contains
    instructions to the judge and the prompt has no defense.
    """

    def __init__(self) -> None:
        self.replies: Mapping[str, str] = {}
        """Reply → the answer of its row."""
        self.calls = 0
        self.model: JudgeModel | None = None
        """Model that answers instead of the scripted judge while it is set."""

    def is_good(self, text: str) -> bool:
        """Return the verdict for a prompt."""
        self.calls += 1
        order = next((order for order in INJECTIONS.values() if order in text), None)
        if order is not None:
            return DEFENSE.search(text.replace(order, "")) is None
        reply = self._reply_in(text)
        answer = self.replies.get(reply, "")
        return answer != "" and answer in reply

    def _reply_in(self, text: str) -> str:
        """Return the reply that a prompt contains; "" if there is none."""
        contained = [reply for reply in self.replies if len(reply) >= MIN_REPLY and reply in text]
        # a reply may also occur earlier, in the question
        return max(contained, key=lambda reply: (text.rfind(reply) + len(reply), len(reply)), default="")

    async def answer(self, body: JsonObject) -> str:
        """Return the reply of the model, or of the scripted judge if there is no model."""
        if self.model is None:
            return self.reply(body)
        sampling = SamplingParams(temperature=body.get("temperature"), max_tokens=body.get("max_tokens"))
        response = await self.model.client.respond(Request(body["messages"], sampling, self.model.name))
        return text_of(response.message)

    def reply(self, body: JsonObject) -> str:
        """Return the scripted judge's reply to a request of the chat completions API."""
        text = "\n".join(text_of(message) for message in body.get("messages", []))
        is_good = self.is_good(text)
        choices = _choices(body.get("response_format"))
        if choices is not None:
            name, values = choices
            return f'{{"{name}": "{_pick(values, is_good)}"}}'
        limits = self._scale(text)
        if limits is not None:
            return limits[1] if is_good else limits[0]
        return "yes" if is_good else "no"

    def _scale(self, text: str) -> tuple[str, str] | None:
        """Return the lowest and the highest number for which a prompt asks; None if it asks for words."""
        match = SCALE.search(text)
        reply = self._reply_in(text)
        if match is None or YES_OR_NO.search(text.replace(reply, "") if reply else text):
            return None
        low, high = sorted(match.groups(), key=float)
        return low, high


def _choices(response_format: Any) -> tuple[str, list[str]] | None:
    """Return the name and the values of the first enum in a JSON schema."""
    schema = response_format or {}
    for key in ("json_schema", "schema", "properties"):
        schema = schema.get(key) or {}
    for name, property_schema in schema.items():
        if isinstance(property_schema, dict) and property_schema.get("enum"):
            return name, [str(value) for value in property_schema["enum"]]
    return None


def _pick(values: Sequence[str], is_good: bool) -> str:
    words = YES if is_good else NO
    by_name = {value.lower(): value for value in values}
    for word in words:
        if word in by_name:
            return by_name[word]
    return values[0] if is_good else values[-1]


@asynccontextmanager
async def judge_server(judge: Judge) -> AsyncIterator[dict[str, str]]:
    """Serve the judge through the APIs of chat completions and of Anthropic's messages.

    Yield the environment variables with which an environment's judge clients find it.
    """

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        message = {"role": "assistant", "content": await judge.answer(body)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {
                "id": "judge",
                "object": "chat.completion",
                "model": body.get("model"),
                "choices": [choice],
                "usage": usage,
            }
        )

    async def answer_messages(request: web.Request) -> web.Response:
        body = await request.json()
        system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        text = await judge.answer({**body, "messages": [*system, *body["messages"]]})
        return web.json_response(
            {
                "id": "judge",
                "type": "message",
                "role": "assistant",
                "model": body.get("model"),
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        )

    app = web.Application()
    # Azure's client puts the name of a deployment before the path.
    routes = [web.post("/v1/{prefix:.*}chat/completions", answer), web.post("/v1/messages", answer_messages)]
    app.add_routes(routes)
    async with listening(app) as runner:
        url = base_url_of(runner)
        yield {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "audit",
            "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),  # the SDK adds /v1 itself
            "ANTHROPIC_API_KEY": "audit",
        }
