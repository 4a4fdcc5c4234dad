"""Try a grammar in a worker process with limits on CPU time and memory; see `grammar_check`.

The worker's program imports only llguidance and the standard library, so that it starts quickly.
"""

from __future__ import annotations

import random
import time
from typing import Any

try:
    import resource
except ImportError:  # Windows: only the duration of a check is limited there
    resource = None

from llguidance import LLMatcher, LLTokenizer
from llguidance._lib import LLParserLimits  # pyright: ignore[reportMissingModuleSource]

WALKS, WALK_TOKENS = 4, 100
"""Number of random texts of the grammar that are tried, and maximum tokens per text."""
WALK_CPU_S = 1.0
"""Maximum CPU seconds for all of these texts; no further tokens are tried afterward."""
ALLOWED = b"\xc8"
"""Entry of `compute_logit_bias` for an allowed token."""

_tokenizer: LLTokenizer | None = None


def setup(tokenizer: str, stop_ids: list[int]) -> None:
    """Load the tokenizer, a `tokenizer.json` as text, before the first fork."""
    global _tokenizer
    _tokenizer = LLTokenizer(tokenizer, eos_token=stop_ids or None)


class Session:
    """Tries grammars."""

    def check(self, grammar: str, limits: dict[str, Any], cpu_seconds: int, mask_seconds: float) -> str:
        """Compile a grammar and generate random texts from it; return the reason to reject it, or "".

        Args:
            mask_seconds: Maximum CPU time for the allowed tokens of one position.
        """
        assert _tokenizer is not None
        if resource is not None:
            # The kernel ends the process: a Python timer would not run while llguidance compiles.
            limit = int(time.process_time()) + 1 + cpu_seconds
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        matcher = LLMatcher(_tokenizer, grammar, log_level=0, limits=LLParserLimits(**limits))
        until = time.process_time() + WALK_CPU_S
        for seed in range(WALKS):
            walk = matcher.deep_copy()
            slow = _slowest_mask(walk, random.Random(seed), until)
            if walk.is_error():
                return walk.get_error()
            if slow > mask_seconds:
                return f"the allowed tokens of one position take {slow:.1f} s, more than {mask_seconds:g} s"
        return ""


def _slowest_mask(matcher: LLMatcher, rng: random.Random, until: float) -> float:
    """Generate a random text; return the CPU seconds that the slowest position took."""
    slowest = 0.0
    for _ in range(WALK_TOKENS):
        started = time.process_time()
        mask = matcher.compute_logit_bias()
        ended = time.process_time()
        slowest = max(slowest, ended - started)
        # The next allowed token after a random one, so that no list of all allowed tokens is built.
        token = mask.find(ALLOWED, rng.randrange(len(mask)))
        if token < 0:
            token = mask.find(ALLOWED)
        if token < 0 or ended > until or matcher.is_stopped():
            break
        matcher.consume_token(token)
    return slowest
