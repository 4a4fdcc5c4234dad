"""Is this the same number, set, or formula?"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from rove.core.config import check_positive
from rove.core.errors import ConfigError
from rove.parsers.parser import Completion, MaybeThinkParser, Parser, extract_boxed_answer
from rove.rubrics.math_pool import MathPool
from rove.rubrics.rubric import RewardFunc, Rubric

MAX_WORKERS = 8


def strictly_boxed(text: str) -> str:
    """What stands in the last `\\boxed{…}`; "" without one."""
    return extract_boxed_answer(text, strict=True)


class MathRubric(Rubric):
    """Rewards answers that mean the same as the right one: 1/2, 0.5 and \\frac{1}{2} (function `correct_answer`, weight 1).

    math-verify compares them, in worker processes that have no API keys in their environment and 2 GiB of memory at most.
    A response is wrong if it has no answer, is longer than `max_verify_chars`, or cannot be compared within `timeout_seconds`.
    The rollout fails with an error if the right answer itself cannot be compared.

    Args:
        funcs, weights: further reward functions, as of `Rubric`.
        parser: finds the answer. Default: that of the environment, else what is in the last `\\boxed{…}` after any thoughts.
        max_workers: comparisons at a time. Default: 8, or as many as there are cores if fewer.
        timeout_seconds: wall time of one comparison.
        max_verify_chars: longer responses are not read.

    Raises:
        ConfigError: math-verify is not installed, or a limit is not above 0.
    """

    def __init__(
        self,
        funcs: Sequence[RewardFunc] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
        max_workers: int | None = None,
        timeout_seconds: float = 5.0,
        max_verify_chars: int = 50_000,
    ):
        super().__init__(funcs, weights, parser)
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("MathRubric needs math-verify: pip install 'rove[math]'")
        if parser is None:
            self.parser = MaybeThinkParser(strictly_boxed)
        self.max_workers = min(MAX_WORKERS, os.cpu_count() or 1) if max_workers is None else max_workers
        self.timeout_seconds = timeout_seconds
        self.max_verify_chars = max_verify_chars
        check_positive(self, "max_workers", "timeout_seconds", "max_verify_chars")
        self._pool = MathPool(self.max_workers, timeout_seconds)
        self.add_reward_func(self.correct_answer)

    async def correct_answer(self, parser: Parser, completion: Completion, answer: str) -> float:
        """1.0 where the parsed answer means the same as `answer`, else 0.0.

        Raises:
            WorkerError, RemoteError: `answer` cannot be compared in time, or makes math-verify fail.
            Error: `answer` is no mathematics.
        """
        response = str(parser.parse_answer(completion) or "").strip()
        if not response or len(response) > self.max_verify_chars:
            return 0.0
        return float(await self._pool.grade(str(answer), response))

    async def teardown(self) -> None:
        """End the workers."""
        await self._pool.end()
