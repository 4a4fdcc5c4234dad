"""v0's `MathRubric`, over rove's worker processes."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable
from typing import Any

from packaging.version import Version

from rove.compat.verifiers.data import extract_boxed_answer, extract_first_boxed_answer
from rove.compat.verifiers.mode import fixed
from rove.compat.verifiers.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser
from rove.compat.verifiers.pins import written_for
from rove.compat.verifiers.rubrics import Rubric
from rove.core.errors import ConfigError, Error
from rove.rubrics.math import MathPool


def strictly_boxed(text: str) -> str:
    """What stands in the last `\\boxed{…}`; "" without one."""
    return extract_boxed_answer(text, strict=True)


_WITHOUT_TAGS, _OPTIONAL_THOUGHTS = Version("0.1.2.post1"), Version("0.1.7")
_LAST_BOX, _SHORT_NAME, _STRICT = Version("0.1.5"), Version("0.1.9"), Version("0.1.12")
"""Releases in which the rubric changed."""


def boxed_answer() -> Callable[..., str]:
    """The `extract_boxed_answer` of the release that the calling package is written for."""
    return extract_boxed_answer if written_for() >= _LAST_BOX else extract_first_boxed_answer


def _parser(version: Version) -> Parser:
    """The default parser of a release."""
    if version < _WITHOUT_TAGS:
        return XMLParser(["think", "answer"])
    if version < _OPTIONAL_THOUGHTS:
        return ThinkParser(extract_boxed_answer if version >= _LAST_BOX else extract_first_boxed_answer)
    return MaybeThinkParser(extract_boxed_answer if version < _STRICT else strictly_boxed)


class MathRubric(Rubric):
    """Rewards answers that mean the same as the right one (`correct_answer`, weight 1); see `rove.MathRubric`.

    A comparison that fails or takes too long is a 0 (with ROVE_COMPAT=fixed an error, if it is due to the right answer).
    For a package whose requirement on `verifiers` allows no newer release, the parser and the name of the function are those
    of that release; until 0.1.2.post0 the tags are `<think>` and `<answer>`, and their format counts 0.2.

    Raises:
        ConfigError: math-verify is not installed.
    """

    MAX_VERIFY_CHARS = 50_000

    def __init__(
        self,
        funcs: list[Callable[..., Any]] | None = None,
        weights: list[float] | None = None,
        parser: Parser | None = None,
        max_workers: int = 8,
        timeout_seconds: float = 5,
        max_verify_chars: int = MAX_VERIFY_CHARS,
    ):
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("MathRubric needs math-verify: pip install 'rove[math]'")
        version = written_for()
        super().__init__(funcs=funcs, weights=weights, parser=parser or _parser(version))
        self.max_verify_chars = max_verify_chars
        self.timeout_seconds = timeout_seconds
        self._pool = MathPool(max(1, min(max_workers, os.cpu_count() or 1)), timeout_seconds)
        self.add_reward_func(self.correct_answer if version >= _SHORT_NAME else self.correct_answer_reward_func)
        if version < _WITHOUT_TAGS:
            self.add_reward_func(self.parser.get_format_reward_func(), weight=0.2)

    async def correct_answer(self, parser: Parser, completion: Any, answer: Any, **kwargs: Any) -> float:
        """1.0 where the parsed answer means the same as `answer`, else 0.0."""
        response = parser.parse_answer(completion) or ""
        if not response or len(response) > self.max_verify_chars:
            return 0.0
        compare = self._pool.grade if fixed() else self._pool.equal
        try:
            return float(await compare(str(answer), str(response)))
        except Error as error:
            if fixed():
                raise
            self.logger.warning(f"Math verification failed: {error}")
            return 0.0

    async def correct_answer_reward_func(self, parser: Parser, completion: Any, answer: Any, **kwargs: Any) -> float:
        """`correct_answer` under the name that it had until 0.1.8."""
        return await self.correct_answer(parser, completion, answer, **kwargs)

    async def teardown(self) -> None:
        """End the workers."""
        await super().teardown()
        await asyncio.to_thread(self._pool.close)
