"""v0's judge: a model asked in one message, whose words a reward function reads."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packaging.version import Version

from rove.compat.verifiers.calls import in_sync_code, maybe_await
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.pins import written_for
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.types import State
from rove.core.errors import ConfigError

DEFAULT_JUDGE_PROMPT = (
    "Given a ground truth answer and a response, determine if the response is correct.\n\n"
    "Question:\n```\n{question}\n```\n\n"
    "Ground truth answer:\n```\n{answer}\n```\n\n"
    "Response:\n```\n{response}\n```\n\n"
    'Respond either "yes" or "no" only.'
)

_ASYNC = Version("0.1.3")
"""The release in which judges and environments became asynchronous."""


class JudgeRubric(Rubric):
    """Gives reward functions a `judge(prompt, completion, answer, state)` to await, which returns what the judge says.

    Synchronous functions, as packages for 0.1.0 to 0.1.2 have them, call it without `await`; other rollouts wait meanwhile.

    Equal questions in one rollout are asked once. The question is the content of the prompt's last message: v0 since 0.1.11
    asked with an empty one.

    Args:
        parser: finds the response in the completion.
        judge_client: an `openai.AsyncOpenAI`, or an `openai.OpenAI`. Default: one with the key in OPENAI_API_KEY, the second
            one in packages whose requirement allows no release after 0.1.2.
        judge_model, judge_sampling_args: what is asked for.
        judge_prompt: with the places `{question}`, `{answer}` and `{response}`.

    Raises:
        ConfigError: there is no `judge_client`, and the package `openai` is not installed.
    """

    def __init__(
        self,
        parser: Parser | None = None,
        parallelize_scoring: bool = False,
        judge_client: Any = None,
        judge_model: str = "gpt-4.1-nano",
        judge_sampling_args: dict[str, Any] | None = None,
        judge_prompt: str = DEFAULT_JUDGE_PROMPT,
        **kwargs: Any,
    ):
        super().__init__(parser=parser, **kwargs)
        self.judge_client = _default_client(is_async=written_for() >= _ASYNC) if judge_client is None else judge_client
        self.judge_model = judge_model
        self.judge_prompt = judge_prompt
        self.judge_sampling_args = judge_sampling_args or {}
        self.class_objects = {
            "parser": self.parser,
            "judge": self.judge,
            "judge_client": self.judge_client,
            "judge_model": self.judge_model,
            "judge_prompt": self.judge_prompt,
            "judge_sampling_args": self.judge_sampling_args,
        }

    def judge(self, prompt: Any, completion: Any, answer: Any, state: State | None = None, **kwargs: Any) -> Any:
        """What the judge says of a completion: to be awaited, or in a synchronous function the text itself.

        Raises:
            RuntimeError: it could not be asked.
        """
        if in_sync_code():
            return self._judge_now(prompt, completion, answer, state)
        return self._judge(prompt, completion, answer, state)

    async def _judge(self, prompt: Any, completion: Any, answer: Any, state: State | None) -> str:
        asked = self._asked(prompt, completion, answer)
        if asked in _replies(state):
            return _replies(state)[asked]
        try:
            said = await maybe_await(self.judge_client.chat.completions.create, **self._request(asked))
        except Exception as error:
            raise self._not_asked(error) from error
        return _kept(state, asked, said)

    def _judge_now(self, prompt: Any, completion: Any, answer: Any, state: State | None) -> Reply:
        asked = self._asked(prompt, completion, answer)
        if asked in _replies(state):
            return Reply(_replies(state)[asked])
        try:
            said = _blocking(self.judge_client, self._request(asked))
        except Exception as error:
            raise self._not_asked(error) from error
        return Reply(_kept(state, asked, said))

    def _asked(self, prompt: Any, completion: Any, answer: Any) -> str:
        response = self.parser.parse_answer(completion)
        return self.judge_prompt.format(question=_question(prompt), answer=answer, response=response)

    def _request(self, asked: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": asked}]
        return {"model": self.judge_model, "messages": messages, **_chat_args(self.judge_sampling_args)}

    def _not_asked(self, error: Exception) -> RuntimeError:
        return RuntimeError(f"judge model '{self.judge_model}' could not be asked: {error}")


class Reply(str):
    """What a judge says, of which `await` gives the same text."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, str]:
        return str(self)
        yield


def _replies(state: State | None) -> dict[str, str]:
    known = state.get("judge_response") if state else None
    return known if isinstance(known, dict) else {}


def _kept(state: State | None, asked: str, said: Any) -> str:
    text = str(said.choices[0].message.content)
    if state:
        state["judge_response"] = {**_replies(state), asked: text}
    return text


def _blocking(client: Any, request: dict[str, Any]) -> Any:
    """What a client answers, without `await`. An asynchronous one belongs to its own event loop, so that another one of the
    same endpoint is asked, or its coroutine runs in another thread."""
    if type(client).__name__ == "AsyncOpenAI":
        same = {name: getattr(client, name) for name in ("api_key", "organization", "project", "base_url", "timeout")}
        headers = getattr(client, "_custom_headers", None)
        with importlib.import_module("openai").OpenAI(
            **same, max_retries=client.max_retries, default_headers=headers
        ) as other:
            return other.chat.completions.create(**request)
    said = client.chat.completions.create(**request)
    if not inspect.isawaitable(said):
        return said

    async def awaited() -> Any:
        return await said

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, awaited()).result()


def _question(prompt: Any) -> str:
    if not isinstance(prompt, list):
        return str(prompt)
    last = prompt[-1] if prompt else ""
    return str(last.get("content", "") if isinstance(last, Mapping) else getattr(last, "content", ""))


def _chat_args(args: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"max_completion_tokens" if name == "max_tokens" else name: value for name, value in args.items()}
    return {name: value for name, value in renamed.items() if value is not None}


def _default_client(is_async: bool) -> Any:
    try:
        openai = importlib.import_module("openai")
        return openai.AsyncOpenAI() if is_async else openai.OpenAI()
    except ImportError as error:
        raise ConfigError("JudgeRubric without judge_client needs the package openai: pip install openai") from error
