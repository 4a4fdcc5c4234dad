"""Worker processes that compare mathematics: a time limit ends one, and the next comparison has a fresh one."""

from __future__ import annotations

from pathlib import Path

from rove.core.errors import Error, InfraError, RemoteError, WorkerError
from rove.workers import Workers

MEMORY = 2 << 30
"""Bytes beyond what is there after the imports: more than any honest answer takes."""
SHOWN = 80
"""Characters of an expression that an error quotes."""


class MathPool:
    """At most `max_workers` processes, each started when it is needed; usable from one event loop after another.

    Args:
        max_workers: comparisons at a time.
        timeout_seconds: wall time of one comparison, waiting for a worker and its start not included.
    """

    def __init__(self, max_workers: int, timeout_seconds: float):
        self.timeout_seconds = timeout_seconds
        program = Path(__file__).with_name("math_worker.py")
        self.workers = Workers(program, max_workers=max_workers, memory_bytes=MEMORY, name="math-verify")
        self._times_closed = 0

    async def equal(self, answer: str, response: str) -> bool:
        """Whether a response says the same as the right answer.

        Raises:
            InfraError: math-verify is not there; or (a WorkerError) the comparison did not end in time, or killed its worker.
            Error: the answer is no mathematics; or (a RemoteError) math-verify failed.
        """
        try:
            await self.workers.ensure_started()
        except (RemoteError, WorkerError) as error:
            raise InfraError(f"math-verify cannot be used: {error}; try pip install 'rove[math]'") from error
        async with self.workers.acquire() as worker:
            said = await worker.call("compare", self.timeout_seconds, answer=answer, response=response)
        if said is None:
            shown = repr(answer if len(answer) <= SHOWN else answer[:SHOWN] + "…")
            raise Error(f"the right answer {shown} is no mathematics that math-verify can read")
        return said

    async def grade(self, answer: str, response: str) -> bool:
        """Whether a response means the same as the right answer; False if the response itself cannot be compared.

        If a comparison fails, the right answer is compared with 0. If that succeeds, the response caused the failure and
        is wrong: otherwise a policy could remove a rollout from its group with an answer such as 9^{9^{9^{9}}}.

        Raises:
            WorkerError, RemoteError: the right answer cannot be compared with 0 either, or the pool was closed.
            InfraError, Error: as `equal`.
        """
        closed_before = self._times_closed
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

    async def end(self) -> None:
        """As `close`, beside the event loop."""
        self._times_closed += 1
        await self.workers.aclose()

    def close(self) -> None:
        """End every worker, also in the middle of a comparison. The pool starts new ones if it is used again."""
        self._times_closed += 1
        self.workers.close()
