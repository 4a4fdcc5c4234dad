"""v0's `MathRubric`, over rove's worker processes."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable
from typing import Any

from rove.compat.verifiers.data import extract_boxed_answer
from rove.compat.verifiers.mode import fixed
from rove.compat.verifiers.parsers import MaybeThinkParser, Parser
from rove.compat.verifiers.rubrics import Rubric
from rove.errors import ConfigError, Error
from rove.rubrics.math_pool import MathPool


def strictly_boxed(text: str) -> str:
    """What stands in the last `\\boxed{…}`; "" without one."""
    return extract_boxed_answer(text, strict=True)


class MathRubric(Rubric):
    """Rewards answers that mean the same as the right one (`correct_answer`, weight 1); see `rove.MathRubric`.

    A comparison that fails or takes too long is a 0 (with ROVE_COMPAT=fixed an error, if it is due to the right answer).

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
        super().__init__(funcs=funcs, weights=weights, parser=parser or MaybeThinkParser(strictly_boxed))
        self.max_verify_chars = max_verify_chars
        self.timeout_seconds = timeout_seconds
        self._pool = MathPool(max(1, min(max_workers, os.cpu_count() or 1)), timeout_seconds)
        self.add_reward_func(self.correct_answer)

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

    async def teardown(self) -> None:
        """End the workers."""
        await super().teardown()
        await asyncio.to_thread(self._pool.close)
