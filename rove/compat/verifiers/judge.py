"""v0's judge: a model asked in one message, whose words a reward function reads."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rove.compat.verifiers.calls import maybe_await
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.types import State
from rove.errors import ConfigError

DEFAULT_JUDGE_PROMPT = (
    "Given a ground truth answer and a response, determine if the response is correct.\n\n"
    "Question:\n```\n{question}\n```\n\n"
    "Ground truth answer:\n```\n{answer}\n```\n\n"
    "Response:\n```\n{response}\n```\n\n"
    'Respond either "yes" or "no" only.'
)


class JudgeRubric(Rubric):
    """Gives reward functions a `judge(prompt, completion, answer, state)` to await, which returns what the judge says.

    Equal questions in one rollout are asked once. The question is the content of the prompt's last message: v0 since 0.1.11
    asked with an empty one.

    Args:
        parser: finds the response in the completion.
        judge_client: an `openai.AsyncOpenAI`. Default: one with the key in OPENAI_API_KEY.
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
        self.judge_client = _default_client() if judge_client is None else judge_client
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

    async def judge(self, prompt: Any, completion: Any, answer: Any, state: State | None = None, **kwargs: Any) -> str:
        """What the judge says of a completion.

        Raises:
            RuntimeError: it could not be asked.
        """
        asked = self.judge_prompt.format(
            question=_question(prompt), answer=answer, response=self.parser.parse_answer(completion)
        )
        known = state.get("judge_response") if state else None
        known = known if isinstance(known, dict) else {}
        if asked in known:
            return known[asked]
        create = self.judge_client.chat.completions.create
        try:
            said = await maybe_await(
                create,
                model=self.judge_model,
                messages=[{"role": "user", "content": asked}],
                **_chat_args(self.judge_sampling_args),
            )
            text = str(said.choices[0].message.content)
        except Exception as error:
            raise RuntimeError(f"judge model '{self.judge_model}' could not be asked: {error}") from error
        if state:
            state["judge_response"] = {**known, asked: text}
        return text


def _question(prompt: Any) -> str:
    if not isinstance(prompt, list):
        return str(prompt)
    last = prompt[-1] if prompt else ""
    return str(last.get("content", "") if isinstance(last, Mapping) else getattr(last, "content", ""))


def _chat_args(args: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"max_completion_tokens" if name == "max_tokens" else name: value for name, value in args.items()}
    return {name: value for name, value in renamed.items() if value is not None}


def _default_client() -> Any:
    try:
        return importlib.import_module("openai").AsyncOpenAI()
    except ImportError as error:
        raise ConfigError("JudgeRubric without judge_client needs the package openai: pip install openai") from error
