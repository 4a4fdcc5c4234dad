"""Compare mathematical answers with math-verify."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from rove.core.checks import check_values
from rove.core.errors import ConfigError, Error, InfraError, RemoteError, WorkerError
from rove.core.ranges import PositiveInt, Seconds
from rove.rubrics.parser import Completion, MaybeThinkParser, Parser, extract_boxed_answer
from rove.rubrics.rubric import RewardFunc, Rubric
from rove.workers import Workers

MAX_WORKERS = 8
MEMORY_BYTES = 2 << 30
"""Maximum memory of a worker, in addition to its imports."""
MAX_QUOTED_CHARS = 80


def strictly_boxed(text: str) -> str:
    """Return the content of the last `\\boxed{…}`; "" without one."""
    return extract_boxed_answer(text, strict=True)


class MathRubric(Rubric):
    """Rewards answers that are mathematically equal to the right one: 1/2, 0.5 and \\frac{1}{2} (function
    `correct_answer`, weight 1).

    A unit counts if both have one: 1000 m is 1 km, and 10 m is not 10 km. A ratio (3:4) is equal only to a ratio, a sequence
    with an ellipsis (1, 2, …) only to one of the same terms. Values are equal only if their ratio is 1, however small they
    are. Punctuation at the end, bold and italics around the answer, and separators of thousands do not count.

    math-verify compares them in worker processes without API keys and with at most 2 GiB of memory. A response is
    wrong if it has no answer (also if its reasoning is not finished), is longer than `max_verify_chars`, or cannot be
    compared within `timeout_seconds`. The rollout fails if the right answer itself cannot be compared.

    Args:
        funcs, weights: further reward functions, as for `Rubric`.
        parser: finds the answer. Default: the last `\\boxed{…}` after the reasoning.
        max_workers: concurrent comparisons. Default: the number of cores, at most 8.
        timeout_seconds: wall time of one comparison.
        max_verify_chars: longer responses are wrong.

    Raises:
        ConfigError: math-verify is not installed, or a limit is not above 0.

    Example:
        dataset = [{"question": "What is 1/2 + 1/4?", "answer": "3/4"}]
        env = rove.SingleTurnEnv(dataset=dataset, rubric=rove.MathRubric())
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
        check_values(self, max_workers=PositiveInt, timeout_seconds=Seconds, max_verify_chars=PositiveInt)
        self._pool = MathPool(self.max_workers, timeout_seconds)
        self.add_reward_func(self.correct_answer)

    async def correct_answer(self, parser: Parser, completion: Completion, answer: str) -> float:
        """Return 1.0 if the parsed answer is equal to `answer`, else 0.0.

        Raises:
            WorkerError, RemoteError: `answer` cannot be compared in time, or makes math-verify fail.
            Error: `answer` cannot be parsed.
        """
        parsed_answer = parser.parse_answer(completion)
        response = "" if parsed_answer is None else str(parsed_answer).strip()
        if not response or len(response) > self.max_verify_chars:
            return 0.0
        return float(await self._pool.grade(str(answer), response))

    async def teardown(self) -> None:
        """End the workers."""
        await self._pool.aclose()


class MathPool:
    """A pool of worker processes, started on demand; a comparison that exceeds its time limit ends its worker.

    Args:
        strict: apply the rules for units, ratios, punctuation and small values, which `MathRubric` lists; False leaves the
            decision to math-verify, as verifiers v0 does.
    """

    def __init__(self, max_workers: int, timeout_seconds: float, strict: bool = True):
        self.timeout_seconds = timeout_seconds
        self.strict = strict
        program = Path(__file__).with_name("math_worker.py")
        self.workers = Workers(program, max_workers=max_workers, memory_bytes=MEMORY_BYTES, name="math-verify")
        self._times_closed = 0

    async def equal(self, answer: str, response: str) -> bool:
        """Return whether a response is equal to the right answer."""
        try:
            await self.workers.ensure_started()
        except (RemoteError, WorkerError) as error:
            raise InfraError(f"math-verify cannot be used: {error}; try pip install 'rove[math]'") from error
        async with self.workers.acquire() as worker:
            arguments = {"answer": answer, "response": response, "strict": self.strict}
            is_equal = await worker.call("compare", self.timeout_seconds, **arguments)
        if is_equal is None:
            quoted = answer if len(answer) <= MAX_QUOTED_CHARS else answer[:MAX_QUOTED_CHARS] + "…"
            raise Error(
                f"math-verify cannot parse the right answer {quoted!r}; expected a number, a set or a LaTeX expression"
            )
        return is_equal

    async def grade(self, answer: str, response: str) -> bool:
        """Return whether a response is equal to the right answer; False if the response itself cannot be compared.

        If a comparison fails, the right answer is compared with 0. If that succeeds, the response caused the failure
        and is wrong: otherwise a policy could remove a rollout from its group with an answer such as 9^{9^{9^{9}}}.
        """
        closed_before = self._times_closed  # a comparison fails as well if the pool is closed while it runs
        try:
            return await self.equal(answer, response)
        except (RemoteError, WorkerError):
            if self._times_closed > closed_before or not await self._can_compare(answer):
                raise
            return False

    async def _can_compare(self, answer: str) -> bool:
        try:
            await self.equal(answer, "0")
        except (RemoteError, WorkerError):
            return False
        return True

    async def aclose(self) -> None:
        """Close the pool without blocking the event loop; see `close`."""
        self._times_closed += 1
        await self.workers.aclose()

    def close(self) -> None:
        """End all workers, even during a comparison. The pool starts new ones when it is used again."""
        self._times_closed += 1
        self.workers.close()
