"""Check grammars of untrusted requests in worker processes before this process compiles them.

A JSON schema of a thousand characters can need hours and all of the memory: patterns that must match at the same time multiply
their sizes. No limit on the text predicts this, so each new grammar is compiled in a worker process, which the system
ends if it exceeds its CPU time or memory. A grammar that passes is compiled again in this process, at no higher cost.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import weakref
from collections import Counter, OrderedDict
from pathlib import Path

from rove.core.errors import ConfigError, RejectedError, RemoteError, WorkerError
from rove.core.protocols import REQUESTER
from rove.workers import Workers

MAX_CHECKS = 2
"""Maximum number of grammars that are checked at the same time."""
CPU_SECONDS = 3
"""Maximum CPU seconds of a check."""
MASK_SECONDS = 0.5
"""Maximum CPU seconds for computing the allowed tokens of one position."""
MEMORY_BYTES = 512 << 20
"""Maximum memory of a check, in addition to the tokenizer's memory."""
TIMEOUT_S = 60.0
"""Maximum duration of a check in seconds on a busy machine; the CPU time of a check is limited more strictly."""
MAX_RESULTS = 1024
"""Maximum number of results to keep, so that a client that repeats a request waits only once."""
MAX_WAITING = 16
"""Maximum number of waiting checks per requester, including checks of cancelled requests."""
MAX_ERROR_CHARACTERS = 500
"""Maximum characters of a compiler's error, which may repeat the grammar."""
LIMITS = {"max_lexer_states": 100_000, "verbose_errors": False}
"""Arguments of llguidance's `LLParserLimits`, which bound the cost of each sampled token."""


class GrammarChecker:
    """Decides which grammars may be compiled in this process.

    Each requester (`rove.core.protocols.REQUESTER`) has one check at a time, so that no requester can occupy all
    workers.
    """

    def __init__(self, tokenizer: object, stop_ids: list[int]):
        program = Path(__file__).with_name("grammar_worker.py")
        args = {"tokenizer": tokenizer_json(tokenizer), "stop_ids": stop_ids}
        self._workers = Workers(program, args, max_workers=MAX_CHECKS, memory_bytes=MEMORY_BYTES, name="grammar check")
        self._results: OrderedDict[bytes, str] = OrderedDict()
        """Digest of a grammar → the reason for its rejection, or ""."""
        self._running: dict[bytes, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_CHECKS)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._waiting: Counter[str] = Counter()
        """Number of unfinished checks of each requester."""

    async def check(self, grammar: str) -> None:
        """Check a grammar; equal grammars are checked once."""
        digest = hashlib.sha256(grammar.encode(errors="surrogatepass")).digest()
        if digest not in self._results:
            if digest not in self._running:
                self._running[digest] = self._start(digest, grammar)
            # Shielded: other requests may wait for the same check, and its result is kept for later ones.
            await asyncio.shield(self._running[digest])
        problem = self._results[digest]
        self._results.move_to_end(digest)
        if problem:
            raise ConfigError(
                f"the requested structured output is not possible: {problem}; expected a form that some text matches and that "
                "compiles quickly: simplify it"
            )

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()

    def _start(self, digest: bytes, grammar: str) -> asyncio.Task[None]:
        client = REQUESTER.get()
        if self._waiting[client] >= MAX_WAITING:
            raise RejectedError(
                503,
                f"{MAX_WAITING} structured outputs of this client are being checked; expected fewer new ones at a time: "
                "retry later, or reuse a schema",
                "queue_full",
            )
        self._waiting[client] += 1
        return asyncio.create_task(self._check_in_turn(client, digest, grammar))

    async def _check_in_turn(self, client: str, digest: bytes, grammar: str) -> None:
        turn = self._turns.setdefault(client, asyncio.Lock())
        try:
            # First the requester's turn: waiting for it must not occupy a slot that other requesters could use.
            async with turn, self._slots:
                self._results[digest] = await self._try(grammar)
        finally:
            del self._running[digest]
            self._waiting[client] -= 1
            if not self._waiting[client]:  # else the counter would keep every client that ever sent a grammar
                del self._waiting[client]
        if len(self._results) > MAX_RESULTS:
            self._results.popitem(last=False)

    async def _try(self, grammar: str) -> str:
        """Return the reason to reject a grammar, or ""."""
        await self._workers.ensure_started()
        worker = await self._workers.open()
        try:
            error = await worker.call(
                "check", TIMEOUT_S, grammar=grammar, limits=LIMITS, cpu_seconds=CPU_SECONDS, mask_seconds=MASK_SECONDS
            )
            return readable(error)
        except WorkerError:
            return f"it needs more than {CPU_SECONDS} s or {MEMORY_BYTES >> 20} MiB to compile"
        except RemoteError as error:
            return readable(str(error))
        finally:
            worker.close()


def tokenizer_json(tokenizer: object) -> str:
    """Return the text of a `tokenizer.json` for a fast tokenizer of `transformers`."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError("structured output needs a fast tokenizer; this model has a slow one: request text only")
    backend = copy.copy(backend)  # the changes below must not reach the model's tokenizer
    backend.no_padding()
    backend.no_truncation()
    return backend.to_str()


def readable(error: str) -> str:
    """Return llguidance's error as one line, without llguidance's internal state."""
    text = error.partition("<state>")[0].partition("<non-verbose/>")[0]
    return " ".join(text.split()).replace("NoExtensionBias", "no text matches it")[:MAX_ERROR_CHARACTERS]
