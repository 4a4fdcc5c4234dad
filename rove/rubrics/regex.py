"""Does the answer match this pattern?"""

from __future__ import annotations

from pathlib import Path

from rove.core.config import check_positive
from rove.core.errors import Error, WorkerError
from rove.parsers.parser import Completion
from rove.rubrics.rubric import Rubric
from rove.rubrics.scorers import read_answer
from rove.workers import Workers

MEMORY_BYTES = 256 << 20
MAX_WORKERS = 2


class RegexRubric(Rubric):
    """Rewards replies whose answer has a match of the regular expression in `answer` (function `regex`, weight 1).

    `re.search` runs in a worker process, because a pattern such as `(a+)+$` can take exponential time. A search that takes
    too long scores 0. Anchor the pattern with `^…$` to match the whole answer.

    Args:
        timeout_seconds: wall time of one search.
        max_chars: only the first so many characters of the answer are searched.

    Raises:
        ConfigError: a limit is not above 0.
    """

    def __init__(self, timeout_seconds: float = 2.0, max_chars: int = 20_000):
        super().__init__()
        self.timeout_seconds = timeout_seconds
        self.max_chars = max_chars
        check_positive(self, "timeout_seconds", "max_chars")
        program = Path(__file__).with_name("regex_worker.py")
        self._workers = Workers(program, max_workers=MAX_WORKERS, memory_bytes=MEMORY_BYTES, name="regex")
        self.add_reward_func(self.regex)

    async def regex(self, completion: Completion, answer: str) -> float:
        """Return 1.0 if the pattern `answer` is found in the answer of the reply, else 0.0.

        Raises:
            Error: the pattern is not a regular expression.
            WorkerError: the worker process could not be started.
        """
        await self._workers.ensure_started()
        text = read_answer(completion)[: self.max_chars]
        async with self._workers.acquire() as worker:
            try:
                found = await worker.call("search", self.timeout_seconds, pattern=answer, text=text)
            except WorkerError:  # it took too long, or too much memory
                return 0.0
        if found is None:
            raise Error(f"the right answer {answer!r} is not a regular expression; correct it, or use another scorer")
        return float(found)

    async def teardown(self) -> None:
        """End the worker processes."""
        await self._workers.aclose()
