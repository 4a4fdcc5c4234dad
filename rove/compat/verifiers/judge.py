"""v0's judge: a model gets one message, and a reward function parses its response."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packaging.version import Version

from rove.compat.verifiers.decorators import in_sync_code, maybe_await
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.release import written_for
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
"""First release in which judges and environments are asynchronous."""


class JudgeRubric(Rubric):
    """Provides reward functions with `judge(prompt, completion, answer, state)`; awaiting it gives the judge's response.

    Synchronous functions of packages for 0.1.0 to 0.1.2 call it without `await`; this blocks other rollouts.

    Equal prompts within a rollout are sent once. The question is the content of the prompt's last message; v0 from
    0.1.11 on sent an empty question.

    Args:
        parser: extracts the response from the completion.
        judge_client: an `openai.AsyncOpenAI` or `openai.OpenAI`. Default: a client with the key in OPENAI_API_KEY; it
            is synchronous for packages whose requirement allows no release after 0.1.2.
        judge_model, judge_sampling_args: model and sampling arguments of the request.
        judge_prompt: template with `{question}`, `{answer}` and `{response}`.

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
        """Return the judge's response to a completion: an awaitable or, in a synchronous function, the text.

        Raises:
            RuntimeError: the request failed.
        """
        if in_sync_code():
            return self._judge_sync(prompt, completion, answer, state)
        return self._judge(prompt, completion, answer, state)

    async def _judge(self, prompt: Any, completion: Any, answer: Any, state: State | None) -> str:
        prompt_text = self._judge_prompt(prompt, completion, answer)
        # As in v0: several functions of a rubric may send the same prompt, which then costs one request.
        if prompt_text in _cached_replies(state):
            return _cached_replies(state)[prompt_text]
        try:
            response = await maybe_await(self.judge_client.chat.completions.create, **self._request(prompt_text))
        except Exception as error:
            raise self._request_error(error) from error
        return _store_reply(state, prompt_text, response)

    def _judge_sync(self, prompt: Any, completion: Any, answer: Any, state: State | None) -> JudgeReply:
        prompt_text = self._judge_prompt(prompt, completion, answer)
        if prompt_text in _cached_replies(state):
            return JudgeReply(_cached_replies(state)[prompt_text])
        try:
            response = _request_sync(self.judge_client, self._request(prompt_text))
        except Exception as error:
            raise self._request_error(error) from error
        return JudgeReply(_store_reply(state, prompt_text, response))

    def _judge_prompt(self, prompt: Any, completion: Any, answer: Any) -> str:
        response = self.parser.parse_answer(completion)
        return self.judge_prompt.format(question=_question(prompt), answer=answer, response=response)

    def _request(self, prompt_text: str) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self.judge_model, "messages": [{"role": "user", "content": prompt_text}]}
        for name, value in self.judge_sampling_args.items():
            if value is not None:
                # As in v0: OpenAI's reasoning models refuse the old name.
                request["max_completion_tokens" if name == "max_tokens" else name] = value
        return request

    def _request_error(self, error: Exception) -> RuntimeError:
        return RuntimeError(f"judge model '{self.judge_model}' could not be called: {error}")


class JudgeReply(str):
    """The judge's response; `await` returns the same text.

    A synchronous reward function may return the result of `judge` to code that awaits it.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, str]:
        return str(self)
        yield  # never reached: it makes this method a generator, as `await` needs


def _cached_replies(state: State | None) -> dict[str, str]:
    replies = state.get("judge_response") if state else None
    return replies if isinstance(replies, dict) else {}


def _store_reply(state: State | None, prompt_text: str, response: Any) -> str:
    text = str(response.choices[0].message.content)
    if state:
        state["judge_response"] = {**_cached_replies(state), prompt_text: text}
    return text


def _request_sync(client: Any, request: dict[str, Any]) -> Any:
    """Send a request without `await`.

    An async client belongs to another event loop. It is replaced with an equivalent sync client, or its coroutine runs
    in a thread.
    """
    if type(client).__name__ == "AsyncOpenAI":
        names = ("api_key", "organization", "project", "base_url", "timeout", "max_retries")
        settings = {name: getattr(client, name) for name in names}
        settings["default_headers"] = getattr(client, "_custom_headers", None)
        with importlib.import_module("openai").OpenAI(**settings) as sync_client:
            return sync_client.chat.completions.create(**request)
    response = client.chat.completions.create(**request)
    if not inspect.isawaitable(response):
        return response

    async def wait() -> Any:
        return await response

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


def _question(prompt: Any) -> str:
    if not isinstance(prompt, list):
        return str(prompt)
    # v0 since 0.1.11 looks for dicts, finds models and sends an empty question; this is one of the two faults that
    # docs/decisions/compat.md does not keep.
    last = prompt[-1] if prompt else ""
    content = last.get("content", "") if isinstance(last, Mapping) else getattr(last, "content", "")
    return str(content)


def _default_client(is_async: bool) -> Any:
    try:
        openai = importlib.import_module("openai")
        return openai.AsyncOpenAI() if is_async else openai.OpenAI()
    except ImportError as error:
        raise ConfigError("JudgeRubric without judge_client needs the package openai: pip install openai") from error
